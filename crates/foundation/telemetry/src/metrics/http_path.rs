//! The `path` and `method` labels of HTTP metrics.

use std::borrow::Cow;
use std::sync::Arc;

use super::by_status::Remembered;
use super::pattern::{Patterns, normalize};
use super::{HttpMetricsConfig, MetricsError};

/// Paths that are always label values.
const AS_IS: [&str; 4] = ["/dapr/config", "/dapr/metrics", "/dapr/subscribe", "/healthz"];
const INVOKE: &str = "/v1.0/invoke/";

/// Maps request paths to label values of bounded cardinality.
#[derive(Debug, Default)]
pub struct HttpPathLabel {
    increased_cardinality: bool,
    exclude_verbs: bool,
    patterns: Patterns,
    /// Cached results of pattern matching, which is expensive.
    matched: Remembered<Arc<str>>,
}

impl HttpPathLabel {
    /// Compiles the configured patterns.
    ///
    /// # Errors
    /// On a malformed pattern.
    pub fn new(config: &HttpMetricsConfig) -> Result<Self, MetricsError> {
        let mut texts = Vec::with_capacity(config.path_matching.len() * 2);
        for pattern in &config.path_matching {
            let pattern = normalize(pattern);
            // Patterns also match an app's own path when it is called through service invocation.
            if !pattern.starts_with(INVOKE) {
                texts.push(format!("{INVOKE}{{app_id}}/method{pattern}"));
            }
            texts.push(pattern);
        }
        Ok(Self {
            increased_cardinality: config.increased_cardinality,
            exclude_verbs: config.exclude_verbs,
            patterns: Patterns::new(texts.iter().map(String::as_str))?,
            matched: Remembered::default(),
        })
    }

    /// Whether `dapr_http_server_response_count` exists.
    pub fn increased_cardinality(&self) -> bool {
        self.increased_cardinality
    }

    /// The `method` label.
    pub fn method(&self, method: &str) -> &'static str {
        if self.exclude_verbs {
            ""
        } else {
            method_label(method)
        }
    }

    /// The `path` label.
    pub fn label<'a>(&self, path: &'a str) -> Cow<'a, str> {
        // Methods of the app have no leading slash.
        if let Some(fixed) = AS_IS
            .into_iter()
            .find(|fixed| *fixed == path || fixed[1..] == *path)
        {
            return Cow::Borrowed(fixed);
        }
        if self.patterns.is_empty() {
            return if self.increased_cardinality {
                legacy(path)
            } else {
                Cow::Borrowed("")
            };
        }
        if path.is_empty() {
            return Cow::Borrowed("");
        }
        let label = self.matched.get(path, || self.match_path(path));
        Cow::Owned(label.as_ref().to_owned())
    }

    fn match_path(&self, path: &str) -> Arc<str> {
        if let Some(pattern) = self.patterns.find(path) {
            return pattern.into();
        }
        let reduced = legacy(path);
        if self.increased_cardinality {
            return reduced.into();
        }
        self.patterns.find(&reduced).unwrap_or_default().into()
    }
}

/// The verb, or `UNKNOWN` for a non-standard one.
pub fn method_label(method: &str) -> &'static str {
    const VERBS: [&str; 9] = [
        "GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE",
    ];
    VERBS
        .into_iter()
        .find(|verb| *verb == method)
        .unwrap_or("UNKNOWN")
}

/// Replaces the variable parts of known API paths.
fn legacy(path: &str) -> Cow<'_, str> {
    if path.is_empty() {
        return Cow::Borrowed(path);
    }
    let path = if path.starts_with('/') && !path.contains("//") {
        Cow::Borrowed(path)
    } else {
        Cow::Owned(normalize(path))
    };
    match reduce(&path) {
        Some(reduced) => Cow::Owned(reduced),
        None => path,
    }
}

