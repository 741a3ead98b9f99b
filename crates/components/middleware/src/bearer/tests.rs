use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header, encode};
use outrigger_components_testing::{Components, named};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

struct Signer {
    key: EncodingKey,
    jwk: Value,
}

impl Signer {
    fn new(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = pair.public_key().as_ref();
        let coordinate = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let jwk = json!({"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig",
            "x": coordinate(&point[1..33]), "y": coordinate(&point[33..])});
        let der = pair.to_pkcs8v1().unwrap();
        Self {
            key: EncodingKey::from_ec_der(der.as_ref()),
            jwk,
        }
    }

    fn token(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, &self.key).unwrap()
    }

    /// A correctly signed token with a custom header.
    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &self.key, Algorithm::ES256);
        format!("{message}.{}", signature.unwrap())
    }
}

fn rules() -> Rules {
    Rules {
        issuer: "https://issuer".to_owned(),
        audience: "app".to_owned(),
    }
}

fn keys(signers: &[&Signer]) -> Keys {
    let parse = |signer: &&Signer| serde_json::from_value(signer.jwk.clone()).unwrap();
    signers.iter().map(parse).collect()
}

fn in_seconds(offset: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap() + offset
}

#[test]
fn checks_issuer_audience_and_validity() {
    let signer = Signer::new("k1");
    let keys = keys(&[&signer]);
    let good = json!({"iss": "https://issuer", "aud": "app", "exp": in_seconds(60)});
    let passes = |change: Value| {
        let mut claims = good.clone();
        for (name, value) in change.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        rules().check(&signer.token(Some("k1"), &claims), &keys).is_ok()
    };
    assert!(passes(json!({})));
    assert!(passes(json!({"aud": ["other", "app"]})));
    assert!(passes(json!({"exp": null})));
    assert!(
        passes(json!({"exp": in_seconds(-240), "nbf": in_seconds(240)})),
        "clocks differ"
    );
    assert!(!passes(json!({"exp": in_seconds(-360)})));
    assert!(!passes(json!({"nbf": in_seconds(360)})));
    assert!(!passes(json!({"iss": "https://other"})));
    assert!(!passes(json!({"iss": null})));
    assert!(!passes(json!({"aud": "other"})));
    assert!(!passes(json!({"aud": null})));
    for unfit in [
        json!({"iss": ["https://issuer"]}),
        json!({"iss": ["https://other", "https://issuer"]}),
        json!({"iat": in_seconds(360)}),
        json!({"iat": "now"}),
        json!({"exp": in_seconds(60).to_string()}),
        json!({"nbf": [in_seconds(-60)]}),
        json!({"exp": i64::MAX}),
        json!({"exp": u64::MAX}),
        json!({"exp": 1e300}),
        json!({"sub": 7}),
        json!({"sub": ["me"]}),
        json!({"jti": 7}),
    ] {
        assert!(!passes(unfit.clone()), "{unfit}");
    }
    assert!(passes(json!({"iat": in_seconds(240), "nbf": 1.5})));
    assert!(passes(
        json!({"exp": 253_402_300_799_i64, "sub": "me", "jti": "7"})
    ));
}

#[test]
fn rejects_critical_extensions() {
    let signer = Signer::new("k1");
    let keys = keys(&[&signer]);
    let claims = json!({"iss": "https://issuer", "aud": "app", "exp": in_seconds(60)});
    let passes = |more: Value| {
        let mut header = json!({"alg": "ES256", "kid": "k1"});
        header
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        rules().check(&signer.token_with(&header, &claims), &keys).is_ok()
    };
    assert!(passes(json!({})));
    for crit in [json!(["x"]), json!(["b64"]), json!([]), json!("x"), json!(null)] {
        assert!(!passes(json!({"crit": crit, "x": 1, "b64": true})), "{crit}");
    }
    assert!(passes(json!({"b64": true})));
    for b64 in [json!(false), json!("false"), json!(null)] {
        assert!(!passes(json!({"b64": b64})), "{b64}");
    }
}

#[test]
fn encryption_keys_do_not_verify() {
    let claims = json!({"iss": "https://issuer", "aud": "app", "exp": in_seconds(60)});
    let passes = |more: Value| {
        let mut signer = Signer::new("k1");
        let key = signer.jwk.as_object_mut().unwrap();
        key.remove("use");
        key.extend(more.as_object().unwrap().clone());
        rules()
            .check(&signer.token(Some("k1"), &claims), &keys(&[&signer]))
            .is_ok()
    };
    for fit in [json!({}), json!({"use": "sig"}), json!({"key_ops": ["verify"]})] {
        assert!(passes(fit.clone()), "{fit}");
    }
    for unfit in [
        json!({"use": "enc"}),
        json!({"use": "tls"}),
        json!({"key_ops": ["encrypt"]}),
        json!({"use": "enc", "key_ops": ["verify"]}),
    ] {
        assert!(!passes(unfit.clone()), "{unfit}");
    }
}

