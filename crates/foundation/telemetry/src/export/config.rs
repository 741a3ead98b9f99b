//! Configuration of tracing (`spec.tracing`) and its merge with the environment.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Tracing settings; the resources crate fills them from a Configuration.
#[derive(Clone, Debug, Default)]
pub struct TracingConfig {
    /// `samplingRate`: decimal text.
    pub sampling_rate: String,
    /// `stdout`: log each span.
    pub stdout: bool,
    /// `zipkin.endpointAddress`: full URL; empty for none.
    pub zipkin_endpoint: String,
    /// `otel`.
    pub otel: OtelConfig,
}

/// An OTLP collector (`otel`).
#[derive(Clone, Debug, Default)]
pub struct OtelConfig {
    /// `endpointAddress`: `host:port`; empty for none.
    pub endpoint: String,
    /// `protocol`: `http` or `grpc`; empty for none.
    pub protocol: String,
    /// `isSecure`: TLS to the collector; unset means yes.
    pub is_secure: Option<bool>,
    /// `headers`: `name=value` each; entries without `=` are ignored.
    pub headers: Vec<String>,
    /// `timeout` of one export.
    pub timeout: Option<Duration>,
}

/// Errors of a tracing configuration.
#[derive(Debug, thiserror::Error)]
pub enum TracingError {
    /// The protocol is neither `http` nor `grpc`.
    #[error("invalid protocol {0} provided for Otel endpoint")]
    Protocol(String),
    /// The OTLP endpoint is not `host:port`.
    #[error("invalid Otel endpoint {endpoint:?}: {reason} (use host:port)")]
    Endpoint {
        /// The endpoint of the Configuration or of `OTEL_EXPORTER_OTLP_ENDPOINT`.
        endpoint: String,
        /// The cause.
        reason: String,
    },
    /// The Zipkin endpoint is not a URL.
    #[error("invalid collector URL {url:?}: {reason}")]
    ZipkinUrl {
        /// `spec.tracing.zipkin.endpointAddress` of the Configuration.
        url: String,
        /// The cause.
        reason: String,
    },
    /// A header from the configuration or the environment is malformed.
    #[error("invalid Otel header {0:?}: use name=value")]
    Header(String),
    /// The timeout in the environment is not a number.
    #[error("invalid value {value:?} of {variable}: use milliseconds")]
    Timeout {
        /// The environment variable.
        variable: &'static str,
        /// The value of the header or variable.
        value: String,
    },
    /// The TLS setup failed.
    #[error("cannot set up TLS to the trace collector: {0}")]
    Tls(String),
}

const ENDPOINT: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const PROTOCOL: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const TIMEOUT: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const INSECURE: &str = "OTEL_EXPORTER_OTLP_INSECURE";

impl TracingConfig {
    /// Fills the OTLP settings from `OTEL_*` variables, unless the configuration names an endpoint.
    ///
    /// # Errors
    /// On malformed headers or a timeout that is not a number.
    pub fn with_env(mut self, env: impl Fn(&str) -> Option<String>) -> Result<Self, TracingError> {
        if !self.otel.endpoint.is_empty() {
            return Ok(self);
        }
        let first = |names: [&'static str; 2]| {
            let set = |name| {
                env(name)
                    .filter(|value| !value.is_empty())
                    .map(|value| (name, value))
            };
            names.into_iter().find_map(set)
        };
        if let Some((_, endpoint)) = first(ENDPOINT) {
            let endpoint = endpoint.strip_prefix("http://").unwrap_or(&endpoint);
            let endpoint = endpoint.strip_prefix("https://").unwrap_or(endpoint);
            self.otel.endpoint = endpoint.trim_end_matches('/').to_owned();
            if self.sampling_rate.is_empty() {
                self.sampling_rate = "1".into();
            }
            let http = first(PROTOCOL).is_some_and(|(_, protocol)| protocol.starts_with("http"));
            self.otel.protocol = if http { "http" } else { "grpc" }.into();
            if env(INSECURE).as_deref() == Some("true") {
                self.otel.is_secure = Some(false);
            }
        }
        if let Some((_, headers)) = first(HEADERS) {
            for entry in headers.split(',') {
                self.otel.headers.push(decode_header(entry)?);
            }
        }
        if let Some((variable, value)) = first(TIMEOUT) {
            let millis = value
                .parse()
                .map_err(|_| TracingError::Timeout { variable, value })?;
            self.otel.timeout = Some(Duration::from_millis(millis)).filter(|t| !t.is_zero());
        }
        Ok(self)
    }
}

