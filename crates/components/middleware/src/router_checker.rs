//! `middleware.http.routerchecker`: passes only targets that match a rule under every reading a server may
//! apply.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, StatusCode};
use outrigger_component::middleware::{Body, Next, Outcome, answer};
use outrigger_component::{Catalog, Entry, Middleware, catalog::Version};
use outrigger_policy::path::clean;
use outrigger_policy::readings;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use regex::Regex;

use super::{target, wrong};

/// Characters escaped in a path (RFC 3986 section 3.3): rules match targets as sent.
const PATH_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

pub(super) fn add(catalog: &mut Catalog) {
    catalog.middleware.add(Entry::new(
        &["routerchecker"],
        Version::Only,
        |setup| async move {
            let rule = setup.metadata.text(&["rule"]).unwrap_or_default();
            let rule = Regex::new(rule).map_err(|error| {
                wrong(format!(
                    "failed to compile rule regexp: {error}; set rule to a regular expression"
                ))
            })?;
            Ok(Arc::new(RouterChecker { rule }) as Arc<dyn Middleware>)
        },
    ));
}

struct RouterChecker {
    rule: Regex,
}

impl RouterChecker {
    fn allows(&self, target: &str) -> bool {
        if !self.rule.is_match(target) {
            return false;
        }
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let decoded = percent_decode_str(path).decode_utf8_lossy();
        let Some(mut readings) = readings::others(&decoded) else {
            return false;
        };
        // From a parameter with escaped slashes, which a decoding server may resolve.
        if decoded.split('/').any(|segment| segment == "..") {
            readings.push(clean(&decoded).trim_start_matches('/').to_owned());
        }
        let mut targets = readings
            .iter()
            .map(|reading| format!("/{}{query}", utf8_percent_encode(reading, PATH_ESCAPES)));
        targets.all(|target| self.rule.is_match(&target))
    }
}

#[async_trait]
impl Middleware for RouterChecker {
    async fn handle(&self, request: Request<Body>, next: Next<'_>) -> Outcome {
        if self.allows(target(request.uri())) {
            next.run(request).await
        } else {
            Ok(answer(StatusCode::BAD_REQUEST, Some("invalid router")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_every_reading_of_target() {
        let rule = Regex::new("^/(public|https?://public|v1.0/state/s/k)").unwrap();
        let checker = RouterChecker { rule };
        for allowed in [
            "/public",
            "/public/",
            "/public//a..b?x=/../..",
            "/public/a/%2e%2e%2fb",
            "/http://public/a",
            "/v1.0/state/s/k%2F.%2Fl",
        ] {
            assert!(checker.allows(allowed), "{allowed}");
        }
        for refused in [
            "/admin",
            "/public%2F..%2Fadmin",
            "/public/..%2f/admin",
            "/public%2F%2e%2e%2Fadmin?x=1",
            "/public/..;/admin",
            "/public%5C..%5Cadmin",
            "/v1.0/state/s/k%2F..%2Fl",
        ] {
            assert!(!checker.allows(refused), "{refused}");
        }
    }
}
