//! Cryptography with keys from files and key sets.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rsa, signature,
    signature::KeyPair,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use outrigger_component::{CryptoProvider, Kind, crypto::Parameters};
use outrigger_component_conformance::{self as conformance, CryptoKeys};
use outrigger_components_testing::Components;
use outrigger_offload::{INLINE, done_at_once};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn components() -> Components {
    Components::of(outrigger_components_crypto::add)
}

type EcAlgorithm = &'static signature::EcdsaSigningAlgorithm;

fn pem(tag: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(tag, der))
}

fn write(folder: &Path, name: &str, contents: impl AsRef<[u8]>) {
    fs::write(folder.join(name), contents).unwrap();
}

/// Keys of every kind in every supported format.
fn keys(folder: &Path) -> CryptoKeys {
    let mut public = Vec::new();
    let mut both = |name: &str, private: &[u8], spki: &[u8]| {
        write(folder, &format!("{name}.pem"), pem("PRIVATE KEY", private));
        write(folder, &format!("{name}-public.pem"), pem("PUBLIC KEY", spki));
        public.push((format!("{name}-public.pem"), format!("{name}.pem")));
        format!("{name}.pem")
    };
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let rsa = both(
        "rsa",
        pkcs8.as_ref(),
        pair.public_key().as_der().unwrap().as_ref(),
    );
    let curves: [(&str, EcAlgorithm); 3] = [
        ("ES256", &signature::ECDSA_P256_SHA256_ASN1_SIGNING),
        ("ES384", &signature::ECDSA_P384_SHA384_ASN1_SIGNING),
        ("ES512", &signature::ECDSA_P521_SHA512_ASN1_SIGNING),
    ];
    let ec = curves.map(|(name, algorithm)| {
        let pair = signature::EcdsaKeyPair::generate(algorithm).unwrap();
        let spki = pair.public_key().as_der().unwrap();
        (
            name,
            both(name, pair.to_pkcs8v1().unwrap().as_ref(), spki.as_ref()),
        )
    });
    let pair = signature::Ed25519KeyPair::generate().unwrap();
    let spki = pair.public_key().as_der().unwrap();
    let ed25519 = both("ed25519", pair.to_pkcs8v1().unwrap().as_ref(), spki.as_ref());
    let symmetric = [16_u8, 24, 32, 48, 64].map(|length| {
        let name = format!("symmetric{length}");
        let key: Vec<u8> = (0..length).map(|byte| byte ^ 0xa5).collect();
        // Short keys raw, the others in Base64 with a newline.
        match length {
            16 | 24 => write(folder, &name, key),
            _ => write(folder, &name, format!("{}\n", STANDARD.encode(key))),
        }
        (usize::from(length), name)
    });
    CryptoKeys {
        symmetric: symmetric.into(),
        rsa: vec![rsa],
        ec: ec.into(),
        ed25519,
        public,
        absent: "absent".to_owned(),
    }
}

async fn storage(folder: &TempDir) -> Arc<dyn CryptoProvider> {
    let path = folder.path().to_str().unwrap();
    components()
        .crypto("crypto.dapr.localstorage", "v1", &[("path", path)])
        .await
        .unwrap()
}

async fn key_set(jwks: &str) -> outrigger_component::Result<Arc<dyn CryptoProvider>> {
    components()
        .crypto("crypto.dapr.jwks", "v1", &[("jwks", jwks)])
        .await
}

#[tokio::test]
async fn local_storage_passes_conformance() {
    let folder = tempfile::tempdir().unwrap();
    let keys = keys(folder.path());
    conformance::crypto(&storage(&folder).await, &keys).await;
}

/// JSON Web Keys of RFC 7517 and RFC 8037, a P-256 and an RSA key, public and private.
fn set() -> Value {
    serde_json::from_str(include_str!("data/keys.jwks.json")).unwrap()
}

fn set_keys() -> CryptoKeys {
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    CryptoKeys {
        symmetric: [16, 24, 32, 48, 64]
            .map(|length| (length, format!("oct{length}")))
            .into(),
        rsa: named(&["rsa"]),
        ec: vec![
            ("ES256", "p256".to_owned()),
            ("ES384", "p384".to_owned()),
            ("ES512", "p521".to_owned()),
        ],
        ed25519: "ed25519".to_owned(),
        public: ["rsa", "p256", "p384", "p521", "ed25519"]
            .map(|name| (format!("{name}-public"), name.to_owned()))
            .into(),
        absent: "absent".to_owned(),
    }
}

