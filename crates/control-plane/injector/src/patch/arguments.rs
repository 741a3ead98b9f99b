//! The command line of the sidecar.

use outrigger_kube::annotations::{
    Annotations, CONFIG, DEFAULT_GRPC_PORT, DEFAULT_INTERNAL_GRPC_PORT, DEFAULT_METRICS_PORT, ENABLE_METRICS,
    GRPC_PORT, HTTP_PORT, INTERNAL_GRPC_PORT, METRICS_PORT,
};

use super::container::PUBLIC_PORT;
use super::volumes::SOCKET_FOLDER;
use super::{BLOCK_SHUTDOWN, PatchContext, Pod};
use crate::config::Settings;

/// The arguments so far.
struct Arguments<'a> {
    list: Vec<String>,
    annotations: Annotations<'a>,
}

impl Arguments<'_> {
    fn flag(&mut self, flag: &str) {
        self.list.push(format!("--{flag}"));
    }

    fn with(&mut self, flag: &str, value: impl ToString) {
        self.flag(flag);
        self.list.push(value.to_string());
    }

    /// Adds a flag with a number, from its annotation or the default.
    fn number(&mut self, flag: &str, annotation: &str, default: i32) {
        let value = self.annotations.number(annotation).unwrap_or(default);
        self.with(flag, value);
    }

    /// Adds a flag with a text, from its annotation or the default.
    fn text(&mut self, flag: &str, annotation: &str, default: &str) {
        let value = self.annotations.text(annotation).unwrap_or(default).to_owned();
        self.with(flag, value);
    }

    /// Adds a flag with a text, if it is annotated.
    fn given(&mut self, flag: &str, annotation: &str) {
        if let Some(value) = self
            .annotations
            .text(annotation)
            .filter(|value| !value.is_empty())
        {
            let value = value.to_owned();
            self.with(flag, value);
        }
    }

    /// Adds a flag with a number, if it is annotated.
    fn given_number(&mut self, flag: &str, annotation: &str) {
        if let Some(value) = self.annotations.number(annotation) {
            self.with(flag, value);
        }
    }

    /// Adds a switch, if its annotation is true.
    fn switch(&mut self, flag: &str, annotation: &str) {
        if self.annotations.boolean(annotation, false) {
            self.flag(flag);
        }
    }
}

/// The arguments, in Dapr's order. A native sidecar is stopped after its app, so it need not wait for the
/// app.
pub(super) fn arguments(pod: &Pod, settings: &Settings, context: &PatchContext, native: bool) -> Vec<String> {
    let annotations = Annotations(pod.annotations());
    let mut args = Arguments {
        list: Vec::with_capacity(64),
        annotations,
    };
    always(&mut args, pod, settings);
    if let Some(port) = annotations.number("dapr.io/app-port").filter(|port| *port > 0) {
        args.with("app-port", port);
    }
    if annotations.boolean(ENABLE_METRICS, true) {
        args.flag("enable-metrics");
        args.number("metrics-port", METRICS_PORT, DEFAULT_METRICS_PORT);
    }
    args.given("config", CONFIG);
    args.given("app-channel-address", "dapr.io/app-channel-address");
    services(&mut args, settings);
    args.given(
        "sentry-request-jwt-audiences",
        "dapr.io/sentry-request-jwt-audiences",
    );
    if let Some(text) = annotations.text("dapr.io/enable-api-logging") {
        let on = outrigger_kube::annotations::is_truthy(text);
        args.list.push(format!("--enable-api-logging={on}"));
    }
    args.switch(
        "disable-builtin-k8s-secret-store",
        "dapr.io/disable-builtin-k8s-secret-store",
    );
    health(&mut args);
    args.given(
        "app-binding-options-timeout",
        "dapr.io/app-binding-options-timeout",
    );
    args.switch("log-as-json", "dapr.io/log-as-json");
    args.switch("enable-profiling", "dapr.io/enable-profiling");
    if context.mtls {
        args.flag("enable-mtls");
    }
    args.switch("app-ssl", "dapr.io/app-ssl");
    limits(&mut args, native);
    match address(annotations, "dapr.io/scheduler-host-address") {
        // An empty address counts too: it disables the scheduler.
        Some(address) => args.with("scheduler-host-address", address),
        None if settings.scheduler => {
            args.with(
                "scheduler-host-address",
                settings.address("dapr-scheduler-server-a", 443),
            );
        }
        None => {}
    }
    if let Some(endpoints) = annotations.text("dapr.io/disable-init-endpoints") {
        args.with("disable-init-endpoints", endpoints);
    }
    args.list
}

