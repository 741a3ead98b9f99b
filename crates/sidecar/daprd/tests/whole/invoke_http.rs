//! Calls between HTTP apps: targets, requests and responses.

mod protocol;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode, Version};
use outrigger_http2::frame::{HEAD, Head, Kind, PREFACE};
use outrigger_transport::body::Body;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::client::{absolute, http1_client, http2_client, raw, with_host};
use crate::common::{Answer, App, Net, Node, app, get, post, request, within};

fn basic(user: &str, id: &str) -> String {
    format!("authorization: Basic {}", STANDARD.encode(format!("{user}:{id}")))
}

#[tokio::test]
async fn path_names_target_and_method() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let sent = request(
        "POST",
        "/v1.0/invoke/callee/method/orders/7?a=1&b=%20x",
        &["content-type: text/csv"],
        "hello",
    );
    let answer = caller.ask(sent).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.text(), "hello");
    assert_eq!(answer.header("content-type"), Some("text/csv"));
    let seen = app.last();
    assert_eq!(
        (seen.method.clone(), seen.target.as_str()),
        (Method::POST, "/orders/7?a=1&b=%20x")
    );
    assert_eq!(seen.header("content-type"), Some("text/csv"));
    assert_eq!(seen.header("content-length"), Some("5"));
    assert_eq!(seen.version, Version::HTTP_11);
}

#[tokio::test]
async fn target_header_takes_path_as_method() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let answer = caller
        .ask(request("GET", "/a/b?c=d", &["dapr-app-id: callee"], Body::Empty))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(app.last().target, "/a/b?c=d");
    assert!(!app.last().headers.contains_key("dapr-app-id"));
    // The header takes precedence over the path.
    let both = request(
        "GET",
        "/v1.0/invoke/nobody/method/x",
        &["dapr-app-id: callee"],
        Body::Empty,
    );
    assert_eq!(caller.ask(both).await.status, 200);
    assert_eq!(app.last().target, "/v1.0/invoke/nobody/method/x");
}

#[tokio::test]
async fn basic_auth_names_target() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let header = basic("Dapr-App-Id", "callee");
    let answer = caller.ask(request("GET", "/who", &[&header], Body::Empty)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(app.last().target, "/who");
    assert_eq!(
        app.last().header("authorization"),
        header.split_once(": ").map(|h| h.1)
    );
    // Other credentials name no target.
    let other = basic("admin", "callee");
    let answer = caller.ask(request("GET", "/who", &[&other], Body::Empty)).await;
    answer.error(404, "ERR_DIRECT_INVOKE");
}

#[tokio::test]
async fn refuses_call_without_target() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    for path in [
        "/",
        "/v1.0/unknown",
        "/v1.0/invoke/callee",
        "/v1.0/invoke//method/x",
    ] {
        let message = caller.ask(get(path)).await.error(404, "ERR_DIRECT_INVOKE");
        assert_eq!(
            message, "failed getting app id either from the URL path or the header dapr-app-id",
            "{path}"
        );
    }
    assert_eq!(app.calls(), 0);
}

#[tokio::test]
async fn names_unknown_and_malformed_targets() {
    let net = Net::plain();
    let caller = net.sidecar("caller").start().await;
    let message = caller
        .ask(get("/v1.0/invoke/nobody/method/x"))
        .await
        .error(500, "ERR_DIRECT_INVOKE");
    assert!(
        message.starts_with("failed to invoke, id: nobody, err: "),
        "{message}"
    );
    let message = caller
        .ask(get("/v1.0/invoke/a.b.c/method/x"))
        .await
        .error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("invalid app id a.b.c"), "{message}");
    let message = caller
        .ask(get("/v1.0/invoke/callee/method/x%3Fy"))
        .await
        .error(400, "ERR_DIRECT_INVOKE");
    assert!(message.contains("invalid method"), "{message}");
}