#[tokio::test]
async fn key_sets_pass_conformance() {
    let text = set().to_string();
    conformance::crypto(&key_set(&text).await.unwrap(), &set_keys()).await;
    let encoded = STANDARD.encode(&text);
    for inline in [encoded.as_str(), encoded.trim_end_matches('=')] {
        let provider = key_set(inline).await.unwrap();
        assert_eq!(provider.public_key("p256").await.unwrap().id, "p256");
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "keys.json", &text);
    let path = folder.path().join("keys.json");
    let provider = key_set(path.to_str().unwrap()).await.unwrap();
    assert!(provider.public_key("rsa").await.is_ok());
}

#[tokio::test]
async fn jwk_round_trip() {
    let provider = key_set(&set().to_string()).await.unwrap();
    for name in ["rsa", "p256", "p384", "p521", "ed25519"] {
        let parsed: Value = serde_json::from_str(&provider.public_key(name).await.unwrap().jwk).unwrap();
        let keys = set();
        let public = keys["keys"].as_array().unwrap().iter();
        let mut public = public.filter(|key| key["kid"] == format!("{name}-public"));
        let mut expected = public.next().unwrap().clone();
        expected["kid"] = name.into();
        assert_eq!(parsed, expected);
    }
}

#[tokio::test]
async fn offloads_verification_of_long_messages() {
    let provider = key_set(&set().to_string()).await.unwrap();
    for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
        let message = vec![7; length];
        let signature = provider.sign(&message, "EdDSA", "ed25519").await.unwrap();
        let verifying = provider.verify(&message, &signature, "EdDSA", "ed25519");
        let (was_at_once, verified) = done_at_once(verifying).await;
        assert_eq!(was_at_once, at_once, "{length}");
        assert!(verified.unwrap());
    }
}

