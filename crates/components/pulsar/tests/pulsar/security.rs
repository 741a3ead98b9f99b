//! Authentication and TLS.

use outrigger_components_testing::server::pulsar::TOKEN;

use super::*;

/// Publishes a message and receives it.
async fn works(address: &str, settings: &[(&str, &str)]) {
    let broker = open(address, "secure", settings).await.unwrap();
    let mut subscription = subscribe(&broker, "secure").await;
    publish(&broker, "secure", &["in"], &[]).await;
    assert_eq!(texts(&mut subscription, 1).await, ["in"]);
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn refused(address: &str, settings: &[(&str, &str)]) -> outrigger_component::Error {
    open(address, "secure", settings).await.map(drop).unwrap_err()
}

pub(super) async fn tokens_let_in(pulsar: &Pulsar) {
    works(&pulsar.address(), &[("token", TOKEN)]).await;
    let wrong = format!("{TOKEN}x");
    let error = refused(&pulsar.address(), &[("token", &wrong)]).await;
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&pulsar.address()) && !text.contains(TOKEN),
        "{text}"
    );
}

/// Answers each request with `body`; returns all requests as one text.
async fn issuer(listener: TcpListener, status: &str, body: String) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = vec![0; 4096];
    let mut length = 0;
    while !String::from_utf8_lossy(&request[..length]).contains("grant_type=client_credentials") {
        length += stream.read(&mut request[length..]).await.unwrap();
    }
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    String::from_utf8_lossy(&request[..length]).into_owned()
}

pub(super) async fn issuers_give_tokens(pulsar: &Pulsar) {
    let address = pulsar.address();
    for (status, body) in [
        (
            "200 OK",
            format!(r#"{{"access_token":"{TOKEN}","expires_in":3600}}"#),
        ),
        ("401 Unauthorized", String::new()),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        let settings = [
            ("oauth2TokenURL", url.as_str()),
            ("oauth2ClientID", "app"),
            ("oauth2ClientSecret", "a secret"),
            ("oauth2Audiences", "broker"),
            ("oauth2Scopes", "a,b"),
        ];
        // One answer is enough, because the token is cached until it expires.
        let asked = tokio::spawn(issuer(listener, status, body));
        if status.starts_with("200") {
            works(&address, &settings).await;
        } else {
            let error = refused(&address, &settings).await;
            assert_eq!(error.kind(), Kind::Denied, "{error}");
            let text = error.to_string();
            assert!(text.contains(&url) && !text.contains("a secret"), "{text}");
        }
        let asked = asked.await.unwrap();
        assert!(
            asked.contains("audience=broker") && asked.contains("scope=a+b"),
            "{asked}"
        );
    }
}

pub(super) async fn verifies_certificates_if_configured(pulsar: &Pulsar) {
    let url = pulsar.tls_url();
    works(&url, &[("token", TOKEN)]).await;
    let error = refused(&url, &[("enableTLS", "true")]).await;
    assert!(error.to_string().contains("certificate"), "{error}");
}
