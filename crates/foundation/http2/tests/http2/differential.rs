//! The same conversations with both implementations of the boundary: recorded ones and random ones. What happens is the
//! same, except for the differences that are listed with their reasons.
mod client;
mod random;
mod server;
mod wire;

use std::time::Duration;

use outrigger_http2::{Config, KeepAlive, Timeouts};

/// Time is paused: it passes when nobody has anything to do.
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

async fn settle() {
    tokio::time::sleep(SETTLED).await;
}

/// What differs without a reason, or does not differ although there is one.
fn difference<E: PartialEq + std::fmt::Debug>(
    name: &str,
    native: &E,
    hyper: &E,
    allowed: &[(&str, &str)],
) -> Option<String> {
    let listed = allowed.iter().find(|(known, _)| *known == name);
    match listed {
        None if native != hyper => Some(format!("{name}\nnative: {native:?}\nhyper: {hyper:?}")),
        Some((_, reason)) if native == hyper => Some(format!("{name} does not differ any more: {reason}")),
        _ => None,
    }
}

#[track_caller]
fn assert_same(differences: impl Iterator<Item = Option<String>>) {
    let differences: Vec<_> = differences.flatten().collect();
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}
