//! Translates the sidecar's settings to those of other crates.

use std::sync::Arc;

#[cfg(feature = "pluggable")]
use outrigger_components::pluggable;
use outrigger_resources::configuration::Configuration;
use outrigger_telemetry::apilog::ApiLog;
use outrigger_telemetry::export;
use outrigger_telemetry::metrics::{HttpMetricsConfig, LabelRewrite, MetricsConfig, RewriteRule};

use super::LOG;
use crate::config::{Config, Mode};

/// Timeout for a component's socket without a listener.
#[cfg(feature = "pluggable")]
const DISCOVERY: std::time::Duration = std::time::Duration::from_secs(10);

#[cfg(feature = "pluggable")]
pub(super) fn pluggable_components(config: &Config) -> pluggable::Options {
    pluggable::Options {
        folder: config.resources.pluggable_sockets.clone(),
        in_pod: config.mode == Mode::Kubernetes,
        wait: DISCOVERY,
        max_value: config.api.max_body_size.unwrap_or(usize::MAX),
    }
}

pub(super) fn host_address(config: &Config) -> String {
    let listen = &config.internal.listen_address;
    if outrigger_accept::address::is_localhost(listen) {
        return listen.clone();
    }
    outrigger_accept::address::host_address(config.workload.host_ip.as_deref()).unwrap_or_else(|error| {
        match config.mode {
            // The machine has no network.
            Mode::Standalone => tracing::info!(target: LOG, "this sidecar is known as 127.0.0.1: {error}"),
            Mode::Kubernetes => tracing::error!(target: LOG, "failed to determine host address: {error}"),
        }
        "127.0.0.1".to_owned()
    })
}

pub(super) fn host_name() -> String {
    hostname::get()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

pub(super) fn api_log(config: &Config, settings: &Configuration) -> ApiLog {
    ApiLog {
        enabled: config.api.api_logging.unwrap_or(settings.api_logging.enabled),
        obfuscate_urls: settings.api_logging.obfuscate_urls,
        omit_health_checks: settings.api_logging.omit_health_checks,
    }
}

pub(super) fn metrics_config(config: &Config, settings: &Configuration) -> MetricsConfig {
    let given = &settings.metrics;
    if given.http.increased_cardinality.is_none() {
        tracing::info!(
            target: LOG,
            "metrics: spec.metrics.http.increasedCardinality is not set and defaults to true; set it to false to \
             bound the number of HTTP series"
        );
    }
    // Tools match the text.
    let shown = serde_json::json!({
        "enabled": given.enabled,
        "recordErrorCodes": given.record_error_codes,
        "http": {
            "increasedCardinality": given.http.legacy_paths(),
            "pathMatching": given.http.path_matching,
            "excludeVerbs": given.http.exclude_verbs,
        },
        "latencyDistributionBuckets": given.latency_buckets,
    });
    tracing::info!(target: LOG, "metric spec: {shown}");
    let rules = given.rules.iter().map(|rule| RewriteRule {
        name: rule.name.clone(),
        labels: rule
            .labels
            .iter()
            .map(|label| LabelRewrite {
                name: label.name.clone(),
                regex: label.regex.iter().map(|(r, p)| (r.clone(), p.clone())).collect(),
            })
            .collect(),
    });
    MetricsConfig {
        app_id: config.app_id.clone(),
        namespace: config.workload.namespace_raw().to_owned(),
        enabled: given.enabled,
        record_error_codes: given.record_error_codes,
        latency_buckets_ms: given
            .latency_buckets
            .iter()
            .filter_map(|b| u64::try_from(*b).ok())
            .collect(),
        // Increased cardinality has a series per path and bucket, so it gets the coarse buckets.
        fine_latency: given.http.increased_cardinality != Some(true),
        http: HttpMetricsConfig {
            increased_cardinality: given.http.legacy_paths(),
            path_matching: given.http.path_matching.clone(),
            exclude_verbs: given.http.exclude_verbs,
        },
        rules: rules.collect(),
        ..MetricsConfig::default()
    }
}

pub(super) fn tracing_config(settings: &Configuration) -> export::TracingConfig {
    let given = &settings.tracing;
    export::TracingConfig {
        sampling_rate: given.sampling_rate.clone(),
        stdout: given.stdout,
        zipkin_endpoint: given.zipkin_endpoint.clone(),
        otel: export::OtelConfig {
            endpoint: given.otel.endpoint.clone(),
            protocol: given.otel.protocol.clone(),
            is_secure: Some(given.otel.secure),
            headers: given
                .otel
                .headers
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect(),
            timeout: given.otel.timeout,
        },
    }
}

pub(super) fn resolver(
    config: &Config,
    settings: &Configuration,
    host: String,
    internal_port: u16,
) -> (
    outrigger_discovery::Options,
    tokio::sync::mpsc::Receiver<outrigger_discovery::FatalError>,
) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let given = &settings.name_resolution;
    let component = if given.component.is_empty() {
        outrigger_discovery::default_component(config.mode == Mode::Kubernetes).to_owned()
    } else {
        given.component.clone()
    };
    let options = outrigger_discovery::Options {
        component,
        version: given.version.clone(),
        configuration: given.configuration.clone(),
        registration: outrigger_discovery::Registration {
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace_or_default().to_owned(),
            host_address: host,
            internal_port,
            http_port: config.api.http_port,
            app_port: config.app.port,
            instance: None,
        },
        on_fatal: Arc::new(move |error| {
            // A second report is dropped: the first one ends the process.
            let _full = sender.try_send(error);
        }),
    };
    (options, receiver)
}
