//! Configuration of metrics (`spec.metric`, `spec.metrics`).

use super::pattern::PatternError;

/// Default maximum number of series of a family.
const MAX_SERIES: usize = 2048;

/// Metrics settings; the resources crate fills them from a Configuration.
#[derive(Clone, Debug)]
pub struct MetricsConfig {
    /// Value of the `app_id` label.
    pub app_id: String,
    /// Value of the `namespace` label where a family has one.
    pub namespace: String,
    /// `enabled`.
    pub enabled: bool,
    /// `recordErrorCodes`.
    pub record_error_codes: bool,
    /// `latencyDistributionBuckets` in milliseconds; empty selects the default list.
    pub latency_buckets_ms: Vec<u64>,
    /// Whether the default list has buckets below a millisecond.
    pub fine_latency: bool,
    /// `http`.
    pub http: HttpMetricsConfig,
    /// `rules`.
    pub rules: Vec<RewriteRule>,
    /// Series per family, beyond which new label values are counted as `other`.
    pub max_series: usize,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            app_id: String::new(),
            namespace: String::new(),
            enabled: true,
            record_error_codes: false,
            latency_buckets_ms: Vec::new(),
            fine_latency: true,
            http: HttpMetricsConfig::default(),
            rules: Vec::new(),
            max_series: MAX_SERIES,
        }
    }
}

/// How HTTP labels are built (`http`).
#[derive(Clone, Debug)]
pub struct HttpMetricsConfig {
    /// `increasedCardinality`.
    pub increased_cardinality: bool,
    /// `pathMatching`: patterns in the syntax of Go's ServeMux.
    pub path_matching: Vec<String>,
    /// `excludeVerbs`: leave the `method` label empty.
    pub exclude_verbs: bool,
}

impl Default for HttpMetricsConfig {
    fn default() -> Self {
        Self {
            increased_cardinality: true,
            path_matching: Vec::new(),
            exclude_verbs: false,
        }
    }
}

/// Rewrites label values of one metric.
#[derive(Clone, Debug, Default)]
pub struct RewriteRule {
    /// Metric name, with or without `dapr_`; `_` and `/` are equivalent.
    pub name: String,
    /// Rewrites per label.
    pub labels: Vec<LabelRewrite>,
}

/// Rewrites the values of one label.
#[derive(Clone, Debug, Default)]
pub struct LabelRewrite {
    /// Label name.
    pub name: String,
    /// Pairs of a replacement (with groups as `$1`) and a regular expression.
    pub regex: Vec<(String, String)>,
}

/// Errors of a metrics configuration.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A rewrite rule's regular expression does not compile.
    #[error("failed to compile regex for rule {metric}/{label}/{replacement}: {source}")]
    Regex {
        /// Metric of the rule.
        metric: String,
        /// Label of the rule.
        label: String,
        /// Replacement that belongs to the expression.
        replacement: String,
        /// The compiler's message.
        source: Box<regex::Error>,
    },
    /// A path pattern is malformed.
    #[error("invalid metrics path pattern: {0}")]
    Pattern(#[from] PatternError),
    /// The latency buckets are not ascending.
    #[error("latencyDistributionBuckets must be ascending: {0} is followed by {1}")]
    Buckets(u64, u64),
}