#[tokio::test]
async fn canonicalizes_paths() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    for (sent, seen) in [
        ("/v1.0/invoke/callee/method/", "/"),
        ("//v1.0//invoke//callee/method//a//b", "/a/b"),
        ("/v1.0/invoke/callee/method/a/./b/../c", "/a/c"),
        ("/v1.0/invoke/callee/method/../../../etc/passwd", "/etc/passwd"),
        ("/v1.0/invoke/callee/method/a%2Fb", "/a/b"),
        ("/v1.0/invoke/callee/method/a%2F..%2Fb", "/b"),
        ("/v1.0/invoke/callee/method/%2e%2e/secret", "/secret"),
        ("/v1.0/invoke/callee/method/with%20space", "/with%20space"),
        ("/v1.0/invoke/callee/method/%E6%97%A5%C3%BC", "/%E6%97%A5%C3%BC"),
        ("/v1.0/invoke/callee/method/100%25", "/100%25"),
        ("/v1.0/invoke/callee/method/a+b", "/a+b"),
        ("/v1.0/invoke/callee/method/a?p=/../x&q=%2F", "/a?p=/../x&q=%2F"),
        ("/v1.0/invoke/callee/method/method/x", "/method/x"),
    ] {
        let answer = caller.ask(get(sent)).await;
        assert_eq!(answer.status, 200, "{sent}: {}", answer.text());
        assert_eq!(app.last().target, seen, "{sent}");
    }
    let bad = caller.ask(get("/v1.0/invoke/callee/method/%zz")).await;
    assert_eq!(bad.status, 400, "{}", bad.text());
}

#[tokio::test]
async fn decodes_escapes_for_every_target() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let url = format!("http://127.0.0.1:{}", app.port);
    let endpoint = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: outside\nspec:\n  baseUrl: {url}\n"
    );
    let other = net.sidecar("other").resource(&endpoint).start().await;
    for (node, id) in [
        (&caller, "callee"),
        (&callee, "callee"),
        (&other, "outside"),
        (&other, &*url),
    ] {
        let ask = async |method: &str| {
            let by_path = node.ask(get(&format!("/v1.0/invoke/{id}/method/{method}"))).await;
            let header = format!("dapr-app-id: {id}");
            let by_header = request("GET", &format!("/{method}"), &[&header], Body::Empty);
            [by_path, node.ask(by_header).await]
        };
        for (method, seen) in [
            ("a%2Fb", "/a/b"),
            ("a%2fb%2F%2Fc", "/a/b/c"),
            ("a%2F..%2Fb", "/b"),
            ("a%252Fb", "/a%252Fb"),
            ("100%25", "/100%25"),
        ] {
            for answer in ask(method).await {
                assert_eq!(answer.status, 200, "{id} {method}: {}", answer.text());
                assert_eq!(app.last().target, seen, "{id} {method}");
            }
        }
        let calls = app.calls();
        for method in ["a%3Fb", "a%23b", "%3F", "a%00", "a%0Ab", "%1f", "a%7Fb"] {
            for answer in ask(method).await {
                let message = answer.error(400, "ERR_DIRECT_INVOKE");
                assert!(message.contains("invalid method: "), "{id} {method}: {message}");
            }
        }
        assert_eq!(app.calls(), calls, "{id}");
    }
}

#[tokio::test]
async fn forwards_every_verb() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    for verb in [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE",
    ] {
        let answer = caller
            .ask(request(verb, "/v1.0/invoke/callee/method/m", &[], Body::Empty))
            .await;
        assert_eq!(answer.status, 200, "{verb}: {}", answer.text());
        assert_eq!(app.last().method.as_str(), verb);
        assert!(!app.last().headers.contains_key("transfer-encoding"), "{verb}");
    }
}