#[tokio::test]
async fn offloads_expensive_operations() {
    let provider = key_set(&set().to_string()).await.unwrap();
    let (was_at_once, signed) = done_at_once(provider.sign(&[7; 32], "PS256", "rsa")).await;
    assert!(!was_at_once, "signing with a private key");
    signed.unwrap();
    let with = Parameters {
        key: "oct32",
        algorithm: "A256GCM",
        nonce: &[7; 12],
        ..Parameters::default()
    };
    for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
        let plain = vec![7; length];
        let (was_at_once, sealed) = done_at_once(provider.encrypt(&plain, with)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to encrypt");
        let sealed = sealed.unwrap();
        let (was_at_once, opened) = done_at_once(provider.decrypt(&sealed, with)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to decrypt");
        assert!(opened.unwrap()[..] == plain);
    }
    for (length, at_once) in [(INLINE - 1, true), (INLINE, false)] {
        let associated_data = &vec![7; length][..];
        let with = Parameters {
            associated_data,
            ..with
        };
        let (was_at_once, sealed) = done_at_once(provider.encrypt(b"1", with)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes beside what is encrypted");
        let (was_at_once, opened) = done_at_once(provider.decrypt(&sealed.unwrap(), with)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes beside what is decrypted");
        assert!(opened.unwrap()[..] == *b"1");
    }
}

#[tokio::test]
async fn enforces_jwk_restrictions() {
    let key = |more: Value| {
        let mut key = json!({"kty": "oct", "k": "AAECAwQFBgcICQoLDA0ODw", "kid": "k"});
        key.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({ "keys": [key] }).to_string()
    };
    let with = Parameters {
        key: "k",
        algorithm: "A128KW",
        ..Parameters::default()
    };
    let message = [7; 16];
    for (more, encrypts, wraps) in [
        (json!({}), true, true),
        (json!({"use": "enc"}), true, true),
        (json!({"use": "sig"}), false, false),
        (json!({"key_ops": ["encrypt"]}), true, false),
        (json!({"key_ops": ["wrapKey"], "use": "enc"}), false, true),
        (json!({"alg": "A128KW"}), true, true),
        (json!({"alg": "A128GCM"}), false, false),
    ] {
        let provider = key_set(&key(more.clone())).await.unwrap();
        assert_eq!(provider.encrypt(&message, with).await.is_ok(), encrypts, "{more}");
        assert_eq!(provider.wrap_key(&message, with).await.is_ok(), wraps, "{more}");
    }
}

#[tokio::test]
async fn names_cannot_leave_folder() {
    let outer = tempfile::tempdir().unwrap();
    write(outer.path(), "outside", [1; 32]);
    let inner = outer.path().join("keys");
    fs::create_dir_all(inner.join("sub")).unwrap();
    write(&inner, "inside", [2; 32]);
    write(&inner.join("sub"), "deep", [3; 32]);
    let provider = components()
        .crypto(
            "crypto.dapr.localstorage",
            "",
            &[("path", inner.to_str().unwrap())],
        )
        .await
        .unwrap();
    let wrap = |key: String| {
        let provider = Arc::clone(&provider);
        async move {
            let with = Parameters {
                key: &key,
                algorithm: "A256KW",
                ..Parameters::default()
            };
            provider
                .wrap_key(&[0; 16], with)
                .await
                .map_err(|error| error.kind())
        }
    };
    for inside in ["inside", "sub/deep", "/inside"] {
        assert!(wrap(inside.to_owned()).await.is_ok(), "{inside}");
    }
    let absolute = outer.path().join("outside").to_str().unwrap().to_owned();
    for outside in [
        "../outside",
        "sub/../../outside",
        "..",
        "",
        ".",
        "sub",
        "in\0side",
        absolute.as_str(),
    ] {
        let refused = wrap(outside.to_owned()).await;
        assert!(refused.is_err(), "{outside:?}: {refused:?}");
    }
    assert_eq!(
        wrap("../outside".to_owned()).await.unwrap_err(),
        Kind::InvalidRequest
    );
}

#[tokio::test]
async fn reads_all_key_formats() {
    let folder = tempfile::tempdir().unwrap();
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let spki = pair.public_key().as_der().unwrap();
    write(
        folder.path(),
        "pkcs1-public.pem",
        pem("RSA PUBLIC KEY", pair.public_key().as_ref()),
    );
    write(folder.path(), "no-extension", pem("PUBLIC KEY", spki.as_ref()));
    let pkcs8: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    // PKCS #8 contains the PKCS #1 structure after a header of 26 bytes.
    write(
        folder.path(),
        "pkcs1.pem",
        pem("RSA PRIVATE KEY", &pkcs8.as_ref()[26..]),
    );
    let ec = signature::EcdsaKeyPair::generate(&signature::ECDSA_P384_SHA384_ASN1_SIGNING).unwrap();
    let sec1 = ec.private_key().as_der().unwrap();
    write(folder.path(), "sec1.pem", pem("EC PRIVATE KEY", sec1.as_ref()));
    write(folder.path(), "key.json", set()["keys"][0].to_string());
    write(folder.path(), "key", set()["keys"][0].to_string());
    let provider = storage(&folder).await;
    for name in ["pkcs1-public.pem", "no-extension", "pkcs1.pem"] {
        let found = provider
            .public_key(name)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.spki, spki.as_ref(), "{name}");
    }
    for name in ["sec1.pem", "key.json", "key"] {
        provider
            .public_key(name)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[tokio::test]
async fn rejects_unusable_keys_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in [
        ("empty", String::new()),
        ("broken.json", "{".to_owned()),
        ("array.json", "[]".to_owned()),
        (
            "curve.json",
            r#"{"kty":"EC","crv":"secp256k1","x":"AA","y":"AA"}"#.to_owned(),
        ),
        (
            "point.json",
            r#"{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}"#.to_owned(),
        ),
        (
            "x25519.json",
            r#"{"kty":"OKP","crv":"X25519","x":"AQ"}"#.to_owned(),
        ),
        ("short.json", r#"{"kty":"RSA","n":"AQ","e":"AQAB"}"#.to_owned()),
        ("none.pem", "no pem".to_owned()),
        ("other.pem", pem("OPENSSH PRIVATE KEY", b"x")),
        ("garbage.pem", pem("PRIVATE KEY", b"x")),
    ] {
        write(folder.path(), name, contents);
        let error = storage(&folder).await.public_key(name).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{name}: {error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    write(folder.path(), "large", vec![b'x'; 65 << 10]);
    assert!(storage(&folder).await.public_key("large").await.is_err());
    let pipe = folder.path().join("pipe.pem");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let error = storage(&folder).await.public_key("pipe.pem").await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("named pipe (FIFO), not a regular file"),
        "{error}"
    );
}

#[tokio::test]
async fn rejects_invalid_folder_or_set() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "file", "x");
    let file = folder.path().join("file");
    for properties in [
        vec![],
        vec![("path", "")],
        vec![("path", "/nowhere/at/all")],
        vec![("path", file.to_str().unwrap())],
    ] {
        let opened = components()
            .crypto("crypto.dapr.localstorage", "v1", &properties)
            .await;
        let error = opened.err().unwrap();
        assert_eq!(
            (error.kind(), error.property()),
            (Kind::Configuration, Some("path")),
            "{properties:?}"
        );
    }
    for jwks in [
        "",
        "no set",
        "{",
        "[]",
        r#"{"keys":[1]}"#,
        "http://127.0.0.1:1/keys",
        "https://",
    ] {
        let error = key_set(jwks)
            .await
            .err()
            .unwrap_or_else(|| panic!("{jwks} was taken"));
        assert!(
            matches!(error.kind(), Kind::Configuration | Kind::Unavailable),
            "{jwks}: {error}"
        );
    }
}

#[tokio::test]
async fn reads_keys_from_regular_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("keys.json");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for (path, what) in [(pipe.as_path(), "named pipe"), (folder.path(), "directory")] {
        let opened = tokio::time::timeout(Duration::from_secs(60), key_set(path.to_str().unwrap())).await;
        let error = opened.expect("it waits").err().expect("it is taken");
        let text = error.to_string();
        assert_eq!(error.kind(), Kind::Configuration, "{text}");
        assert!(
            text.contains(path.to_str().unwrap()) && text.contains(what),
            "{text}"
        );
    }
}

#[tokio::test]
async fn reloads_changed_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.json");
    let one = |kid: &str| {
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": kid,
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]})
    };
    fs::write(&path, one("first").to_string()).unwrap();
    let provider = key_set(path.to_str().unwrap()).await.unwrap();
    assert!(provider.public_key("first").await.is_ok());
    fs::write(&path, one("second, with another length").to_string()).unwrap();
    assert!(provider.public_key("second, with another length").await.is_ok());
    assert!(provider.public_key("first").await.is_err());
    fs::write(&path, "{").unwrap();
    assert!(
        provider.public_key("second, with another length").await.is_ok(),
        "the old set stays"
    );
}

