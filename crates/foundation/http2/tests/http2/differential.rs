//! Recorded and random conversations with our HTTP/2 and with that of hyper and h2. The outcomes must be
//! equal, except for listed differences with their reasons.
mod client;
mod oracle;
mod random;
mod server;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use outrigger_http2::{Config, Incoming, KeepAlive, StreamError, Timeouts};

type AnyBody<E> = UnsyncBoxBody<Bytes, E>;

/// Time is paused: this passes when all tasks are idle.
const SETTLED: Duration = Duration::from_millis(10);
const CONFIG: Config = Config {
    stream_window: 65_535,
    connection_window: 65_535,
    max_streams: 8,
    header_list: 4096,
    ..Config::DEFAULT
};
const TIMEOUTS: Timeouts = Timeouts {
    preface: Duration::from_secs(60),
    keep_alive: KeepAlive {
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
    },
};

fn run<F: Future>(conversation: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(conversation)
}

fn full<E>(data: impl Into<Bytes>) -> AnyBody<E> {
    Full::new(data.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// The body of a received message, if any.
fn received(body: Incoming) -> Option<AnyBody<StreamError>> {
    match body {
        Incoming::Empty => None,
        Incoming::Full(data) => Some(full(data)),
        Incoming::Stream(body) => Some(body.boxed_unsync()),
    }
}

async fn settle() {
    tokio::time::sleep(SETTLED).await;
}

/// Reports a difference without a listed reason, or a listed reason without a difference.
fn difference<E: PartialEq + std::fmt::Debug>(
    name: &str,
    ours: &E,
    hyper: &E,
    allowed: &[(&str, &str)],
) -> Option<String> {
    let listed = allowed.iter().find(|(known, _)| *known == name);
    match listed {
        None if ours != hyper => Some(format!("{name}\nours: {ours:?}\nhyper: {hyper:?}")),
        Some((_, reason)) if ours == hyper => Some(format!("{name} does not differ any more: {reason}")),
        _ => None,
    }
}

#[track_caller]
fn assert_same(differences: impl Iterator<Item = Option<String>>) {
    let differences: Vec<_> = differences.flatten().collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}
