//! The values of a Configuration that the sidecar's crates support.

use outrigger_resources::configuration::ValueChecks;
use outrigger_telemetry::{export, metrics};

/// Finds unsupported values.
pub(crate) fn value_checks() -> ValueChecks {
    ValueChecks {
        apis: outrigger_api::parts(),
        resolvers: outrigger_discovery::REGISTERED.to_vec(),
        zipkin_url: export::wrong::zipkin_url,
        otlp_endpoint: export::wrong::otlp_endpoint,
        otlp_header: export::wrong::otlp_header,
        regex: metrics::wrong_regex,
        path_pattern: metrics::wrong_pattern,
    }
}
