//! Validation of `spec.tracing` values before they are used.

use super::{config, otlp_uri, zipkin};

/// The error in `zipkin.endpointAddress`, if any.
pub fn zipkin_url(url: &str) -> Option<String> {
    zipkin::parse(url).err()
}

/// The error in `otel.endpointAddress`, if any.
pub fn otlp_endpoint(endpoint: &str) -> Option<String> {
    if endpoint.contains("://") {
        // The endpoint would parse as a URL with the scheme as its host.
        return Some("it has a scheme; set isSecure instead".to_owned());
    }
    otlp_uri("http", endpoint, "").err()
}

/// The error in one of `otel.headers`, written as `name=value`. It does not repeat the value.
pub fn otlp_header(entry: &str) -> Option<String> {
    match config::parse_header(entry) {
        Ok(Some(_)) => None,
        Ok(None) => Some("it has no = and is ignored".to_owned()),
        Err(_) => Some("its name or its value has characters that a header may not have".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_valid_values() {
        for (check, right, wrong) in [
            (
                zipkin_url as fn(&str) -> Option<String>,
                "http://z:9411/api/v2/spans",
                "z:9411",
            ),
            (zipkin_url, "https://z", "ftp://z"),
            (otlp_endpoint, "collector:4317", "http://collector:4317"),
            (otlp_endpoint, "[::1]:4317", "a b:4317"),
            (otlp_header, "x-key=a=b", "x-key: secret"),
            (otlp_header, "x-key=", "x key=secret"),
            (otlp_header, "x-key=a b", "x-key=secret\u{7f}"),
        ] {
            assert_eq!(check(right), None, "{right}");
            let told = check(wrong).unwrap_or_else(|| panic!("{wrong} is right"));
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
