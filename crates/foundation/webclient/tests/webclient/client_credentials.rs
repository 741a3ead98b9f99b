//! Requests to a token issuer, and handling of its responses.
use std::time::Duration;

use outrigger_webclient::{ClientCredentials, Token, TokenError};
use rustls::RootCertStore;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const FORM: &str = "grant_type=client_credentials&scope=a+b";

/// Requests a token from an issuer that responds once with `status` and `answer`. Returns the result and
/// the request.
async fn ask(status: u16, answer: &str) -> (Result<Token, TokenError>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/token?key=hidden", listener.local_addr().unwrap());
    let tls = outrigger_tls::verifying(RootCertStore::empty(), None).unwrap();
    let issuer = ClientCredentials::new(ClientCredentials::endpoint_of(&url).unwrap(), tls).unwrap();
    let length = answer.len();
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(FORM.as_bytes()) {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request).unwrap()
    };
    let form = [("scope", "a b".to_owned())];
    tokio::join!(issuer.token(&form, Some(("me:", "s&"))), serve)
}

#[tokio::test]
async fn token_has_validity() {
    let (token, request) = ask(200, r#"{"access_token":"t","expires_in":60}"#).await;
    let token = token.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(token.access_token, "t");
    assert_eq!(token.valid, Some(Duration::from_secs(60)));
    assert!(request.starts_with("POST /token?key=hidden "), "{request}");
    // `me%3A:s%26`.
    assert!(
        request.contains("authorization: Basic bWUlM0E6cyUyNg=="),
        "{request}"
    );
    // Azure AD sends a string.
    let text = r#"{"access_token":"t","expires_in":"3599"}"#;
    let valid = ask(200, text).await.0.map(|token| token.valid);
    assert_eq!(valid.ok(), Some(Some(Duration::from_secs(3599))));
    for forever in [
        r#"{"access_token":"t"}"#,
        r#"{"access_token":"t","expires_in":0}"#,
        r#"{"access_token":"t","expires_in":-1}"#,
        r#"{"access_token":"t","expires_in":"soon"}"#,
    ] {
        let token = ask(200, forever).await.0;
        assert_eq!(token.map(|token| token.valid).ok(), Some(None), "{forever}");
    }
}

#[tokio::test]
async fn distinguishes_failure_from_rejection() {
    for (status, answer, unavailable, why) in [
        (503, "", true, "it answered 503"),
        (401, "", false, "it answered 401"),
        (
            200,
            r#"{"access_token":""}"#,
            false,
            "its answer has no access_token",
        ),
        (
            200,
            "hidden",
            false,
            "its answer is no JSON object with an access_token",
        ),
    ] {
        let error = ask(status, answer).await.0.map(drop).unwrap_err();
        assert_eq!(error.is_unavailable(), unavailable, "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("the issuer of tokens at http://127.0.0.1:"),
            "{text}"
        );
        assert!(text.contains(why) && !text.contains("hidden"), "{text}");
    }
}

#[test]
fn validates_endpoint_url() {
    for text in ["ftp://a", "mailto:a", "a", ""] {
        assert!(ClientCredentials::endpoint_of(text).is_none(), "{text}");
    }
    assert!(ClientCredentials::endpoint_of("https://a/b").is_some());
}
