//! `middleware.http.ratelimit`: limits requests per second by client and path.

mod buckets;
mod client;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use outrigger_component::middleware::{Body, Next, Outcome, Peer, answer};
use outrigger_component::{Catalog, Entry, Middleware, catalog::Version};

use self::buckets::Buckets;
use self::client::{FORWARDED_FOR, Proxies};
use super::wrong;

const DEFAULT_RATE: f64 = 100.0;
const REFUSAL: &str = "You have reached maximum request limit.";

/// Label of a client without an address.
const NO_ADDRESS: &str = "0.0.0.0";

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .middleware
        .add(Entry::new(&["ratelimit"], Version::Only, |setup| async move {
            let metadata = &setup.metadata;
            let rate = metadata.number::<f64>(&["maxRequestsPerSecond"])?;
            let rate = rate.unwrap_or(DEFAULT_RATE);
            if !(rate.is_finite() && rate > 0.0) {
                return Err(wrong(
                    "metadata property maxRequestsPerSecond must be a positive value".into(),
                ));
            }
            const PROXIES: &[&str] = &["trustedProxies"];
            let proxies = Proxies::parse(metadata.filled(PROXIES).unwrap_or_default())
                .map_err(|expected| metadata.wrong(PROXIES, &expected))?;
            let limit = RateLimit {
                rate,
                proxies,
                buckets: Buckets::new(rate),
            };
            Ok(Arc::new(limit) as Arc<dyn Middleware>)
        }));
}

struct RateLimit {
    rate: f64,
    proxies: Proxies,
    buckets: Buckets,
}

impl RateLimit {
    /// Rate limit headers of every response.
    fn describe(&self, headers: &mut HeaderMap, request: &RequestSource, left: u64) {
        let mut set = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.entry(HeaderName::from_static(name)).or_insert(value);
            }
        };
        set("x-rate-limit-limit", format!("{:.2}", self.rate));
        set("x-rate-limit-duration", "1".to_owned());
        if let Some(forwarded) = &request.forwarded {
            set("x-rate-limit-request-forwarded-for", forwarded.clone());
        }
        set("x-rate-limit-request-remote-addr", request.remote.clone());
        set("ratelimit-limit", format!("{:.0}", self.rate));
        set("ratelimit-reset", "1".to_owned());
        set("ratelimit-remaining", left.to_string());
    }
}

/// Source of a request.
struct RequestSource {
    forwarded: Option<String>,
    remote: String,
}

#[async_trait]
impl Middleware for RateLimit {
    async fn handle(&self, mut request: Request<Body>, next: Next<'_>) -> Outcome {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
        let client = self.proxies.client(request.headers(), peer.map(|peer| peer.ip()));
        if client.is_none() {
            let nobody = HeaderValue::from_static(NO_ADDRESS);
            request.headers_mut().entry(FORWARDED_FOR).or_insert(nobody);
        }
        let (passes, left) = self.buckets.take(client, request.uri().path(), Instant::now());
        let forwarded = request.headers().get(FORWARDED_FOR);
        let seen = RequestSource {
            forwarded: forwarded.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            remote: peer.map(|peer| peer.to_string()).unwrap_or_default(),
        };
        let mut response = if passes {
            next.run(request).await?
        } else {
            answer(StatusCode::TOO_MANY_REQUESTS, Some(REFUSAL))
        };
        self.describe(response.headers_mut(), &seen, left);
        Ok(response)
    }
}