#[test]
fn only_issuer_keys_verify() {
    let (one, two, foreign) = (Signer::new("one"), Signer::new("two"), Signer::new("one"));
    let keys = keys(&[&one, &two]);
    let claims = json!({"iss": "https://issuer", "aud": "app", "exp": in_seconds(60)});
    let passes = |token: &str| rules().check(token, &keys).is_ok();
    assert!(passes(&two.token(Some("two"), &claims)));
    assert!(!passes(&two.token(None, &claims)), "no key is named");
    assert!(!passes(&two.token(Some("one"), &claims)));
    assert!(!passes(&foreign.token(Some("one"), &claims)));
    assert!(!passes("not a token at all"));
    let point = &one.jwk["x"].as_str().unwrap();
    let secret = EncodingKey::from_secret(point.as_bytes());
    let forged = encode(&Header::new(Algorithm::HS256), &claims, &secret).unwrap();
    assert!(!passes(&forged), "a public key is no secret");
}

#[test]
fn empty_key_id_matches_no_key() {
    let signer = Signer::new("");
    let claims = json!({"iss": "https://issuer", "aud": "app", "exp": in_seconds(60)});
    let checked = rules().check(&signer.token(Some(""), &claims), &keys(&[&signer]));
    assert!(matches!(checked, Err(TokenError::NoKeyId)), "{checked:?}");
}

#[test]
fn parses_authorization_header() {
    let read = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        token(&headers).map(str::to_owned)
    };
    assert_eq!(read("BeArEr 0123456789").as_deref(), Some("0123456789"));
    for bad in [
        "Bearer 012345678",
        "Bearer",
        "Basic 0123456789",
        "Bearer\t0123456789",
        "bearer é",
    ] {
        assert_eq!(read(bad), None, "{bad}");
    }
    assert_eq!(token(&HeaderMap::new()), None);
}

/// A server with one text per path; returns its address.
async fn issuer(documents: impl Fn(&str, &str) -> Option<String> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let own = address.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 4096];
            let length = stream.read(&mut buffer).await.unwrap();
            let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let path = request.split(' ').nth(1).unwrap();
            let answer = match documents(path, &own) {
                Some(body) => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
                None => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

/// The issuer, whose name is no URL here, is neither queried nor reported.
#[tokio::test]
async fn invalid_jwks_url_is_reported_alone() {
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    let address = issuer(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        None
    })
    .await;
    for issuer in ["the issuer", &address] {
        for url in ["ftp://keys", "keys", "http://"] {
            let properties = [("issuer", issuer), ("audience", "app"), ("jwksURL", url)];
            let opened = Components::of(add).middleware("middleware.http.bearer", "v1", &properties);
            assert_eq!(named(opened.await), ["jwksURL"], "{issuer} {url}");
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let opened = Components::of(add).middleware("middleware.http.bearer", "v1", &[("jwksURL", "keys")]);
    assert_eq!(named(opened.await), ["issuer", "audience", "jwksURL"]);
}

#[tokio::test]
async fn discovers_keys_through_issuer() {
    let signer = Signer::new("k");
    let set = json!({"keys": [{"kty": "of the future", "kid": "x"}, signer.jwk]}).to_string();
    let address = issuer(move |path, own| match path {
        "/.well-known/openid-configuration" => {
            Some(json!({"issuer": own, "jwks_uri": format!("{own}/keys")}).to_string())
        }
        "/keys" => Some(set.clone()),
        _ => None,
    })
    .await;
    let cache = KeyCache::start(&address, None).await.unwrap();
    assert_eq!(cache.current().unwrap().len(), 1);
    cache.close().await;
    let cache = KeyCache::start("elsewhere", Some(&format!("{address}/keys")))
        .await
        .unwrap();
    assert_eq!(cache.current().unwrap().len(), 1);

    let slash = format!("{address}/");
    for (issuer, url, cause) in [
        (slash.as_str(), None, "doesn't match the one provided"),
        (&address, Some(format!("{address}/none")), "status code: 404"),
        (
            &format!("{address}/other"),
            None,
            "openid-configuration: invalid response",
        ),
    ] {
        let error = KeyCache::start(issuer, url.as_deref())
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(cause), "{error}");
    }
}

/// Tests only the check: an HTTPS issuer would need a trusted certificate.
#[test]
fn https_issuer_requires_https_keys() {
    let issuer = |url: &str| url.parse::<Url>().unwrap();
    let https = issuer("https://issuer/.well-known/openid-configuration");
    keys::check_scheme(&https, "https://elsewhere/keys").unwrap();
    for uri in ["http://issuer/keys", "HTTP://issuer/keys", "ftp://issuer/keys"] {
        let error = keys::check_scheme(&https, uri).unwrap_err();
        assert!(error.contains("not https") && error.contains(uri), "{error}");
    }
    let http = issuer("http://issuer/.well-known/openid-configuration");
    for uri in ["http://issuer/keys", "https://issuer/keys"] {
        keys::check_scheme(&http, uri).unwrap();
    }
}
