//! What is known of a Configuration's values where they are used.

/// What is wrong with a value, if anything.
pub type Check = fn(&str) -> Option<String>;

/// What this crate is told of values that others use: those that mean nothing are found where they are read, with their
/// lines. By default nothing is known, and nothing of it is wrong.
#[derive(Debug, Clone)]
pub struct ValueChecks {
    /// The parts of the API, as `spec.api` may name them; none: names in it are not looked at.
    pub apis: Vec<&'static str>,
    /// The resolvers that `spec.nameResolution.component` may name; as above.
    pub resolvers: Vec<&'static str>,
    /// `spec.tracing.zipkin.endpointAddress`.
    pub zipkin_url: Check,
    /// `spec.tracing.otel.endpointAddress`.
    pub otlp_endpoint: Check,
    /// `spec.tracing.otel.headers`: one as `name=value`. What it says does not repeat the value, which may be a secret.
    pub otlp_header: Check,
    /// A regular expression of `spec.metrics.rules`.
    pub regex: Check,
    /// A pattern of `spec.metrics.http.pathMatching`.
    pub path_pattern: Check,
}

impl Default for ValueChecks {
    fn default() -> Self {
        let any: Check = |_| None;
        Self {
            apis: Vec::new(),
            resolvers: Vec::new(),
            zipkin_url: any,
            otlp_endpoint: any,
            otlp_header: any,
            regex: any,
            path_pattern: any,
        }
    }
}
