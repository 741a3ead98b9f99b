//! Oversized and malformed request heads.

use super::*;

#[tokio::test]
async fn refuses_oversized_heads() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let plain = net.sidecar("plain").start().await;
    let wide = net.sidecar("wide").flag("--read-buffer-size=32Ki").start().await;
    let head = |size: usize| {
        let filler = "x".repeat(size);
        format!(
            "GET /v1.0/invoke/callee/method/m HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-a: {filler}\r\n\r\n"
        )
    };
    let status = |answer: String| answer.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status(raw(plain.ports.http, head(3500).as_bytes()).await), "200");
    assert_eq!(
        status(raw(plain.ports.http, head(20_000).as_bytes()).await),
        "431"
    );
    assert_eq!(status(raw(wide.ports.http, head(20_000).as_bytes()).await), "200");
    assert_eq!(
        status(raw(wide.ports.http, head(150_000).as_bytes()).await),
        "431"
    );
    assert_eq!(app.last().header("x-a").unwrap().len(), 20_000);
    drop(callee);
}

#[tokio::test]
async fn limits_metadata_per_call() {
    let net = Net::plain();
    let plain = net.sidecar("plain").start().await;
    let wide = net.sidecar("wide").flag("--read-buffer-size=4Mi").start().await;
    let call = async |port, fields: usize| {
        let names: Vec<_> = (0..fields).map(|n| format!("x-{n}")).collect();
        let value = "x".repeat(1000);
        let metadata: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        grpc::unary(port, GET_METADATA, &metadata, &()).await.status
    };
    assert_eq!(call(plain.ports.grpc, 50).await.code(), Code::Ok);
    let refused = call(plain.ports.grpc, 100).await;
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("65536 bytes"), "{refused}");
    for fields in [100, 1000, 3000] {
        assert_eq!(call(wide.ports.grpc, fields).await.code(), Code::Ok, "{fields}");
    }
    // The HTTP API answers with an HTTP status, and the connection continues.
    let mut client = http2_client(plain.ports.http).await;
    for (size, status) in [(100, 204), (10_000, 431), (100, 204)] {
        let header = format!("x-a: {}", "x".repeat(size));
        let asked = request("GET", "/v1.0/healthz", &[&header], Body::Empty);
        let answer = within(client.send_request(absolute(asked))).await.unwrap();
        assert_eq!(answer.status(), status);
    }
}

#[tokio::test]
async fn answers_malformed_requests() {
    let net = Net::plain();
    let node = net.sidecar("caller").start().await;
    for bytes in [
        &b"\0\0\0\0\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT other:80 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        b"GET http://other/none HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    ] {
        let answer = raw(node.ports.http, bytes).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{bytes:?}: {answer}"
        );
    }
    assert_eq!(node.ask(get("/v1.0/healthz")).await.status, 204);
    // The gRPC ports survive the same.
    for port in [node.ports.grpc, node.ports.internal] {
        raw(port, b"GET / HTTP/1.1\r\n\r\n").await;
        raw(
            port,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        )
        .await;
        let outcome = grpc::call(port, grpc::INVOKE_SERVICE, &[], &[b"\xff\xff\xff"]).await;
        assert_ne!(outcome.status.code(), Code::Ok);
    }
    let outcome = grpc::call(node.ports.grpc, GET_METADATA, &[], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Ok);
}
