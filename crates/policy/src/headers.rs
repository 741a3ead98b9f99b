//! Which headers cross between HTTP, gRPC and other sidecars, and under which name.

use std::borrow::Cow;

/// Whether a header belongs to one connection and must not be forwarded. Any case.
///
/// Headers that a `Connection` header names are hop-by-hop too; that list is the message's own.
pub const fn is_hop_by_hop(name: &str) -> bool {
    contains_ignoring_case(
        &[
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
            "te",
            "trailer",
            "proxy-authorization",
            "proxy-authenticate",
        ],
        name,
    )
}

/// Whether a header is dropped when internal metadata becomes HTTP headers: hop-by-hop headers, those the HTTP
/// layer sets itself, the routing header, and binary gRPC metadata. Any case.
pub const fn is_dropped_towards_http(name: &str) -> bool {
    is_hop_by_hop(name)
        || contains_ignoring_case(&["content-type", "content-length", "destination-app-id"], name)
        || is_binary(name)
}

/// Whether a gRPC metadata key holds bytes (`-bin`), which internal metadata carries as standard base64. Any case.
pub const fn is_binary(name: &str) -> bool {
    const SUFFIX: &[u8] = b"-bin";
    match name.as_bytes().split_last_chunk::<4>() {
        Some((_, tail)) => tail.eq_ignore_ascii_case(SUFFIX),
        None => false,
    }
}

/// The name a header has in HTTP. Names that HTTP or gRPC reserve move out of the way: `:path` becomes `dapr-path`
/// (likewise method, scheme, authority), `grpc-timeout` becomes `dapr-grpc-timeout`. Lower-case names.
pub fn name_towards_http(name: &str) -> Cow<'_, str> {
    match name {
        ":method" | ":scheme" | ":path" | ":authority" => Cow::Owned(format!("dapr-{}", &name[1..])),
        name if name.starts_with("grpc-") => Cow::Owned(format!("dapr-{name}")),
        name => Cow::Borrowed(name),
    }
}

/// Whether a response header of an HTTP app is prefixed with `dapr-` in gRPC metadata. Matched in exact canonical
/// spelling, so that a name that is already lower case passes unchanged.
pub const fn is_permanent_http_header(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "Accept",
        "Accept-Charset",
        "Accept-Language",
        "Accept-Ranges",
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Transfer-Encoding",
        "Upgrade",
        "Cache-Control",
        "Content-Type",
        "Content-Length",
        "Cookie",
        "Date",
        "Expect",
        "From",
        "Host",
        "If-Match",
        "If-Modified-Since",
        "If-None-Match",
        "If-Schedule-Tag-Match",
        "If-Unmodified-Since",
        "Max-Forwards",
        "Origin",
        "Pragma",
        "Referer",
        "Via",
        "Warning",
    ];
    let mut index = 0;
    while index < NAMES.len() {
        if same(NAMES[index].as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

const fn contains_ignoring_case(list: &[&str], name: &str) -> bool {
    let mut index = 0;
    while index < list.len() {
        if list[index].eq_ignore_ascii_case(name) {
            return true;
        }
        index += 1;
    }
    false
}

const fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop_headers_stay_on_their_connection() {
        assert!(is_hop_by_hop("Transfer-Encoding"));
        assert!(is_hop_by_hop("te"));
        assert!(!is_hop_by_hop("accept"));
    }

    #[test]
    fn what_http_does_not_get() {
        for name in [
            "X-Bin",
            "trace-bin",
            "content-length",
            "Destination-App-Id",
            "upgrade",
        ] {
            assert!(is_dropped_towards_http(name), "{name}");
        }
        for name in ["bin", "x-binary", "dapr-caller-app-id"] {
            assert!(!is_dropped_towards_http(name), "{name}");
        }
    }

    #[test]
    fn reserved_names_are_prefixed() {
        assert_eq!(name_towards_http(":path"), "dapr-path");
        assert_eq!(name_towards_http("grpc-timeout"), "dapr-grpc-timeout");
        assert_eq!(name_towards_http("grpc"), "grpc");
        assert!(is_permanent_http_header("Content-Type"));
        assert!(!is_permanent_http_header("content-type"));
        assert!(!is_permanent_http_header("Etag"));
    }
}