/// Serves key sets over HTTP; each response has one key, named after the response's number.
async fn serve(answers: Arc<AtomicUsize>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _read = connection.read(&mut request).await;
            let number = answers.fetch_add(1, Ordering::SeqCst);
            let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": format!("key-{number}"),
                "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]})
            .to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{set}",
                set.len()
            );
            let _written = connection.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://127.0.0.1:{port}/keys")
}

#[tokio::test]
async fn refetches_stale_url_set() {
    let answers = Arc::new(AtomicUsize::new(0));
    let url = serve(Arc::clone(&answers)).await;
    let properties = [("jwks", url.as_str()), ("minRefreshInterval", "3s")];
    let provider = components()
        .crypto("crypto.dapr.jwks", "v1", &properties)
        .await
        .unwrap();
    assert!(provider.public_key("key-0").await.is_ok());
    assert!(
        provider.public_key("key-1").await.is_err(),
        "not before the interval is over"
    );
    assert_eq!(answers.load(Ordering::SeqCst), 1);
    let until = async |step: &str, condition: &dyn Fn(bool) -> bool| {
        let begun = std::time::Instant::now();
        while !condition(provider.public_key("key-1").await.is_ok()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{step}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until("unknown keys wait for the new set", &|found| found).await;
    assert_eq!(answers.load(Ordering::SeqCst), 2);
    until("the set is fetched behind the back of a known key", &|found| {
        // The new set lacks the key.
        let is_new = answers.load(Ordering::SeqCst) == 3;
        assert!(found || is_new, "known keys do not wait");
        is_new
    })
    .await;
}