/// `None` leaves the path unchanged. The sixth segment holds everything after the fifth slash.
fn reduce(path: &str) -> Option<String> {
    let parts: Vec<&str> = path[1..].splitn(6, '/').collect();
    if parts.len() < 3 {
        return None;
    }
    if parts[0] == "actors" {
        let rest: String = parts[3..].iter().flat_map(|part| ["/", part]).collect();
        return Some(format!("actors/{}/{{id}}{rest}", parts[1]));
    }
    let head = format!("/{}/{}/{}", parts[0], parts[1], parts[2]);
    match (parts[1], parts.len()) {
        ("state" | "secrets", _) => Some(head),
        ("actors", 5..) => Some(format!("{head}/{{id}}/{}", parts[4])),
        ("workflows", 4) => Some(format!("{head}/{{instanceId}}")),
        ("workflows", 5) if parts[4].starts_with("start") => Some(format!("{head}/{}/start", parts[3])),
        ("workflows", 6) if parts[4] == "raiseEvent" && !parts[5].is_empty() => {
            Some(format!("{head}/{{instanceId}}/raiseEvent/{{eventName}}"))
        }
        ("workflows", 5..) => Some(format!("{head}/{{instanceId}}/{}", parts[4])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(increased_cardinality: bool, patterns: &[&str]) -> HttpPathLabel {
        let path_matching = patterns.iter().map(|p| (*p).to_owned()).collect();
        HttpPathLabel::new(&HttpMetricsConfig {
            increased_cardinality,
            path_matching,
            exclude_verbs: false,
        })
        .unwrap()
    }

    #[test]
    fn legacy_reduction() {
        let label = label(true, &[]);
        for (path, expected) in [
            ("/v1.0/healthz", "/v1.0/healthz"),
            ("v1.0/healthz", "/v1.0/healthz"),
            ("//v1.0//state//store//key", "/v1.0/state/store"),
            ("/v1.0/state/store/key/more", "/v1.0/state/store"),
            ("/v1.0/secrets/vault/name", "/v1.0/secrets/vault"),
            ("actors/T/7/method/m", "actors/T/{id}/method/m"),
            ("/actors/T/7", "actors/T/{id}"),
            ("/v1.0/actors/T/7/state", "/v1.0/actors/T/{id}/state"),
            ("/v1.0/actors/T/7/timers/t/x", "/v1.0/actors/T/{id}/timers"),
            ("/v1.0/actors/T/7", "/v1.0/actors/T/7"),
            ("/v1.0/workflows/dapr/i1", "/v1.0/workflows/dapr/{instanceId}"),
            ("/v1.0/workflows/dapr/wf/start", "/v1.0/workflows/dapr/wf/start"),
            (
                "/v1.0/workflows/dapr/i1/pause",
                "/v1.0/workflows/dapr/{instanceId}/pause",
            ),
            (
                "/v1.0/workflows/dapr/i1/raiseEvent/ev",
                "/v1.0/workflows/dapr/{instanceId}/raiseEvent/{eventName}",
            ),
            ("/v1.0/invoke/app/method/a/b", "/v1.0/invoke/app/method/a/b"),
            ("", ""),
        ] {
            assert_eq!(label.label(path), expected, "{path}");
        }
    }

    #[test]
    fn low_cardinality_uses_fixed_paths_only() {
        let label = label(false, &[]);
        assert_eq!(label.label("/v1.0/state/store/key"), "");
        assert_eq!(label.label("/healthz"), "/healthz");
        assert_eq!(label.label("/dapr/config"), "/dapr/config");
        assert_eq!(label.label("dapr/config"), "/dapr/config");
    }

    #[test]
    fn patterns_match_invocations_too() {
        let label = label(
            false,
            &["/orders/{orderID}", "/v1.0/state/s/{key}", "/v1.0/secrets/s"],
        );
        assert_eq!(label.label("/orders/1"), "/orders/{orderID}");
        assert_eq!(
            label.label("/v1.0/invoke/a/method/orders/1"),
            "/v1.0/invoke/{app_id}/method/orders/{orderID}"
        );
        assert_eq!(label.label("/v1.0/state/s/k"), "/v1.0/state/s/{key}");
        assert_eq!(label.label("/v1.0/secrets/s/k"), "/v1.0/secrets/s");
        assert_eq!(label.label("/v1.0/healthz"), "");
    }

    #[test]
    fn increased_cardinality_reduces_unmatched_paths() {
        let label = label(true, &["/orders/{orderID}"]);
        assert_eq!(label.label("/orders/1"), "/orders/{orderID}");
        assert_eq!(label.label("orders/1"), "/orders/{orderID}");
        assert_eq!(label.label("/v1.0/state/s/k"), "/v1.0/state/s");
        assert_eq!(label.label("/v1.0/healthz"), "/v1.0/healthz");
    }

    #[test]
    fn verbs() {
        assert_eq!(label(true, &[]).method("PATCH"), "PATCH");
        assert_eq!(label(true, &[]).method("BREW"), "UNKNOWN");
        let config = HttpMetricsConfig {
            exclude_verbs: true,
            ..HttpMetricsConfig::default()
        };
        assert_eq!(HttpPathLabel::new(&config).unwrap().method("GET"), "");
    }
}
