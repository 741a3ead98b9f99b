//! API errors by code.

use super::{Counter, Family, Registry};

/// `dapr_error_code_total`, recorded only with `recordErrorCodes`.
#[derive(Clone, Debug)]
pub struct ErrorCodeMetrics {
    total: Family<Counter, 2>,
}

impl ErrorCodeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            total: registry.counter(
                "error_code_total",
                "API errors by code.",
                ["error_code", "category"],
            ),
        }
    }

    /// Counts a failed API call by its `errorCode`. `category` is one of the contract's list: `state`,
    /// `pubsub`, `service-invocation` and so on.
    pub fn failed(&self, error_code: &str, category: &str) {
        if self.total.is_enabled() {
            self.total.with([error_code, category]).inc();
        }
    }
}
