use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;

use super::*;
use crate::{
    config::{JwtConfig, TlsFiles},
    jwt::{Algorithm, generate},
};

fn oidc() -> OidcConfig {
    OidcConfig {
        listen: outrigger_accept::Listen::everywhere(0),
        tls: None,
        jwks_uri: None,
        path_prefix: String::new(),
        allowed_hosts: Vec::new(),
    }
}

fn jwt() -> JwtAuthority {
    let config = JwtConfig {
        issuer: None,
        algorithm: Algorithm::Rs256,
        key_id: None,
        ttl: Duration::from_secs(60),
    };
    JwtAuthority::load(&generate(None).unwrap(), &config, Duration::ZERO).unwrap()
}

fn asked<'a>(path: &'a str, host: &'a str) -> RequestParts<'a> {
    RequestParts {
        method: &Method::GET,
        path,
        host,
        forwarded_host: None,
    }
}

async fn body(response: Response<Full<Bytes>>) -> Value {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(response.headers()[header::CACHE_CONTROL], "public, max-age=3600");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

const DISCOVERY: &str = "/.well-known/openid-configuration";

#[tokio::test]
async fn discovery_uses_request_host_by_default() {
    let jwt = jwt();
    let found = body(Endpoints::new(&oidc(), None).respond(&asked(DISCOVERY, "h:1"), Some(&jwt))).await;
    assert_eq!(found["issuer"], "http://h:1");
    assert_eq!(found["jwks_uri"], "http://h:1/jwks.json");
    assert_eq!(found["id_token_signing_alg_values_supported"][0], "RS256");
    assert!(found.get("authorization_endpoint").is_none());

    let tls = TlsFiles {
        certificate: "c".into(),
        key: "k".into(),
    };
    let config = OidcConfig {
        tls: Some(tls),
        path_prefix: "/auth".to_owned(),
        ..oidc()
    };
    let path = format!("/auth{DISCOVERY}");
    let endpoints = Endpoints::new(&config, None);
    let found = body(endpoints.respond(&asked(&path, "h"), Some(&jwt))).await;
    assert_eq!(
        (&found["issuer"], &found["jwks_uri"]),
        (&"https://h".into(), &"https://h/auth/jwks.json".into())
    );
    assert_eq!(
        endpoints.respond(&asked(DISCOVERY, "h"), Some(&jwt)).status(),
        StatusCode::NOT_FOUND
    );

    let endpoints = Endpoints::new(&config, Some("https://issuer:8/x".to_owned()));
    let found = body(endpoints.respond(&asked(&path, "h"), Some(&jwt))).await;
    assert_eq!(found["issuer"], "https://issuer:8/x");
    assert_eq!(found["jwks_uri"], "https://issuer:8/auth/jwks.json");

    let config = OidcConfig {
        jwks_uri: Some("https://e/keys".to_owned()),
        ..oidc()
    };
    let found = body(Endpoints::new(&config, None).respond(&asked(DISCOVERY, "h"), Some(&jwt))).await;
    assert_eq!(found["jwks_uri"], "https://e/keys");
}

#[tokio::test]
async fn serves_key_set_verbatim() {
    let jwt = jwt();
    let found = body(Endpoints::new(&oidc(), None).respond(&asked("/jwks.json", "h"), Some(&jwt))).await;
    assert_eq!(found, serde_json::from_slice::<Value>(&jwt.jwks()).unwrap());
}

#[test]
fn refuses_other_paths_and_methods() {
    let (jwt, endpoints) = (jwt(), Endpoints::new(&oidc(), None));
    for path in ["/", "/invalid", "/.well-known/invalid", "/jwks.json/"] {
        assert_eq!(
            endpoints.respond(&asked(path, "h"), Some(&jwt)).status(),
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    for path in ["/jwks.json", DISCOVERY] {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::HEAD] {
            let asked = RequestParts {
                method: &method,
                ..asked(path, "h")
            };
            let status = endpoints.respond(&asked, Some(&jwt)).status();
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
        assert_eq!(
            endpoints.respond(&asked(path, "h"), None).status(),
            StatusCode::NOT_FOUND
        );
    }
}

#[tokio::test]
async fn checks_allowed_hosts() {
    let jwt = jwt();
    let hosts = |hosts: &[&str]| {
        let allowed_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Endpoints::new(
            &OidcConfig {
                allowed_hosts,
                ..oidc()
            },
            None,
        )
    };
    let listed = hosts(&["localhost", "api.example.com", "::1"]);
    let status = |endpoints: &Endpoints, host, forwarded_host| {
        endpoints
            .respond(
                &RequestParts {
                    forwarded_host,
                    ..asked(DISCOVERY, host)
                },
                Some(&jwt),
            )
            .status()
    };
    for host in ["localhost", "localhost:1", "api.example.com:8443", "[::1]:80"] {
        assert_eq!(status(&listed, host, None), StatusCode::OK, "{host}");
    }
    for host in ["example.com", "", "localhost:x", "localhost.evil", "::1:80"] {
        assert_eq!(status(&listed, host, None), StatusCode::FORBIDDEN, "{host}");
    }
    assert_eq!(status(&listed, "evil", Some("localhost")), StatusCode::OK);
    assert_eq!(status(&listed, "localhost", Some("evil")), StatusCode::FORBIDDEN);
    assert_eq!(status(&hosts(&["x", "*"]), "evil", None), StatusCode::OK);

    // The forwarded host is used only if hosts are checked.
    for (endpoints, want) in [
        (&listed, "http://localhost"),
        (&hosts(&["*"]), "http://h"),
        (&hosts(&[]), "http://h"),
    ] {
        let asked = RequestParts {
            forwarded_host: Some("localhost"),
            ..asked(DISCOVERY, "h")
        };
        assert_eq!(body(endpoints.respond(&asked, Some(&jwt))).await["issuer"], want);
    }
}
