//! `middleware.http.ratelimit`: so many requests a second from one client to one path.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use outrigger_component::middleware::{Body, Next, Outcome, Peer, answer};
use outrigger_component::{Catalog, Entry, Middleware, catalog::Version};

use super::wrong;

const DEFAULT_RATE: f64 = 100.0;
/// Clients and paths that are told apart; beyond them all others share.
const MAX_BUCKETS: usize = 65_536;
const REFUSAL: &str = "You have reached maximum request limit.";

const FORWARDED_FOR: &str = "x-forwarded-for";
const REAL_IP: &str = "x-real-ip";
/// Stands for a client without address.
const NOBODY: &str = "0.0.0.0";

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .middleware
        .add(Entry::new(&["ratelimit"], Version::Only, |setup| async move {
            let rate = setup.metadata.number::<f64>(&["maxRequestsPerSecond"])?;
            let rate = rate.unwrap_or(DEFAULT_RATE);
            if !(rate.is_finite() && rate > 0.0) {
                return Err(wrong(
                    "metadata property maxRequestsPerSecond must be a positive value".into(),
                ));
            }
            Ok(Arc::new(RateLimit::new(rate)) as Arc<dyn Middleware>)
        }));
}

struct RateLimit {
    rate: f64,
    buckets: Mutex<HashMap<(String, String), Bucket>>,
}

/// Fills up with the rate; a request takes one token.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl RateLimit {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            buckets: Mutex::default(),
        }
    }

    fn burst(&self) -> f64 {
        self.rate.floor().max(1.0)
    }

    /// Whether a request may pass, and how many more could now.
    fn take(&self, client: &str, path: &str, now: Instant) -> (bool, u64) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (client.to_owned(), path.to_owned());
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&key) {
            // A bucket that is full again is as good as none.
            buckets.retain(|_, bucket| self.filled(bucket, now) < self.burst());
            if buckets.len() >= MAX_BUCKETS {
                key = Default::default();
            }
        }
        let bucket = buckets.entry(key).or_insert_with(|| Bucket {
            tokens: self.burst(),
            at: now,
        });
        bucket.tokens = self.filled(bucket, now);
        bucket.at = now;
        let passes = bucket.tokens >= 1.0;
        if passes {
            bucket.tokens -= 1.0;
        }
        let left = bucket.tokens as u64;
        (passes, left)
    }

    fn filled(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.rate).min(self.burst())
    }

    /// What every answer says about the limit.
    fn describe(&self, headers: &mut HeaderMap, request: &Seen, left: u64) {
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

/// Where a request came from.
struct Seen {
    forwarded: Option<String>,
    remote: String,
}

/// The address a client is known by: what the last proxy says, else that of the connection.
fn client(request: &Request<Body>) -> Option<String> {
    let text = |name| request.headers().get(name)?.to_str().ok();
    let forwarded = text(FORWARDED_FOR).and_then(|all| all.rsplit(',').next());
    let named = forwarded.or_else(|| text(REAL_IP)).map(str::trim);
    match named.filter(|name| !name.is_empty()) {
        Some(name) => Some(name.parse().map_or_else(|_| name.to_owned(), canonical)),
        None => request
            .extensions()
            .get::<Peer>()
            .map(|peer| canonical(peer.0.ip())),
    }
}

/// A network of IPv6 addresses belongs to one client.
fn canonical(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).to_string()
        }
    }
}

#[async_trait]
impl Middleware for RateLimit {
    async fn handle(&self, mut request: Request<Body>, next: Next<'_>) -> Outcome {
        let client = client(&request).unwrap_or_else(|| {
            request
                .headers_mut()
                .insert(FORWARDED_FOR, HeaderValue::from_static(NOBODY));
            NOBODY.to_owned()
        });
        let (passes, left) = self.take(&client, request.uri().path(), Instant::now());
        let forwarded = request.headers().get(FORWARDED_FOR);
        let peer = request.extensions().get::<Peer>();
        let seen = Seen {
            forwarded: forwarded.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            remote: peer.map(|peer| peer.0.to_string()).unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_component::middleware::full;

    use super::*;

    #[test]
    fn a_client_has_a_bucket_per_path() {
        let limit = RateLimit::new(2.0);
        let now = Instant::now();
        assert_eq!(limit.take("a", "/x", now), (true, 1));
        assert_eq!(limit.take("a", "/x", now), (true, 0));
        assert_eq!(limit.take("a", "/x", now), (false, 0));
        assert!(limit.take("a", "/y", now).0);
        assert!(limit.take("b", "/x", now).0);
        let later = now + Duration::from_millis(500);
        assert_eq!(limit.take("a", "/x", later), (true, 0));
        assert!(!limit.take("a", "/x", later).0);
        let much_later = now + Duration::from_secs(3600);
        assert_eq!(
            limit.take("a", "/x", much_later),
            (true, 1),
            "never more than a burst"
        );
    }

    #[test]
    fn rates_below_one_let_one_through() {
        let limit = RateLimit::new(0.5);
        let now = Instant::now();
        assert!(limit.take("a", "/", now).0);
        assert!(!limit.take("a", "/", now + Duration::from_secs(1)).0);
        assert!(limit.take("a", "/", now + Duration::from_secs(2)).0);
    }

    #[test]
    fn buckets_are_bounded() {
        let limit = RateLimit::new(1.0);
        let now = Instant::now();
        for index in 0..MAX_BUCKETS {
            limit.take(&index.to_string(), "/", now);
        }
        assert!(limit.take("one more", "/", now).0);
        assert!(!limit.take("and another", "/", now).0, "they share");
        assert!(limit.take("later", "/", now + Duration::from_secs(1)).0);
        assert!(limit.buckets.lock().unwrap().len() <= 2);
    }

    #[test]
    fn clients_are_known_by_proxies_networks_or_connections() {
        let known = |headers: &[(&str, &str)], peer: Option<&str>| {
            let mut request = Request::new(full(""));
            for (name, value) in headers {
                let name = HeaderName::try_from(*name).unwrap();
                request.headers_mut().insert(name, value.parse().unwrap());
            }
            if let Some(peer) = peer {
                request.extensions_mut().insert(Peer(peer.parse().unwrap()));
            }
            client(&request)
        };
        let peer = Some("[2001:db8:1:2:3:4:5:6]:99");
        assert_eq!(known(&[], None), None);
        assert_eq!(known(&[], peer).unwrap(), "2001:db8:1:2::");
        assert_eq!(known(&[], Some("[::ffff:10.0.0.1]:9")).unwrap(), "10.0.0.1");
        let both = [
            ("x-real-ip", "10.0.0.2"),
            ("x-forwarded-for", "1.1.1.1, 10.0.0.1"),
        ];
        assert_eq!(known(&both, peer).unwrap(), "10.0.0.1");
        assert_eq!(known(&both[..1], peer).unwrap(), "10.0.0.2");
        assert_eq!(
            known(&[("x-forwarded-for", "somebody")], peer).unwrap(),
            "somebody"
        );
    }
}
