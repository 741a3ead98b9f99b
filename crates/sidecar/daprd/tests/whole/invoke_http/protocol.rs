//! HTTP versions and methods.

use super::*;

#[tokio::test]
async fn calls_http2_and_tls_apps() {
    let net = Net::plain();
    let clear = App::echo().await;
    let secret = App::start_tls(app::echo).await;
    let caller = net.sidecar("caller").start().await;
    for (id, app, protocol, version) in [
        ("clear", &clear, "h2c", Version::HTTP_2),
        ("secret", &secret, "https", Version::HTTP_11),
    ] {
        let callee = net
            .sidecar(id)
            .app(app.port)
            .flag(&format!("--app-protocol={protocol}"));
        let _callee = callee.start().await;
        let target = format!("/v1.0/invoke/{id}/method/a%20b?c=d");
        let sent = request("PUT", &target, &["x-a: 1", "connection: x-b", "x-b: 2"], "data");
        let answer = caller.ask(sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, "data"),
            "{protocol}"
        );
        let seen = app.last();
        assert_eq!(seen.target, "/a%20b?c=d");
        assert_eq!(seen.version, version);
        assert_eq!(seen.header("x-a"), Some("1"));
        assert!(!seen.headers.contains_key("x-b"));
    }
}

#[tokio::test]
async fn accepts_http2_clients() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let mut client = http2_client(caller.ports.http).await;
    for round in 0..3 {
        let sent = absolute(post("/v1.0/invoke/callee/method/m", format!("over h2 {round}")));
        let answer = Answer::read(within(client.send_request(sent)).await.unwrap()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, &*format!("over h2 {round}"))
        );
    }
    let mut client = http1_client(caller.ports.http).await;
    for round in 0..3 {
        within(client.ready()).await.unwrap();
        let sent = with_host(post("/v1.0/invoke/callee/method/m", format!("over h1 {round}")));
        let answer = Answer::read(within(client.send_request(sent)).await.unwrap()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, &*format!("over h1 {round}"))
        );
    }
    let old = net
        .sidecar("old")
        .env("DAPR_HTTP_DISABLE_H2C", "true")
        .start()
        .await;
    let answer = raw(old.ports.http, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(!answer.contains("\0\0"), "no HTTP/2 settings: {answer:?}");
}

#[tokio::test]
async fn accepts_upgrade_to_http2() {
    let net = Net::plain();
    let node = net.sidecar("node").start().await;
    let mut io = TcpStream::connect(("127.0.0.1", node.ports.http)).await.unwrap();
    let request = b"GET /v1.0/healthz HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\n\
                    upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n";
    io.write_all(request).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        heard.push(within(io.read_u8()).await.unwrap());
    }
    let heard = String::from_utf8(heard).unwrap();
    assert!(
        heard.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{heard}"
    );
    io.write_all(PREFACE).await.unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    io.write_all(&settings).await.unwrap();
    loop {
        let mut head = [0; HEAD];
        within(io.read_exact(&mut head)).await.unwrap();
        let head = Head::read(&head).unwrap();
        let mut payload = vec![0; head.length];
        within(io.read_exact(&mut payload)).await.unwrap();
        if head.kind == Kind::Headers {
            // 204 is entry 9 of the static table of header compression.
            assert_eq!((head.stream, payload[0]), (1, 0x80 | 9), "{payload:?}");
            return;
        }
    }
}

#[tokio::test]
async fn ignores_case_of_methods() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    for node in [&caller, &callee] {
        for (sent, seen) in [("patch", "PATCH"), ("Delete", "DELETE"), ("get", "GET")] {
            let sent = request(sent, "/v1.0/invoke/callee/method/m", &[], Body::Empty);
            assert_eq!(node.ask(sent).await.status, 200);
            assert_eq!(app.last().method.as_str(), seen);
        }
    }
    assert_eq!(
        caller
            .ask(request("get", "/v1.0/metadata", &[], Body::Empty))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn refuses_unknown_http_methods() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    for node in [&caller, &callee] {
        for target in ["/v1.0/invoke/callee/method/m", "/v1.0/metadata", "/"] {
            for verb in ["PROPFIND", "QUERY", "brew"] {
                let answer = node.ask(request(verb, target, &[], Body::Empty)).await;
                let message = answer.error(501, "ERR_API_UNIMPLEMENTED");
                assert!(message.contains(verb), "{message}");
            }
        }
    }
    assert_eq!(app.calls(), 0);
}
