//! Header conversion between the three forms a call's metadata takes: HTTP headers, the internal metadata
//! that sidecars exchange, and gRPC metadata. Rules: Dapr 1.18 (`InternalMetadata*` conversions), RFC 9110
//! section 7.6.1.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};
use outrigger_identity::SpiffeId;

/// Names this runtime adds or reads.
pub mod names {
    use http::header::HeaderName;

    /// Invocation target of a call.
    pub const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
    /// Token of API callers, and of us towards the app.
    pub const API_TOKEN: HeaderName = HeaderName::from_static("dapr-api-token");
    /// App id of the caller.
    pub const CALLER_APP_ID: HeaderName = HeaderName::from_static("dapr-caller-app-id");
    /// Namespace of the caller.
    pub const CALLER_NAMESPACE: HeaderName = HeaderName::from_static("dapr-caller-namespace");
    /// App id of the callee.
    pub const CALLEE_APP_ID: HeaderName = HeaderName::from_static("dapr-callee-app-id");
    /// Internal: app id of the callee; never forwarded to the app.
    pub const DESTINATION_APP_ID: HeaderName = HeaderName::from_static("destination-app-id");
    /// `X-Forwarded-For`.
    pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    /// `X-Forwarded-Host`.
    pub const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    /// W3C trace context.
    pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    /// W3C trace state.
    pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
    /// Binary trace context of gRPC.
    pub const GRPC_TRACE_BIN: HeaderName = HeaderName::from_static("grpc-trace-bin");
    /// W3C baggage.
    pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
    /// Status of an HTTP callee, in gRPC metadata.
    pub const HTTP_STATUS: HeaderName = HeaderName::from_static("dapr-http-status");
    /// A proxied call is a long-lived stream.
    pub const STREAM: HeaderName = HeaderName::from_static("dapr-stream");
}

/// Accepts binary metadata with or without padding, as gRPC peers send it.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Removes hop-by-hop headers, including those that `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(header::CONNECTION);
    }
    // Most calls have none: one pass over the names present is cheaper than one lookup for each hop-by-hop
    // name.
    while let Some(name) = headers.keys().find(|name| is_hop_by_hop(name)).cloned() {
        headers.remove(name);
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "keep-alive"
            | "proxy-connection"
            | "transfer-encoding"
            | "upgrade"
            | "http2-settings"
            | "te"
            | "trailer"
            | "proxy-authorization"
            | "proxy-authenticate"
    )
}

/// Removes caller and callee identities: only sidecars set them, on calls that they forward.
pub fn strip_identities(headers: &mut HeaderMap) {
    for name in [
        names::CALLER_APP_ID,
        names::CALLER_NAMESPACE,
        names::CALLEE_APP_ID,
        names::DESTINATION_APP_ID,
    ] {
        headers.remove(name);
    }
}

/// Sets the identities of caller and callee from the caller's certificate. `headers` come from a peer.
/// Hop-by-hop headers are removed first, because `Connection` could name the identity headers.
pub fn put_identities(headers: &mut HeaderMap, caller: &SpiffeId, callee: &str) {
    if headers.contains_key(header::CONNECTION) {
        strip_hop_by_hop(headers);
    }
    headers.remove(names::DESTINATION_APP_ID);
    for (name, value) in [
        (names::CALLER_APP_ID, caller.app_id()),
        (names::CALLER_NAMESPACE, caller.namespace()),
        (names::CALLEE_APP_ID, callee),
    ] {
        // An honest peer sends the same value; then nothing is written.
        let mut said = headers.get_all(&name).iter();
        if said.next().is_some_and(|said| said == value) && said.next().is_none() {
            continue;
        }
        match HeaderValue::try_from(value) {
            Ok(value) => headers.insert(name, value),
            Err(_) => headers.remove(name),
        };
    }
}

fn is_binary(name: &HeaderName) -> bool {
    name.as_str().ends_with("-bin")
}

