use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use outrigger_identity::{Expect, anonymous_client_config, server_name};
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::running::{DEFINITION, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn converts_subscriptions_for_api_server() {
    let running = start(&["--disable-leader-election"]).await;
    let definition = running.api.object(DEFINITION).unwrap();
    let config = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(config["service"]["namespace"], "dapr-system");
    assert_eq!(config["caBundle"], STANDARD.encode(&running.anchors));

    let mut tls = ClientConfig::clone(&anonymous_client_config(running.anchors(), Expect::Any));
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = TcpStream::connect(running.addresses.webhook.unwrap())
        .await
        .unwrap();
    let name = server_name("dapr-webhook.dapr-system.svc");
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await
        .unwrap();
    let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut client, connection) = connection.unwrap();
    tokio::spawn(connection);
    let subscription = json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
        "spec": {"topic": "t", "pubsubname": "p", "route": "/r"}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {"uid": "u",
        "desiredAPIVersion": "dapr.io/v2alpha1", "objects": [subscription]}});
    for _ in 0..2 {
        let request = Request::post("/convert?timeout=30s").header("host", "dapr-webhook");
        let request = request.body(Full::new(Bytes::from(review.to_string()))).unwrap();
        client.ready().await.unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            answer["response"]["convertedObjects"][0]["spec"]["routes"],
            json!({"default": "/r"})
        );
    }
}
