//! Validators for Configuration values that other crates use.

/// Returns the error in a value, if any.
pub type Check = fn(&str) -> Option<String>;

/// Validators for values that other crates use, so that invalid ones are reported with their lines. The
/// default accepts everything.
#[derive(Debug, Clone)]
pub struct ValueChecks {
    /// The API names valid in `spec.api`; empty accepts all.
    pub apis: Vec<&'static str>,
    /// The resolvers valid in `spec.nameResolution.component`; empty accepts all.
    pub resolvers: Vec<&'static str>,
    /// `spec.tracing.zipkin.endpointAddress`.
    pub zipkin_url: Check,
    /// `spec.tracing.otel.endpointAddress`.
    pub otlp_endpoint: Check,
    /// `spec.tracing.otel.headers`: one entry as `name=value`. The error must not repeat the value, which
    /// may be a secret.
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
