//! `metric` and `metrics`: recorded metrics and their labels.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The effective metric settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Record Dapr's metric families; the server runs in any case.
    pub enabled: bool,
    /// Count error codes.
    pub record_error_codes: bool,
    /// Upper bounds of latency histograms in milliseconds; empty means the default.
    pub latency_buckets: Vec<i64>,
    /// Labels of HTTP metrics.
    pub http: HttpMetrics,
    /// Label rewriting.
    pub rules: Vec<MetricRule>,
}

impl Default for Metrics {
    fn default() -> Self {
        Raw::default().finish(Raw::default())
    }
}

/// `http` of the metric settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpMetrics {
    /// Legacy path labels; `None` (unset) means true and logs a warning.
    pub increased_cardinality: Option<bool>,
    /// Path patterns.
    pub path_matching: Vec<String>,
    /// Leave the `method` label empty.
    pub exclude_verbs: bool,
}

impl HttpMetrics {
    /// Whether legacy path labels are used.
    pub fn legacy_paths(&self) -> bool {
        self.increased_cardinality.unwrap_or(true)
    }
}

/// Label rewriting for one metric.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MetricRule {
    /// Metric, with or without `dapr_`.
    pub name: String,
    /// The labels that are rewritten.
    pub labels: Vec<LabelRule>,
}

/// Rewriting of one label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LabelRule {
    /// Label.
    pub name: String,
    /// Replacement to pattern.
    pub regex: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    enabled: Option<bool>,
    record_error_codes: Option<bool>,
    latency_distribution_buckets: Option<Vec<i64>>,
    http: Option<HttpMetrics>,
    rules: Vec<MetricRule>,
}

impl Raw {
    /// `self` is `metric`, `newer` is `metrics`.
    pub(super) fn finish(self, newer: Raw) -> Metrics {
        let buckets = newer
            .latency_distribution_buckets
            .or(self.latency_distribution_buckets);
        Metrics {
            enabled: newer.enabled.or(self.enabled).unwrap_or(true),
            record_error_codes: newer
                .record_error_codes
                .or(self.record_error_codes)
                .unwrap_or(false),
            latency_buckets: buckets.unwrap_or_default(),
            http: newer.http.or(self.http).unwrap_or_default(),
            rules: if newer.rules.is_empty() {
                self.rules
            } else {
                newer.rules
            },
        }
    }
}
