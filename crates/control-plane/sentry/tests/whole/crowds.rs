//! Sentry with many connections of peers that never get a certificate.

use std::{net::SocketAddr, time::Duration};

use hyper_util::rt::TokioIo;
use outrigger_accept::Limits;
use outrigger_identity::{Expect, TrustAnchors, TrustBundle, anonymous_client_config};
use outrigger_wire::sentry::v1::{SignCertificateRequest, ca_client::CaClient};
use rustls_pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use crate::running::{Running, SENTRY, TIMEOUT, eventually, get, local, prepare, request};

async fn start(connections: usize, per_source: usize) -> Running {
    let mut prepared = prepare(&[]);
    prepared.connections = Some(Limits {
        connections,
        per_source,
    });
    prepared.start().await
}

/// A single connection from a local address, without reconnects.
async fn connect(sentry: &Running, from: [u8; 4]) -> CaClient<Channel> {
    let anchors = TrustAnchors::new(TrustBundle::from_pem(&sentry.root()).unwrap());
    let tls = anonymous_client_config(anchors, Expect::Exact(SENTRY.parse().unwrap()));
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let stream = socket.connect(sentry.addresses.grpc).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(tls).connect(name, stream).await.unwrap();
    let mut once = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = once.take().ok_or(std::io::ErrorKind::ConnectionReset);
        async move { Ok::<_, std::io::Error>(stream?) }
    });
    let channel = Endpoint::from_static("http://sentry")
        .connect_with_connector(connector)
        .await
        .unwrap();
    CaClient::new(channel)
}

/// Makes a request that is refused.
async fn refused(client: &mut CaClient<Channel>) -> Code {
    let request = SignCertificateRequest::default();
    client.sign_certificate(request).await.unwrap_err().code()
}

#[tokio::test]
async fn issues_despite_anonymous_connections() {
    let sentry = start(16, 16).await;
    let mut crowd = Vec::new();
    for _ in 0..48 {
        let mut client = connect(&sentry, [127, 0, 0, 1]).await;
        assert_eq!(refused(&mut client).await, Code::PermissionDenied);
        crowd.push(client);
        let signed = tokio::time::timeout(TIMEOUT, sentry.sign(request())).await;
        signed.expect("nobody gets a certificate").unwrap();
    }
    assert_ne!(
        refused(&mut crowd[0]).await,
        Code::PermissionDenied,
        "the oldest was closed"
    );
    let last = crowd.last_mut().unwrap();
    assert_eq!(refused(last).await, Code::PermissionDenied, "the newest stays");
}

#[tokio::test]
async fn one_source_displaces_no_other() {
    let sentry = start(16, 4).await;
    let mut quiet = connect(&sentry, [127, 0, 0, 1]).await;
    assert_eq!(refused(&mut quiet).await, Code::PermissionDenied);
    let mut crowd = Vec::new();
    for _ in 0..40 {
        crowd.push(connect(&sentry, [127, 0, 0, 2]).await);
    }
    assert_eq!(
        refused(&mut quiet).await,
        Code::PermissionDenied,
        "it was closed for others"
    );
}

#[tokio::test]
async fn silent_connections_block_no_health_checks() {
    let sentry = prepare(&[]).start().await;
    let addresses = [
        (sentry.addresses.healthz, "healthz"),
        (sentry.addresses.metrics.unwrap(), "metrics"),
    ];
    for (address, path) in addresses {
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(TcpStream::connect(local(address)).await.unwrap());
        }
        for _ in 0..9 {
            let url = format!("http://{}/{path}", local(address));
            let asked = tokio::time::timeout(Duration::from_secs(10), get(&url)).await;
            let (status, _) = asked.unwrap();
            assert_eq!(status, 200, "{path}");
        }
        drop(silent);
    }
    eventually(async || sentry.sign(request()).await.is_ok()).await;
}