#[tokio::test]
async fn forwards_end_to_end_headers() {
    let net = Net::plain();
    let app = App::start(|_| async {
        let mut response = app::text(201, "made");
        for (name, value) in [
            ("connection", "x-private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("x-public", "1"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("location", "/made/1"),
            ("etag", "\"7\""),
        ] {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let sent = request(
        "POST",
        "/v1.0/invoke/callee/method/m",
        &[
            "connection: x-nominated, keep-alive",
            "x-nominated: secret",
            "keep-alive: timeout=5",
            "proxy-connection: keep-alive",
            "proxy-authorization: Basic Zm9v",
            "te: trailers",
            "trailer: x-later",
            "upgrade: websocket",
            "x-many: 1",
            "x-many: 2",
            "accept: text/plain",
            "cookie: c=3",
            "user-agent: test/1",
        ],
        "body",
    );
    let answer = caller.ask(sent).await;
    assert_eq!(answer.status, 201);
    let seen = app.last();
    for gone in [
        "connection",
        "x-nominated",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "upgrade",
        "transfer-encoding",
    ] {
        assert!(!seen.headers.contains_key(gone), "{gone} reached the app");
    }
    assert_eq!(seen.all("x-many"), ["1", "2"]);
    assert_eq!(seen.header("accept"), Some("text/plain"));
    assert_eq!(seen.header("cookie"), Some("c=3"));
    assert_eq!(seen.header("user-agent"), Some("test/1"));
    for gone in ["connection", "x-private", "keep-alive"] {
        assert!(!answer.headers.contains_key(gone), "{gone} reached the caller");
    }
    assert_eq!(answer.header("x-public"), Some("1"));
    assert_eq!(answer.header("location"), Some("/made/1"));
    assert_eq!(answer.header("etag"), Some("\"7\""));
    let cookies: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1", "b=2"]);
}

#[tokio::test]
async fn identifies_caller_to_callee() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let forged = request(
        "GET",
        "/v1.0/invoke/callee/method/m",
        &[
            "dapr-caller-app-id: somebody-else",
            "x-forwarded-for: 203.0.113.9",
            "destination-app-id: nobody",
        ],
        Body::Empty,
    );
    assert_eq!(caller.ask(forged).await.status, 200);
    let seen = app.last();
    assert_eq!(seen.header("dapr-caller-app-id"), Some("caller"));
    assert_eq!(seen.header("dapr-caller-namespace"), Some("default"));
    assert_eq!(seen.header("dapr-callee-app-id"), Some("callee"));
    assert_eq!(seen.all("x-forwarded-for"), ["203.0.113.9", "127.0.0.1"]);
    assert_eq!(seen.all("x-forwarded-host").len(), 1);
    let forwarded = seen.header("forwarded").unwrap();
    assert!(
        forwarded.starts_with("for=127.0.0.1;by=127.0.0.1;host="),
        "{forwarded}"
    );
    assert!(!seen.headers.contains_key("destination-app-id"));
    let host = seen.header("host").unwrap();
    assert_eq!(host, format!("127.0.0.1:{}", app.port));
}

#[tokio::test]
async fn forwards_statuses() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let code = request
            .uri()
            .path()
            .trim_start_matches('/')
            .parse()
            .unwrap_or(404);
        app::text(
            code,
            if code == 204 || code == 304 {
                ""
            } else {
                "said the app"
            },
        )
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    for code in [
        200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 418, 429, 500, 502, 503,
    ] {
        let answer = caller
            .ask(post(&format!("/v1.0/invoke/callee/method/{code}"), "x"))
            .await;
        assert_eq!(answer.status, code);
        let expected = if code == 204 || code == 304 {
            ""
        } else {
            "said the app"
        };
        assert_eq!(answer.text(), expected, "{code}");
    }
    assert_eq!(app.calls(), 15, "nothing is repeated without a policy");
}

#[tokio::test]
async fn calls_own_app_directly() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net.sidecar("me").app(app.port).start().await;
    for id in ["me", "me.default"] {
        let answer = node.ask(post(&format!("/v1.0/invoke/{id}/method/m"), "x")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "x"));
        assert!(!app.last().headers.contains_key("x-forwarded-for"));
        assert!(!app.last().headers.contains_key("dapr-caller-app-id"));
    }
    let alone = net.sidecar("alone").start().await;
    let message = alone
        .ask(get("/v1.0/invoke/alone/method/m"))
        .await
        .error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("app channel is not initialized"), "{message}");
}

#[tokio::test]
async fn head_response_keeps_content_length() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let mut response = http::Response::new(Body::Empty);
        let length = request.uri().path().trim_start_matches('/');
        response
            .headers_mut()
            .insert("content-length", length.parse().unwrap());
        response
    })
    .await;
    let (caller, callee) = net.pair(app.port).await;
    let url = format!("http://127.0.0.1:{}", app.port);
    for (node, id) in [(&caller, "callee"), (&callee, "callee"), (&caller, &*url)] {
        for length in ["0", "4", "123456789"] {
            let target = format!("/v1.0/invoke/{id}/method/{length}");
            let answer = node.ask(request("HEAD", &target, &[], Body::Empty)).await;
            assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
            assert_eq!(answer.header("content-length"), Some(length), "{id}");
        }
    }
}