/// Whether a caller accepts only server-sent events.
#[inline]
pub fn wants_events(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).is_some_and(|accept| {
        let accept = accept.as_bytes().trim_ascii();
        accept.eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// Internal metadata as HTTP headers for an app or an API caller. Trace headers are copied unchanged; the
/// caller sets the current ones.
pub fn internal_to_http(mut metadata: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut metadata);
    metadata.remove(header::CONTENT_TYPE);
    metadata.remove(header::CONTENT_LENGTH);
    metadata.remove(names::DESTINATION_APP_ID);
    if metadata.get_all(names::BAGGAGE).iter().nth(1).is_some()
        && let Some(first) = metadata.get(names::BAGGAGE).cloned()
    {
        metadata.insert(names::BAGGAGE, first);
    }
    let renamed = |n: &HeaderName| is_binary(n) || n.as_str().starts_with("grpc-");
    let special: Vec<HeaderName> = metadata.keys().filter(|n| renamed(n)).cloned().collect();
    for name in special {
        if is_binary(&name) {
            metadata.remove(name);
        } else if let Ok(prefixed) = HeaderName::try_from(format!("dapr-{}", name.as_str())) {
            move_all(&mut metadata, &name, prefixed);
        }
    }
    metadata
}

fn move_all(headers: &mut HeaderMap, from: &HeaderName, to: HeaderName) {
    let values: Vec<HeaderValue> = headers.get_all(from).iter().cloned().collect();
    headers.remove(from);
    for value in values {
        headers.append(to.clone(), value);
    }
}

/// Metadata that the gRPC protocol itself sets (gRPC over HTTP/2). It applies to one hop and is not
/// forwarded.
const OF_ONE_CALL: [&str; 7] = [
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-status",
    "grpc-message",
    "grpc-message-type",
    "grpc-status-details-bin",
];

/// gRPC request or response metadata as internal metadata. Binary values become padded base64.
pub fn grpc_to_internal(mut headers: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    for name in OF_ONE_CALL {
        headers.remove(name);
    }
    keep_binary(&mut headers);
    headers
}

/// Keeps binary metadata that is valid base64, in padded form. Any other value would fail the whole call at
/// the receiver.
fn keep_binary(headers: &mut HeaderMap) {
    let binary: Vec<HeaderName> = headers.keys().filter(|n| is_binary(n)).cloned().collect();
    let mut dropped = None;
    for name in binary {
        let all: Vec<_> = headers.get_all(&name).iter().map(padded).collect();
        headers.remove(&name);
        for value in all {
            match value {
                Some(value) => drop(headers.append(name.clone(), value)),
                None => dropped = Some(name.clone()),
            }
        }
    }
    // At most one line for each call.
    if let Some(name) = dropped {
        tracing::warn!(
            target: "dapr.runtime.direct_messaging",
            "header {name} dropped: its value is not base64, as the suffix -bin requires"
        );
    }
}

fn padded(value: &HeaderValue) -> Option<HeaderValue> {
    let raw = LENIENT_BASE64.decode(value.as_bytes()).ok()?;
    HeaderValue::try_from(STANDARD.encode(raw)).ok()
}

/// Event metadata as headers. Entries that are not valid headers are dropped.
pub fn from_pairs(pairs: &HashMap<String, String>) -> HeaderMap {
    let items = pairs.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(name.as_str()).ok()?;
        Some((name, HeaderValue::try_from(value.as_str()).ok()?))
    });
    items.collect()
}

/// Internal metadata as gRPC metadata. With `from_http`, the metadata are headers of an HTTP message, and
/// standard names get the prefix `dapr-`. Trace metadata are dropped; the caller sets the current ones.
pub fn internal_to_grpc(mut metadata: HeaderMap, from_http: bool) -> HeaderMap {
    strip_hop_by_hop(&mut metadata);
    for name in [
        names::DESTINATION_APP_ID,
        names::TRACEPARENT,
        names::TRACESTATE,
        names::GRPC_TRACE_BIN,
    ] {
        metadata.remove(name);
    }
    for name in OF_ONE_CALL {
        metadata.remove(name);
    }
    if from_http {
        let standard: Vec<HeaderName> = metadata
            .keys()
            .filter(|n| is_permanent(n.as_str()))
            .cloned()
            .collect();
        for name in standard {
            if let Ok(prefixed) = HeaderName::try_from(format!("dapr-{}", name.as_str())) {
                move_all(&mut metadata, &name, prefixed);
            }
        }
    }
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::HOST] {
        metadata.remove(name);
    }
    keep_binary(&mut metadata);
    metadata
}

