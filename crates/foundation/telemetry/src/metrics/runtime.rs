//! Components and workload identity.

use super::{Counter, Family, Gauge, Registry};

/// `dapr_runtime_component_*` and `dapr_runtime_mtls_*`. Not recorded per request.
#[derive(Clone, Debug)]
pub struct RuntimeMetrics {
    loaded: Family<Counter, 0>,
    init: Family<Counter, 1>,
    init_fail: Family<Counter, 3>,
    mtls_init: Family<Counter, 0>,
    mtls_init_fail: Family<Counter, 1>,
    rotated: Family<Counter, 0>,
    rotated_fail: Family<Counter, 1>,
    certificate_expiry: Family<Gauge, 0>,
}

impl RuntimeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            loaded: registry.counter("runtime_component_loaded", "Components loaded.", []),
            init: registry.counter(
                "runtime_component_init_total",
                "Components initialised.",
                ["component"],
            ),
            init_fail: registry.counter(
                "runtime_component_init_fail_total",
                "Components that failed to initialise.",
                ["component", "reason", "componentName"],
            ),
            mtls_init: registry.counter("runtime_mtls_init_total", "Workload identities obtained.", []),
            mtls_init_fail: registry.counter(
                "runtime_mtls_init_fail_total",
                "Failures to obtain the workload identity.",
                ["reason"],
            ),
            rotated: registry.counter(
                "runtime_mtls_workload_cert_rotated_total",
                "Workload certificates renewed.",
                [],
            ),
            rotated_fail: registry.counter(
                "runtime_mtls_workload_cert_rotated_fail_total",
                "Failures to renew the workload certificate.",
                ["reason"],
            ),
            certificate_expiry: registry.gauge(
                "runtime_mtls_workload_cert_expiry_timestamp",
                "End of validity of the workload certificate, in seconds since 1970.",
                [],
            ),
        }
    }

    /// Counts a component loaded from a resource.
    pub fn component_loaded(&self) {
        self.loaded.with([]).inc();
    }

    /// Counts an initialized component of this type (`state.redis`).
    pub fn component_initialized(&self, component_type: &str) {
        self.init.with([component_type]).inc();
    }

    /// Counts a failed component; `reason` is `creation` or `init`.
    pub fn component_init_failed(&self, component_type: &str, reason: &str, name: &str) {
        self.init_fail.with([component_type, reason, name]).inc();
    }

    /// Counts an obtained workload identity.
    pub fn mtls_initialized(&self) {
        self.mtls_init.with([]).inc();
    }

    /// Counts a failure to obtain the workload identity.
    pub fn mtls_init_failed(&self, reason: &str) {
        self.mtls_init_fail.with([reason]).inc();
    }

    /// Counts a renewed workload certificate.
    pub fn certificate_rotated(&self) {
        self.rotated.with([]).inc();
    }

    /// Sets the expiry of the current workload certificate, in seconds since 1970.
    pub fn certificate_expires(&self, at: i64) {
        self.certificate_expiry.with([]).set(at);
    }

    /// Counts a failed renewal: `sentry_conn`, `sentry_token`, `sign`, `invalid_ts`, `jwt_parse`,
    /// `jwt_aud`.
    pub fn certificate_rotation_failed(&self, reason: &str) {
        self.rotated_fail.with([reason]).inc();
    }
}
