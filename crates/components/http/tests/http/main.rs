//! The HTTP binding against a local server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod web;

use std::fs;
use std::pin::pin;
use std::time::Duration;

use outrigger_component::Kind;
use outrigger_component_conformance as conformance;

use outrigger_components_testing::{Components, call, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use web::Web;

fn components() -> Components {
    Components::of(outrigger_components_http::add)
}

const HTTP: &str = "bindings.http";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_passes_conformance() {
    let mut web = Web::start().await;
    let sample = call("create", &[], "{}");
    let open = || async {
        components()
            .output(HTTP, "v1", &[("url", &web.url())])
            .await
            .unwrap()
    };
    let (first, second) = (open().await, open().await);
    conformance::output_binding(&first, &sample).await;
    conformance::output_binding_outlives(&second, &sample, &mut web).await;
}

#[tokio::test]
async fn sends_request_as_written() {
    let web = Web::start().await;
    let base = format!("{}/base/", web.url());
    let properties = [
        ("url", base.as_str()),
        ("securityToken", "s3cret"),
        ("securityTokenHeader", "X-Key"),
    ];
    let binding = components().output(HTTP, "v1", &properties).await.unwrap();
    let metadata = [
        ("path", "/items?x=1"),
        ("X-Own", "one"),
        ("small", "two"),
        ("traceparent", "00-1-2-01"),
        ("tracestate", "a=b"),
        ("baggage", "k=v"),
    ];
    let answer = binding.invoke(&call("put", &metadata, "body")).await.unwrap();
    let answer = answer.unwrap();
    assert_eq!(answer.data, "body");
    assert_eq!(answer.metadata["statusCode"], "200");
    assert_eq!(answer.metadata["status"], "200 OK");
    assert_eq!(answer.metadata["X-Many"], "a, b");
    let head = web.head();
    for line in [
        "put /base/items?x=1 http/1.1",
        "x-key: s3cret",
        "x-own: one",
        "content-type: application/json; charset=utf-8",
        "accept: application/json; charset=utf-8",
        "traceparent: 00-1-2-01",
        "tracestate: a=b",
        "baggage: k=v",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} is not in {head}");
    }
    assert!(!head.contains("small"), "{head}");
    // Methods without a body ignore the data.
    for (operation, method) in [
        ("get", "get"),
        ("delete", "delete"),
        ("options", "options"),
        ("trace", "trace"),
        ("head", "head"),
        ("post", "post"),
        ("patch", "patch"),
        ("create", "post"),
    ] {
        let sends = ["post", "patch"].contains(&method);
        let answer = binding.invoke(&call(operation, &[], "data")).await;
        if operation != "head" {
            assert_eq!(
                text(answer.unwrap()),
                if sends { "data" } else { "" },
                "{operation}"
            );
        }
        let head = web.head();
        assert!(head.starts_with(&format!("{method} /base/ ")), "{head}");
        assert_eq!(head.contains("content-type"), sends, "{head}");
    }
}

#[tokio::test]
async fn error_statuses_fail_by_default() {
    let web = Web::start().await;
    let (strict, url) = (true, web.url());
    let path = ("path", "status/404");
    let binding = components().output(HTTP, "v1", &[("url", &url)]).await.unwrap();
    let error = binding.invoke(&call("get", &[path], "")).await.unwrap_err();
    assert_eq!(error.to_string(), "received status code 404");
    assert_eq!(error.metadata()["statusCode"], "404");
    assert_eq!(error.metadata()["status"], "404 Not Found");
    let lax = [path, ("errorIfNot2XX", "false")];
    let answer = binding.invoke(&call("post", &lax, "why")).await.unwrap();
    assert_eq!(text(answer), "why");

    let properties = [("url", url.as_str()), ("errorIfNot2XX", "false")];
    let binding = components().output(HTTP, "v1", &properties).await.unwrap();
    assert!(binding.invoke(&call("get", &[path], "")).await.is_ok());
    let again = [path, ("errorIfNot2XX", "true")];
    assert_eq!(binding.invoke(&call("get", &again, "")).await.is_err(), strict);
}

#[tokio::test]
async fn limits_time_and_size() {
    let web = Web::start().await;
    let url = web.url();
    let properties = [
        ("url", url.as_str()),
        ("responseTimeout", "100ms"),
        ("maxResponseBodySize", "10"),
    ];
    let binding = components().output(HTTP, "v1", &properties).await.unwrap();
    let slow = binding.invoke(&call("get", &[("path", "slow")], "")).await;
    let error = slow.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    assert!(error.to_string().contains("GET http://127.0.0.1"), "{error}");
    let big = binding
        .invoke(&call("get", &[("path", "big")], ""))
        .await
        .unwrap();
    assert_eq!(text(big), "x".repeat(10));
}

#[tokio::test]
async fn times_out_on_stalled_response() {
    for begins in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (said, begun) = oneshot::channel();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u8().await.unwrap();
            stream.write_all(begins.as_bytes()).await.unwrap();
            said.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let binding = components().output(HTTP, "v1", &[("url", &url)]).await.unwrap();
        let asked = call("get", &[], "");
        let mut calling = pin!(binding.invoke(&asked));
        tokio::select! {
            answer = &mut calling => panic!("{answer:?}"),
            begun = begun => begun.unwrap(),
        }
        // From here on, time advances whenever all tasks are idle.
        tokio::time::pause();
        let begin = Instant::now();
        let answer = timeout(Duration::from_secs(3600), calling).await;
        let error = answer.expect("it is waited for without end").unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
        assert!(error.to_string().contains("no further response data"), "{error}");
        assert!(
            begin.elapsed() >= Duration::from_secs(299),
            "{:?}",
            begin.elapsed()
        );
        tokio::time::resume();
        server.abort();
    }
}

