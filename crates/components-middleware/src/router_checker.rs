//! `middleware.http.routerchecker`: only targets that match a rule are let through.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, StatusCode};
use outrigger_component::middleware::{Body, Next, Outcome, answer};
use outrigger_component::{Catalog, Entry, Middleware, catalog::Version};
use regex::Regex;

use super::{target, wrong};

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

#[async_trait]
impl Middleware for RouterChecker {
    async fn handle(&self, request: Request<Body>, next: Next<'_>) -> Outcome {
        if self.rule.is_match(target(request.uri())) {
            next.run(request).await
        } else {
            Ok(answer(StatusCode::BAD_REQUEST, Some("invalid router")))
        }
    }
}
