//! Authentication of the client by the broker, and of the broker by the client.

use outrigger_components_testing::server::kafka::{PASSWORD, USER};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

async fn works(address: &str, more: &[(&str, &str)]) {
    let broker = open(address, "secured", more).await.unwrap();
    broker.publish(&message("secured", "x", &[])).await.unwrap();
    broker.ping().await.unwrap();
    let mut subscription = subscribe(&broker, "secured", 8).await;
    broker.publish(&message("secured", "y", &[])).await.unwrap();
    next(&mut subscription).await.receipt.acknowledge();
    broker.close().await;
}

pub(super) async fn passwords_let_in(kafka: &Kafka) {
    let address = kafka.sasl_address();
    for mechanism in ["PLAINTEXT", "SHA-256", "SHA-512"] {
        let right = [
            ("authType", "password"),
            ("saslUsername", USER),
            ("saslPassword", PASSWORD),
            ("saslMechanism", mechanism),
            ("disableTls", "true"),
        ];
        works(&address, &right).await;
        let mut wrong = right;
        wrong[2].1 = "wrong";
        let error = open(&address, "secured", &wrong).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{mechanism}: {error}");
        assert!(error.to_string().contains(&address), "{error}");
    }
}

/// Answers every request with the token; returns the requests.
async fn issuer(token: &'static str) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let (tell, received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
            // The body is a form whose last field is the scope.
            while !String::from_utf8_lossy(&request).contains("scope=") {
                let count = stream.read(&mut buffer).await.unwrap();
                request.extend_from_slice(&buffer[..count]);
            }
            let body = format!("{{\"access_token\":\"{token}\",\"expires_in\":3600}}");
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n\
                 {body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            let _ = tell.send(String::from_utf8(request).unwrap());
        }
    });
    (url, received)
}

pub(super) async fn tokens_let_in(kafka: &Kafka) {
    // {"alg":"none"}, {"sub":"app","iat":1,"exp":9999999999}: the test broker accepts it.
    let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhcHAiLCJpYXQiOjEsImV4cCI6OTk5OTk5OTk5OX0.";
    let (url, mut requests) = issuer(token).await;
    let properties = [
        ("authType", "oidc"),
        ("oidcTokenEndpoint", url.as_str()),
        ("oidcClientID", "the app"),
        ("oidcClientSecret", "its:secret"),
        ("oidcScopes", "one,two"),
        ("disableTls", "true"),
    ];
    works(&kafka.sasl_address(), &properties).await;
    let request = requests.recv().await.unwrap();
    assert!(
        request.contains("grant_type=client_credentials&scope=one+two"),
        "{request}"
    );
    // "the+app:its%3Asecret"
    assert!(
        request.contains("Basic dGhlK2FwcDppdHMlM0FzZWNyZXQ="),
        "{request}"
    );
    let (url, _requests) = issuer("no token").await;
    let mut wrong = properties;
    wrong[1].1 = &url;
    let error = open(&kafka.sasl_address(), "secured", &wrong)
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}

pub(super) async fn certificates_let_in(kafka: &Kafka, certificates: &Certificates) {
    let address = kafka.tls_address();
    let right = [
        ("authType", "mtls"),
        ("caCert", certificates.root.as_str()),
        ("clientCert", certificates.client.as_str()),
        ("clientKey", certificates.client_key.as_str()),
    ];
    works(&address, &right).await;
    let mut unchecked = right.to_vec();
    unchecked.retain(|(name, _)| *name != "caCert");
    unchecked.push(("skipVerify", "true"));
    works(&address, &unchecked).await;
    // No authority vouches for the broker.
    unchecked.pop();
    let error = open(&address, "secured", &unchecked).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    // The client presents no certificate.
    let nobody = [
        ("authType", "certificate"),
        ("caCert", certificates.root.as_str()),
    ];
    let error = open(&address, "secured", &nobody).await.map(drop).unwrap_err();
    assert!(
        matches!(error.kind(), Kind::Denied | Kind::Unavailable),
        "{error}"
    );
}
