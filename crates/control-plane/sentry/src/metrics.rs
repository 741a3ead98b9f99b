//! The metrics of the authority, with Dapr's names.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::rotation::Status;

/// Counters and gauges of one sentry.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: AtomicU64,
    successes: AtomicU64,
    failures: AtomicU64,
    own_failures: AtomicU64,
    issuer_changes: AtomicU64,
    issuer_expiry: AtomicI64,
    rotation_phase: AtomicI64,
    rotation_next: AtomicI64,
}

impl Metrics {
    /// Counts a certificate request.
    pub(crate) fn request_received(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Counts an issued certificate.
    pub(crate) fn request_succeeded(&self) {
        self.successes.fetch_add(1, Relaxed);
    }

    /// Counts a refused request.
    pub(crate) fn request_failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Counts a failure to issue sentry's own certificate.
    pub(crate) fn own_certificate_failed(&self) {
        self.own_failures.fetch_add(1, Relaxed);
    }

    /// Counts a new or replaced CA.
    pub(crate) fn issuer_changed(&self) {
        self.issuer_changes.fetch_add(1, Relaxed);
    }

    /// Sets the expiry of the issuer's certificate, in seconds since 1970.
    pub(crate) fn issuer_expires(&self, at: i64) {
        self.issuer_expiry.store(at, Relaxed);
    }

    /// Sets the state of the rotation.
    pub(crate) fn rotation(&self, status: Status) {
        self.rotation_phase.store(status.number(), Relaxed);
        self.rotation_next.store(status.due(), Relaxed);
    }

    /// Renders the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, labels: &str, value: i128| {
            let _ = writeln!(
                out,
                "# HELP dapr_sentry_{name} {help}\n# TYPE dapr_sentry_{name} {kind}\n\
                 dapr_sentry_{name}{labels} {value}"
            );
        };
        let read = |counter: &AtomicU64| i128::from(counter.load(Relaxed));
        family(
            "cert_sign_request_received_total",
            "counter",
            "Certificate signing requests received.",
            "",
            read(&self.requests),
        );
        family(
            "cert_sign_success_total",
            "counter",
            "Certificates issued.",
            "",
            read(&self.successes),
        );
        family(
            "cert_sign_failure_total",
            "counter",
            "Certificate signing requests that failed.",
            "{reason=\"sign\"}",
            read(&self.failures),
        );
        family(
            "servercert_issue_failed_total",
            "counter",
            "Failed attempts to issue the certificate of this server.",
            "",
            read(&self.own_failures),
        );
        family(
            "issuercert_changed_total",
            "counter",
            "Times the issuer certificate was generated or replaced.",
            "",
            read(&self.issuer_changes),
        );
        family(
            "issuercert_expiry_timestamp",
            "gauge",
            "End of validity of the issuer certificate, in seconds since 1970.",
            "",
            i128::from(self.issuer_expiry.load(Relaxed)),
        );
        family(
            "ca_rotation_phase",
            "gauge",
            "Rotation of the CA: 0 off, 1 normal, 2 both roots are trusted, 3 the new issuer signs.",
            "",
            i128::from(self.rotation_phase.load(Relaxed)),
        );
        family(
            "ca_rotation_next_timestamp",
            "gauge",
            "When the next step of the CA's rotation is due, in seconds since 1970; 0 for never.",
            "",
            i128::from(self.rotation_next.load(Relaxed)),
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_metric() {
        let metrics = Metrics::default();
        metrics.request_received();
        metrics.request_received();
        metrics.request_succeeded();
        metrics.request_failed();
        metrics.issuer_changed();
        metrics.issuer_expires(1_800_000_000);
        metrics.rotation(Status::Foreign);
        let text = metrics.render();
        for line in [
            "# TYPE dapr_sentry_cert_sign_request_received_total counter",
            "dapr_sentry_cert_sign_request_received_total 2",
            "dapr_sentry_cert_sign_success_total 1",
            "dapr_sentry_cert_sign_failure_total{reason=\"sign\"} 1",
            "dapr_sentry_servercert_issue_failed_total 0",
            "dapr_sentry_issuercert_changed_total 1",
            "# TYPE dapr_sentry_issuercert_expiry_timestamp gauge",
            "dapr_sentry_issuercert_expiry_timestamp 1800000000",
            "# TYPE dapr_sentry_ca_rotation_phase gauge",
            "dapr_sentry_ca_rotation_phase 0",
            "dapr_sentry_ca_rotation_next_timestamp 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