/// Standard HTTP headers that must not appear as gRPC metadata under their own name.
fn is_permanent(name: &str) -> bool {
    matches!(
        name,
        "accept"
            | "accept-charset"
            | "accept-language"
            | "accept-ranges"
            | "cache-control"
            | "content-type"
            | "content-length"
            | "cookie"
            | "date"
            | "expect"
            | "from"
            | "host"
            | "if-match"
            | "if-modified-since"
            | "if-none-match"
            | "if-schedule-tag-match"
            | "if-unmodified-since"
            | "max-forwards"
            | "origin"
            | "pragma"
            | "referer"
            | "via"
            | "warning"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn removes_hop_by_hop_headers() {
        let mut headers = map(&[
            ("connection", "close, X-Secret"),
            ("connection", "keep-alive"),
            ("x-secret", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "x"),
            ("x-kept", "1"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "1")]));
    }

    #[test]
    fn converts_names_to_http() {
        let http = internal_to_http(map(&[
            ("x-data-bin", "AAAA"),
            ("content-type", "application/grpc"),
            ("content-length", "3"),
            ("destination-app-id", "b"),
            ("grpc-timeout", "1S"),
            ("baggage", "a=1"),
            ("baggage", "b=2"),
            ("x-many", "1"),
            ("x-many", "2"),
        ]));
        assert_eq!(
            http,
            map(&[
                ("dapr-grpc-timeout", "1S"),
                ("baggage", "a=1"),
                ("x-many", "1"),
                ("x-many", "2")
            ])
        );
    }

    #[test]
    fn pads_binary_metadata() {
        let internal = grpc_to_internal(map(&[
            ("k-bin", "YQ"),
            ("te", "trailers"),
            ("a", "b"),
            ("bad-bin", "!"),
        ]));
        assert_eq!(internal, map(&[("k-bin", "YQ=="), ("a", "b")]));
    }

    #[test]
    fn prefixes_http_headers_in_grpc_metadata() {
        let grpc = internal_to_grpc(map(&[("content-type", "text/plain"), ("x-a", "1")]), true);
        assert_eq!(grpc, map(&[("dapr-content-type", "text/plain"), ("x-a", "1")]));
        let grpc = internal_to_grpc(map(&[("content-type", "application/grpc"), ("x-a", "1")]), false);
        assert_eq!(grpc, map(&[("x-a", "1")]));
    }

    #[test]
    fn drops_metadata_that_steers_grpc() {
        let headers = map(&[
            ("x-bin", "!"),
            ("x-bin", "AQI"),
            ("y-bin", "not base64"),
            ("grpc-timeout", "1n"),
            ("grpc-encoding", "gzip"),
            ("connection", "x-private"),
            ("x-private", "1"),
            ("x-a", "1"),
        ]);
        let expected = map(&[("x-bin", "AQI="), ("x-a", "1")]);
        assert_eq!(internal_to_grpc(headers.clone(), true), expected);
        assert_eq!(internal_to_grpc(headers.clone(), false), expected);
        assert_eq!(grpc_to_internal(headers), expected);
    }

    #[test]
    fn takes_identities_from_certificate() {
        let caller = "spiffe://public/ns/shop/a".parse().unwrap();
        let mut headers = map(&[
            ("connection", "dapr-caller-app-id, x-private"),
            ("dapr-caller-app-id", "admin"),
            ("dapr-caller-app-id", "root"),
            ("dapr-caller-namespace", "kube-system"),
            ("destination-app-id", "c"),
            ("x-private", "1"),
            ("x-a", "1"),
        ]);
        put_identities(&mut headers, &caller, "b");
        let expected = map(&[
            ("x-a", "1"),
            ("dapr-caller-app-id", "a"),
            ("dapr-caller-namespace", "shop"),
            ("dapr-callee-app-id", "b"),
        ]);
        assert_eq!(headers, expected);
    }
}