#[tokio::test]
async fn refuses_options_asterisk() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net.sidecar("me").app(app.port).start().await;
    for field in ["", "dapr-app-id: me\r\n"] {
        let asked = format!("OPTIONS * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{field}\r\n");
        let answer = raw(node.ports.http, asked.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    }
    assert_eq!(app.calls(), 0);
}

#[tokio::test]
async fn distinguishes_namespaces_of_targets() {
    let net = Net::plain();
    let (here, there) = (App::echo().await, App::echo().await);
    let caller = net.sidecar("caller").start().await;
    let _here = net.sidecar("callee").app(here.port).start().await;
    let other = net.sidecar("callee").app(there.port).env("NAMESPACE", "other");
    let other = other.start().await;
    // As in the contract, the name file does not distinguish namespaces; identities and self-calls do.
    let answer = other.ask(get("/v1.0/invoke/callee.other/method/m")).await;
    assert_eq!(answer.status, 200);
    assert_eq!((here.calls(), there.calls()), (0, 1));
    assert!(!there.last().headers.contains_key("dapr-caller-namespace"));
    let answer = other.ask(get("/v1.0/invoke/caller/method/m")).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("app channel is not initialized"), "{message}");
    drop(caller);
}

#[tokio::test]
async fn invalid_target_calls_no_other() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let target = "/v1.0/invoke/callee/method/m";
    for (id, shown) in [
        (&b"\xc3\xbc"[..], "ü"),
        (b"\xfc", "\u{fffd}"),
        (b"a.b.c", "a.b.c"),
    ] {
        let mut sent = get(target);
        let id = http::HeaderValue::from_bytes(id).unwrap();
        sent.headers_mut().insert("dapr-app-id", id);
        let message = caller.ask(sent).await.error(500, "ERR_DIRECT_INVOKE");
        let expected = format!("failed to invoke, id: {shown}, err: ");
        assert!(message.starts_with(&expected), "{message}");
    }
    let answer = caller.ask(get("/v1.0/invoke/callee/method/x%3Fy")).await;
    let message = answer.error(400, "ERR_DIRECT_INVOKE");
    assert!(
        message.starts_with("failed to invoke, id: callee, err: invalid method"),
        "{message}"
    );
    assert_eq!(app.calls(), 0);
}

#[tokio::test]
async fn self_call_drops_caller_headers() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net.sidecar("me").app(app.port).start().await;
    let headers = [
        "dapr-caller-app-id: admin",
        "dapr-caller-namespace: kube-system",
        "dapr-callee-app-id: other",
    ];
    let sent = request("GET", "/v1.0/invoke/me/method/m", &headers, Body::Empty);
    assert_eq!(node.ask(sent).await.status, 200);
    for name in [
        "dapr-caller-app-id",
        "dapr-caller-namespace",
        "dapr-callee-app-id",
    ] {
        assert_eq!(app.last().header(name), None, "{name}");
    }
}

#[tokio::test]
async fn streams_events_from_remote_app() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let status = request.uri().path().trim_start_matches('/').parse().unwrap();
        let mut response = app::text(status, if status == 200 { "data: 1\n\n" } else { "" });
        response
            .headers_mut()
            .insert("content-type", "text/plain".parse().unwrap());
        response
    })
    .await;
    let (caller, callee) = net.pair(app.port).await;
    let ask = async |node: &Node, status: u16| {
        let target = format!("/v1.0/invoke/callee/method/{status}");
        node.ask(request(
            "GET",
            &target,
            &["accept: Text/Event-Stream "],
            Body::Empty,
        ))
        .await
    };
    let answer = ask(&caller, 200).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "data: 1\n\n"));
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert_eq!(answer.header("content-length"), None);
    for (node, status) in [(&caller, 204), (&caller, 304), (&callee, 200)] {
        let answer = ask(node, status).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("content-type"), Some("text/plain"), "{status}");
        assert_eq!(answer.header("cache-control"), None, "{status}");
    }
}
