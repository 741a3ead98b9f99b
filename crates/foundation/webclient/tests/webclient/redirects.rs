//! Handling of redirects.
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

/// A server that redirects `/there?URL` to the URL with `status`, and accepts all other requests. Returns
/// the requests it receives.
async fn server(status: u16) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, heads) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut body).await.unwrap();
            let target = head.split(' ').nth(1).unwrap();
            let (code, location) = match target.strip_prefix("/there?") {
                Some(there) => (status, format!("location: {there}\r\n")),
                None => (200, String::new()),
            };
            let answer =
                format!("HTTP/1.1 {code} X\r\nconnection: close\r\n{location}content-length: 0\r\n\r\n");
            asked.send(head).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (address, heads)
}

fn client() -> reqwest::Client {
    let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    outrigger_webclient::builder(tls).no_proxy().build().unwrap()
}

#[tokio::test]
async fn does_not_follow_to_other_origin() {
    for status in [301, 302, 303, 307, 308] {
        let (here, _asked) = server(status).await;
        let (other, mut heads) = server(status).await;
        let request = client()
            .post(format!("{here}/there?{other}/x"))
            .header("x-api-key", "s3cret")
            .body("prompt");
        let error = request.send().await.unwrap_err();
        let text = outrigger_webclient::causes(&error);
        assert!(text.contains(&format!("another origin, {other}")), "{text}");
        assert!(heads.try_recv().is_err(), "{status}");
    }
}

#[tokio::test]
async fn follows_redirects_within_origin() {
    let (here, mut heads) = server(307).await;
    let url = format!("{here}/there?/there?/end");
    let response = client().get(url).send().await.unwrap();
    assert_eq!(response.status(), 200);
    for path in ["/there?/there?/end", "/there?/end", "/end"] {
        let head = heads.recv().await.unwrap();
        assert!(head.starts_with(&format!("GET {path} ")), "{head}");
    }
    let long = format!("{here}{}/end", "/there?".repeat(20));
    let error = client().get(long).send().await.unwrap_err();
    let text = outrigger_webclient::causes(&error);
    assert!(text.contains("more than 10 times"), "{text}");
}