#[tokio::test]
async fn requests_stay_below_url() {
    let (web, other) = (Web::start().await, Web::start().await);
    let base = format!("{}/api/v1", web.url());
    let properties = [
        ("url", base.as_str()),
        ("securityToken", "s3cret"),
        ("securityTokenHeader", "X-Key"),
    ];
    let binding = components().output(HTTP, "v1", &properties).await.unwrap();
    for path in [
        "../../admin",
        "..",
        "%2e%2e/admin",
        "..%2fadmin",
        "..\\admin",
        "%252e%252e/admin",
        "a/..;/..;/admin",
        "../v1x",
    ] {
        let error = binding
            .invoke(&call("get", &[("path", path)], ""))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{path}: {error}");
        assert!(
            error.to_string().contains("path") && error.to_string().contains(&base),
            "{error}"
        );
    }
    assert_eq!(web.count(), 0);
    let fine = binding
        .invoke(&call("get", &[("path", "a/../b%2Fc?x=../..")], ""))
        .await;
    assert_eq!(fine.unwrap().unwrap().metadata["statusCode"], "200");
    assert!(
        web.head().starts_with("get /api/v1/b%2fc?x=../.. "),
        "{}",
        web.head()
    );

    let below = [("path", "there?/api/v1/end")];
    let followed = binding.invoke(&call("get", &below, "")).await.unwrap().unwrap();
    assert_eq!(followed.metadata["statusCode"], "200");
    assert!(web.head().starts_with("get /api/v1/end "), "{}", web.head());
    let sent = web.count();
    for there in [
        "/admin".to_owned(),
        "../../admin".to_owned(),
        format!("{}/api/v1", other.url()),
    ] {
        let path = format!("there?{there}");
        let lax = [("path", path.as_str()), ("errorIfNot2XX", "false")];
        let answer = binding
            .invoke(&call("post", &lax, "prompt"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer.metadata["statusCode"], "307", "{there}");
        assert_eq!(answer.metadata["Location"], there);
    }
    assert_eq!((web.count(), other.count()), (sent + 3, 0));
}

#[tokio::test]
async fn decompresses_unless_caller_requested_gzip() {
    let web = Web::start().await;
    let url = web.url();
    let binding = components().output(HTTP, "v1", &[("url", &url)]).await.unwrap();
    let answer = binding.invoke(&call("get", &[("path", "packed")], "")).await;
    let answer = answer.unwrap().unwrap();
    assert!(web.head().contains("accept-encoding: gzip"), "{}", web.head());
    assert_eq!(answer.data, "content");
    for gone in ["Content-Encoding", "Content-Length"] {
        assert!(!answer.metadata.contains_key(gone), "{gone}");
    }
    let own = [("path", "packed"), ("Accept-Encoding", "gzip, br")];
    let answer = binding.invoke(&call("get", &own, "")).await.unwrap().unwrap();
    assert_eq!(answer.metadata["Content-Encoding"], "gzip");
    assert_eq!(answer.data[..2], [0x1f, 0x8b]);

    let short = [("url", url.as_str()), ("maxResponseBodySize", "3")];
    let binding = components().output(HTTP, "v1", &short).await.unwrap();
    let answer = binding.invoke(&call("get", &[("path", "packed")], "")).await;
    assert!("content".starts_with(&text(answer.unwrap())));
}

#[tokio::test]
async fn accepts_many_header_fields() {
    let web = Web::start().await;
    let binding = components()
        .output(HTTP, "v1", &[("url", &web.url())])
        .await
        .unwrap();
    let answer = binding.invoke(&call("get", &[("path", "latin-1")], "")).await;
    let metadata = answer.unwrap().unwrap().metadata;
    assert_eq!(metadata["X-Latin"], "café");
    assert_eq!(metadata["X-199"], "199");
}

#[tokio::test]
async fn invalid_properties_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    fs::write(&file, "no certificate").unwrap();
    let file = file.to_str().unwrap();
    for (name, value) in [
        ("url", "no url"),
        ("maxResponseBodySize", "much"),
        ("MTLSRootCA", "/no/such/file"),
        ("MTLSRootCA", file),
        ("MTLSClientCert", file),
        ("MTLSRenegotiation", "Sometimes"),
    ] {
        let mut properties = vec![(name, value)];
        if name != "url" {
            properties.push(("url", "https://127.0.0.1:1"));
        }
        let opened = components().output(HTTP, "v1", &properties).await;
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
        let named = if name == "MTLSClientCert" {
            "MTLSClientKey"
        } else {
            name
        };
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
}

#[tokio::test]
async fn rejects_unusable_urls() {
    for (url, cause) in [
        ("::::", "relative URL without a base"),
        ("httq://h", "its scheme is httq"),
        ("localhost:8080", "its scheme is localhost"),
        ("http:///", "empty host"),
        ("http:h", "it has no host"),
        ("http://", "empty host"),
    ] {
        let opened = components().output(HTTP, "v1", &[("url", url)]).await;
        let error = opened.map(drop).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "invalid value {url:?} for the metadata property url: an http or https URL"
            )) && error.contains(cause),
            "{error}"
        );
    }
    let opened = components().output(HTTP, "v1", &[("url", "http:///path")]).await;
    let error = opened.map(drop).unwrap_err().to_string();
    assert!(error.contains("it has no host"), "{error}");
    for url in ["http://h", "HTTPS://h:1/a?b", "http://[::1]"] {
        let opened = components().output(HTTP, "v1", &[("url", url)]).await;
        assert!(opened.is_ok(), "{url}");
    }
}