/// Decodes `k=v` with a percent-encoded value, the form of `OTEL_EXPORTER_OTLP_HEADERS`.
fn decode_header(entry: &str) -> Result<String, TracingError> {
    let invalid = || TracingError::Header(entry.to_owned());
    let (name, value) = entry.split_once('=').ok_or_else(invalid)?;
    let (name, value) = (percent_decode_str(name), percent_decode_str(value));
    let name = name.decode_utf8().map_err(|_| invalid())?;
    let value = value.decode_utf8().map_err(|_| invalid())?;
    Ok(format!("{}={}", name.trim(), value.trim()))
}

/// Parses `name=value` as a header; `None` without `=`. Errors do not repeat the value, which may be a
/// secret.
pub(super) fn parse_header(entry: &str) -> Result<Option<(HeaderName, HeaderValue)>, TracingError> {
    let Some((name, value)) = entry.split_once('=') else {
        return Ok(None);
    };
    let invalid = || TracingError::Header(name.to_owned());
    let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
    Ok(Some((name, value)))
}

impl OtelConfig {
    /// The headers sent with every export.
    pub(super) fn header_map(&self) -> Result<HeaderMap, TracingError> {
        let mut map = HeaderMap::new();
        for entry in &self.headers {
            if let Some((name, value)) = parse_header(entry)? {
                map.insert(name, value);
            }
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(config: TracingConfig, env: &[(&str, &str)]) -> Result<TracingConfig, TracingError> {
        let lookup = |name: &str| env.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
        config.with_env(lookup)
    }

    #[test]
    fn environment_fills_an_empty_endpoint() {
        let config = merged(
            TracingConfig::default(),
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://general:1"),
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
                ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "a=1%202,b= x "),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ],
        )
        .unwrap();
        assert_eq!(config.sampling_rate, "1");
        assert_eq!(
            (config.otel.endpoint.as_str(), config.otel.protocol.as_str()),
            ("collector:4318", "http")
        );
        assert_eq!(config.otel.is_secure, Some(false));
        assert_eq!(config.otel.headers, ["a=1 2", "b=x"]);
        assert_eq!(config.otel.timeout, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn configured_endpoint_overrides_environment() {
        let mut config = TracingConfig::default();
        config.otel.endpoint = "mine:4317".into();
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "other:1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "broken"),
        ];
        let config = merged(config, &env).unwrap();
        assert_eq!(config.otel.endpoint, "mine:4317");
        assert!(config.otel.headers.is_empty() && config.sampling_rate.is_empty());
    }

    #[test]
    fn unknown_protocol_means_grpc() {
        let env = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon"),
        ];
        assert_eq!(
            merged(TracingConfig::default(), &env).unwrap().otel.protocol,
            "grpc"
        );
    }

    #[test]
    fn rejects_malformed_variables() {
        let header = merged(
            TracingConfig::default(),
            &[("OTEL_EXPORTER_OTLP_HEADERS", "novalue")],
        );
        assert!(matches!(header, Err(TracingError::Header(text)) if text == "novalue"));
        let timeout = merged(
            TracingConfig::default(),
            &[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "5s")],
        );
        assert!(
            timeout
                .unwrap_err()
                .to_string()
                .contains("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
        );
    }

    #[test]
    fn ignores_headers_without_value() {
        let otel = OtelConfig {
            headers: vec!["X-Key=a=b".into(), "nothing".into()],
            ..OtelConfig::default()
        };
        let map = otel.header_map().unwrap();
        assert_eq!(map.len(), 1);
        assert_eq!(map["x-key"], "a=b");
    }
}
