//! Chains of the proxies installed on this machine, in front of the benchmark's app. They are peers to
//! compare with and not required: if one is missing, its test is skipped.

use rcgen::ExtendedKeyUsagePurpose;

use super::super::envoy::{Envoy, version};
use super::super::nginx::{self, Nginx};
use super::super::{ECHO, UNARY, attempt};
use super::*;
use crate::app::{self, Ports};
use crate::load::Call;

const STRANGER: &str = "stranger.bench";

fn nginx() -> Option<Box<dyn Product>> {
    if nginx::version().is_none() {
        outrigger_testing::skip::skip_optional("nginx is not installed: apt-get install nginx-light");
        return None;
    }
    Some(Box::new(Nginx { workers: 1 }))
}

/// The binary from `conformance/build envoy`, or one on the PATH.
fn envoy() -> Option<Box<dyn Product>> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../conformance/cache");
    let printed = std::process::Command::new(cache).output().unwrap();
    let folder = PathBuf::from(String::from_utf8(printed.stdout).unwrap().trim());
    let found = [folder.join("bin/envoy"), PathBuf::from("envoy")]
        .into_iter()
        .find(|program| version(program).is_some());
    let Some(program) = found else {
        outrigger_testing::skip::skip_optional("Envoy is not there: conformance/build envoy");
        return None;
    };
    Some(Box::new(Envoy { program, workers: 1 }))
}

/// Starts the app for the duration of the test.
fn app() -> Ports {
    let [http, grpc] = free_ports();
    let ports = Ports { http, grpc };
    let served = ports.clone();
    tokio::spawn(async move { app::serve(&served).await });
    ports
}

async fn chain(product: Box<dyn Product>, protocol: Protocol, app: &Ports, dir: &Path) -> Proxies {
    let port = match protocol {
        Protocol::Http => app.http,
        _ => app.grpc,
    };
    Proxies::start(product, protocol, port, dir).await.unwrap()
}

fn call(protocol: Protocol, port: u16) -> Call {
    match protocol {
        Protocol::Http => Call::post(port, ECHO, 1024),
        Protocol::Grpc => Call::on_invoke(port, 1024),
        _ => Call::unary(port, UNARY, 1024),
    }
    .unwrap()
}

/// Every kind of call is echoed; the callee rejects clients without a certificate.
async fn carries_calls(product: impl Fn() -> Option<Box<dyn Product>>) {
    let app = app();
    for protocol in Protocol::INVOCATION {
        let Some(product) = product() else { return };
        let dir = tempfile::tempdir().unwrap();
        let mut chain = chain(product, protocol, &app, dir.path()).await;
        let through = call(protocol, chain.port());
        chain.caller().process.ready(|| attempt(&through)).await.unwrap();
        let health = Call::get(chain.caller().health, "/healthz").unwrap();
        attempt(&health).await.unwrap();
        let around = call(protocol, chain.callee.port);
        let refused = attempt(&around).await;
        assert!(refused.is_err(), "{protocol:?}");
        // The hop rejects it, and is still running.
        attempt(&through).await.unwrap();
        chain.stop().await.unwrap();
    }
}

#[tokio::test]
async fn nginx_forwards_all_calls() {
    carries_calls(nginx).await;
}

#[tokio::test]
async fn envoy_forwards_all_calls() {
    carries_calls(envoy).await;
}

#[tokio::test]
async fn envoy_admits_only_caller_to_one_path() {
    for (protocol, refusal) in [(Protocol::Http, "status 403"), (Protocol::Proxy, "grpc-status 7")] {
        let Some(product) = envoy() else { return };
        let (app, dir) = (app(), tempfile::tempdir().unwrap());
        let mut chain = chain(product, protocol, &app, dir.path()).await;
        let allowed = call(protocol, chain.port());
        chain.caller().process.ready(|| attempt(&allowed)).await.unwrap();

        let elsewhere = match protocol {
            Protocol::Http => Call::post(chain.port(), "/echo/more", 0),
            _ => Call::unary(chain.port(), "/fgrpc.PingServer/Other", 0),
        };
        let refused = attempt(&elsewhere.unwrap()).await.unwrap_err();
        assert!(refused.contains(refusal), "{refused}");

        // Of the same authority: the certificate is valid, but has another name than the caller's.
        let maker = &mut chain.maker;
        maker
            .certificates
            .add(STRANGER, ExtendedKeyUsagePurpose::ClientAuth)
            .unwrap();
        let prepared = maker.prepare(Side::Caller, STRANGER, chain.callee.port).unwrap();
        let mut stranger = prepared.start().unwrap();
        stranger.process.listening(stranger.port).await.unwrap();
        let refused = attempt(&call(protocol, stranger.port)).await.unwrap_err();
        assert!(refused.contains(refusal), "{refused}");

        attempt(&allowed).await.unwrap();
        stranger.process.stop().await.unwrap();
        chain.stop().await.unwrap();
    }
}