/// The arguments of every sidecar.
fn always(args: &mut Arguments<'_>, pod: &Pod, settings: &Settings) {
    args.with("dapr-http-port", HTTP_PORT);
    args.number("dapr-grpc-port", GRPC_PORT, DEFAULT_GRPC_PORT);
    args.number(
        "dapr-internal-grpc-port",
        INTERNAL_GRPC_PORT,
        DEFAULT_INTERNAL_GRPC_PORT,
    );
    args.text(
        "dapr-listen-addresses",
        "dapr.io/sidecar-listen-addresses",
        "[::1],127.0.0.1",
    );
    args.with("dapr-public-port", PUBLIC_PORT);
    args.with("app-id", pod.app_id());
    args.text("app-protocol", "dapr.io/app-protocol", "http");
    args.text("log-level", "dapr.io/log-level", "info");
    args.number(
        "dapr-graceful-shutdown-seconds",
        "dapr.io/graceful-shutdown-seconds",
        -1,
    );
    args.with("mode", "kubernetes");
    args.with("control-plane-address", settings.address("dapr-api", 443));
    args.with("sentry-address", settings.address("dapr-sentry", 443));
}

/// Sizes and times, and the API sockets.
fn limits(args: &mut Arguments<'_>, native: bool) {
    let annotations = args.annotations;
    args.given_number("app-max-concurrency", "dapr.io/app-max-concurrency");
    args.given_number("dapr-http-max-request-size", "dapr.io/http-max-request-size");
    args.given("max-body-size", "dapr.io/max-body-size");
    args.given_number("dapr-http-read-buffer-size", "dapr.io/http-read-buffer-size");
    args.given("read-buffer-size", "dapr.io/read-buffer-size");
    if annotations
        .text(super::volumes::SOCKET)
        .is_some_and(|path| !path.is_empty())
    {
        args.with("unix-domain-socket", SOCKET_FOLDER);
    }
    if let Some(duration) = annotations.text(BLOCK_SHUTDOWN).filter(|_| !native) {
        args.with("dapr-block-shutdown-duration", duration);
    }
}

/// The actors and reminders services. An annotation always wins.
fn services(args: &mut Arguments<'_>, settings: &Settings) {
    let annotated = address(args.annotations, "dapr.io/placement-host-address");
    match (&annotated, &settings.actors) {
        (Some(address), _) if !address.is_empty() => args.with("placement-host-address", address),
        (None, Some(actors)) if actors.kind == "placement" => {
            args.with(
                "placement-host-address",
                settings.address(&actors.host, actors.port),
            );
        }
        (_, Some(actors)) if actors.kind != "placement" => {
            let address = settings.address(&actors.host, actors.port);
            args.with("actors-service", format!("{}:{address}", actors.kind));
        }
        _ => {}
    }
    args.given("actors-disseminate-timeout", "dapr.io/actors-disseminate-timeout");
    args.switch("actors-handover", "dapr.io/actors-handover");
    if let Some(reminders) = &settings.reminders {
        let address = settings.address(&reminders.host, reminders.port);
        args.with("reminders-service", format!("{}:{address}", reminders.kind));
    }
}

fn health(args: &mut Arguments<'_>) {
    if args.annotations.boolean("dapr.io/enable-app-health-check", false) {
        args.flag("enable-app-health-check");
        args.text(
            "app-health-check-path",
            "dapr.io/app-health-check-path",
            "/healthz",
        );
        args.number(
            "app-health-probe-interval",
            "dapr.io/app-health-probe-interval",
            5,
        );
        args.number(
            "app-health-probe-timeout",
            "dapr.io/app-health-probe-timeout",
            500,
        );
        args.number("app-health-threshold", "dapr.io/app-health-threshold", 3);
    }
}

/// An address without the quotes and blanks that templates leave around it.
fn address<'a>(annotations: Annotations<'a>, name: &str) -> Option<&'a str> {
    Some(annotations.text(name)?.trim_matches(['"', '\'']).trim())
}
