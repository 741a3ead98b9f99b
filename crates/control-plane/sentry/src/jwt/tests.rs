use std::time::{Duration, SystemTime};

use base64::engine::general_purpose::STANDARD;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::{
    issuer::{JwtFiles, generate},
    key::PublicKey,
    verify::Rejected,
    *,
};
use crate::{
    config::JwtConfig,
    material::{Fault, File},
};

const AUDIENCE: &str = "spiffe://localhost/ns/default/dapr-sentry";
const SUBJECT: &str = "spiffe://public/ns/default/myapp";

fn config(algorithm: Algorithm) -> JwtConfig {
    JwtConfig {
        issuer: None,
        algorithm,
        key_id: None,
        ttl: Duration::from_secs(3600),
    }
}

/// A private key, and a set with its public half under this id.
fn files(algorithm: Algorithm, kid: &str) -> JwtFiles {
    let kind = match algorithm {
        Algorithm::Es256 => &rcgen::PKCS_ECDSA_P256_SHA256,
        Algorithm::Es384 => &rcgen::PKCS_ECDSA_P384_SHA384,
        Algorithm::Es512 => &rcgen::PKCS_ECDSA_P521_SHA512,
        Algorithm::EdDsa => &rcgen::PKCS_ED25519,
        _ => &rcgen::PKCS_RSA_SHA256,
    };
    let key = KeyPair::generate_for(kind).unwrap();
    let public = PublicKey::from_spki(&rcgen::PublicKeyData::subject_public_key_info(&key)).unwrap();
    let jwks = json!({"keys": [public.to_jwk(kid, algorithm)]}).to_string();
    JwtFiles {
        key: key.serialize_pem().into(),
        jwks: jwks.into(),
    }
}

fn issue(authority: &JwtAuthority) -> String {
    let id = SUBJECT.parse().unwrap();
    authority
        .issue(&JwtRequest {
            id: &id,
            audiences: &[AUDIENCE.to_owned()],
        })
        .unwrap()
        .all
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

fn check(token: &str, jwks: &[u8]) -> Result<(), Rejected> {
    check_at(token, jwks, now())
}

fn check_at(token: &str, jwks: &[u8], now: f64) -> Result<(), Rejected> {
    let expected = Expected {
        audience: AUDIENCE,
        subject: SUBJECT,
        skew: Duration::from_secs(300),
        now,
    };
    verify(token, &KeySet::parse(jwks).unwrap(), &expected)
}

fn part(token: &str, index: usize) -> Value {
    let part = token.split('.').nth(index).unwrap();
    serde_json::from_slice(&decode_segment(part).unwrap()).unwrap()
}

#[test]
fn signs_and_verifies_with_every_algorithm() {
    for name in [
        "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    ] {
        let algorithm: Algorithm = name.parse().unwrap();
        let files = files(algorithm, "it");
        let config = JwtConfig {
            key_id: Some("it".to_owned()),
            ..config(algorithm)
        };
        let token = issue(&JwtAuthority::load(&files, &config, Duration::ZERO).unwrap());
        assert_eq!(part(&token, 0), json!({"alg": name, "kid": "it", "typ": "JWT"}));
        assert_eq!(check(&token, &files.jwks), Ok(()), "{name}");
        let mut forged = token.clone();
        // The first character of the signature, because all its bits are significant.
        let at = token.rfind('.').unwrap() + 1;
        forged.replace_range(at..=at, if &token[at..=at] == "A" { "B" } else { "A" });
        assert!(
            matches!(check(&forged, &files.jwks), Err(Rejected::Signature(_))),
            "{name}"
        );
    }
}

#[test]
fn issues_token_for_each_audience() {
    let files = files(Algorithm::Rs256, "it");
    let config = JwtConfig {
        key_id: Some("it".to_owned()),
        ..config(Algorithm::Rs256)
    };
    let authority = JwtAuthority::load(&files, &config, Duration::ZERO).unwrap();
    let id = SUBJECT.parse().unwrap();
    let audiences = [AUDIENCE, "bank", AUDIENCE].map(str::to_owned);
    let request = JwtRequest {
        id: &id,
        audiences: &audiences,
    };
    let tokens = authority.issue(&request).unwrap();
    assert_eq!(
        part(&tokens.all, 1)["aud"],
        json!(["public", AUDIENCE, "bank", AUDIENCE])
    );
    assert_eq!(tokens.each.len(), 3);
    for audience in ["public", AUDIENCE, "bank"] {
        let claims = part(&tokens.each[audience], 1);
        assert_eq!(claims["aud"], json!([audience]));
        assert_eq!(claims["sub"], SUBJECT);
        assert_ne!(claims["jti"], part(&tokens.all, 1)["jti"]);
    }
    assert_eq!(check(&tokens.each[AUDIENCE], &files.jwks), Ok(()));
}

#[test]
fn issues_claims_of_contract() {
    let files = files(Algorithm::Es256, "it");
    let config = JwtConfig {
        issuer: Some("https://issuer".to_owned()),
        ..config(Algorithm::Es256)
    };
    let authority = JwtAuthority::load(&files, &config, Duration::from_secs(60)).unwrap();
    let claims = part(&issue(&authority), 1);
    assert_eq!(claims["iss"], "https://issuer");
    assert_eq!(claims["sub"], SUBJECT);
    assert_eq!(claims["aud"], json!(["public", AUDIENCE]));
    assert_eq!(claims["use"], "sig");
    let seconds = |name: &str| claims[name].as_u64().unwrap();
    assert_eq!(seconds("iat") - seconds("nbf"), 60);
    assert_eq!(seconds("exp") - seconds("iat"), 3600);
    let id = claims["jti"].as_str().unwrap();
    assert!(
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    assert_ne!(part(&issue(&authority), 1)["jti"], id);

    let silent = JwtAuthority::load(&files, &self::config(Algorithm::Es256), Duration::ZERO).unwrap();
    assert!(part(&issue(&silent), 1).get("iss").is_none());
}

#[test]
fn generates_rsa_key_with_thumbprint_id() {
    let files = generate(None).unwrap();
    let authority = JwtAuthority::load(&files, &config(Algorithm::Rs256), Duration::ZERO).unwrap();
    let set: Value = serde_json::from_slice(&files.jwks).unwrap();
    let [key] = &set["keys"].as_array().unwrap()[..] else {
        panic!("one key")
    };
    assert_eq!(
        (&key["kty"], &key["alg"], &key["use"]),
        (&json!("RSA"), &json!("RS256"), &json!("sig"))
    );
    let kid = key["kid"].as_str().unwrap();
    assert_eq!(STANDARD.decode(kid).unwrap().len(), 32);
    let token = issue(&authority);
    assert_eq!(part(&token, 0)["kid"], kid);
    assert_eq!(check(&token, &files.jwks), Ok(()));
}

#[test]
fn computes_thumbprint_of_rfc() {
    // The example of RFC 7638, section 3.1.
    let jwk = json!({
        "kty": "RSA", "e": "AQAB", "alg": "RS256", "kid": "2011-04-29",
        "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    });
    let key = PublicKey::from_jwk(jwk.as_object().unwrap()).unwrap().unwrap();
    assert_eq!(
        encode_segment(&key.thumbprint()),
        "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
    );
}

fn fault(files: &JwtFiles, config: &JwtConfig) -> Fault {
    JwtAuthority::load(files, config, Duration::ZERO).expect_err("the files were accepted")
}

#[test]
fn refuses_mismatched_jwt_files() {
    let good = files(Algorithm::Es256, "it");
    let with_set = |jwks: &str| JwtFiles {
        jwks: jwks.as_bytes().to_vec(),
        ..good.clone()
    };
    let plain = config(Algorithm::Es256);
    for (jwks, wanted) in [
        ("", "not JSON"),
        ("[]", "not a JWK set"),
        (r#"{"keys":[]}"#, "the set has no keys"),
        (
            r#"{"keys":[{"kty":"EC","crv":"P-256"}]}"#,
            "key 0: member \"x\" is missing",
        ),
        (
            std::str::from_utf8(&files(Algorithm::Es256, "it").jwks).unwrap(),
            "no key of the set is the public half",
        ),
        (
            &String::from_utf8(good.jwks.clone())
                .unwrap()
                .replace("\"sig\"", "\"enc\""),
            "no key of the set",
        ),
    ] {
        let found = fault(&with_set(jwks), &plain);
        assert!(
            found.file == File::Jwks && found.problem.contains(wanted),
            "{jwks}: {found:?}"
        );
    }
    let named = JwtConfig {
        key_id: Some("other".to_owned()),
        ..plain.clone()
    };
    assert!(
        fault(&good, &named)
            .problem
            .contains("no key with the id \"other\"")
    );
    let found = fault(&good, &config(Algorithm::Rs256));
    assert!(
        found.file == File::JwtKey && found.problem.contains("needs a key of type RSA"),
        "{found:?}"
    );
    assert_eq!(
        fault(
            &JwtFiles {
                key: b"no key".to_vec(),
                ..good
            },
            &plain
        )
        .file,
        File::JwtKey
    );
}

#[test]
fn names_invalid_claim() {
    let files = files(Algorithm::Es256, "it");
    let key = KeyPair::from_pem(std::str::from_utf8(&files.key).unwrap()).unwrap();
    let der = rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let public = PublicKey::from_spki(&rcgen::PublicKeyData::subject_public_key_info(&key)).unwrap();
    let signer = super::signer::Signer::new(&der, &public, Algorithm::Es256, "it").unwrap();
    let verdict = |change: &dyn Fn(&mut Value)| {
        let mut claims = json!({"aud": AUDIENCE, "sub": SUBJECT, "exp": 1000, "nbf": 900, "iat": 900.5});
        change(&mut claims);
        check_at(&signer.sign(&claims).unwrap(), &files.jwks, 950.0).map_err(|error| error.to_string())
    };
    assert_eq!(verdict(&|_| {}), Ok(()));
    assert_eq!(
        verdict(&|claims| claims["aud"] = json!(["other", AUDIENCE])),
        Ok(())
    );
    assert_eq!(
        verdict(&|claims| claims["exp"] = json!(651)),
        Ok(()),
        "within the skew"
    );
    assert_eq!(verdict(&|claims| claims["exp"] = Value::Null), Ok(()));
    for (name, value) in [
        ("aud", json!(["other"])),
        ("aud", Value::Null),
        ("sub", json!("spiffe://public/ns/default/other")),
        ("sub", json!(7)),
        ("exp", json!(650)),
        ("exp", json!("1000")),
        ("nbf", json!(1251)),
        ("iat", json!(1251)),
    ] {
        let error = verdict(&|claims| claims[name] = value.clone()).unwrap_err();
        assert!(
            error.starts_with(&format!("\"{name}\" not satisfied")),
            "{name} {value}: {error}"
        );
    }
}

#[test]
fn restricts_algorithm_to_key() {
    let files = files(Algorithm::Es256, "it");
    let authority = JwtAuthority::load(&files, &config(Algorithm::Es256), Duration::ZERO).unwrap();
    let token = issue(&authority);
    let thumbprint = part(&token, 0)["kid"].as_str().unwrap().to_owned();
    let set = String::from_utf8(files.jwks)
        .unwrap()
        .replace("\"it\"", &json!(thumbprint).to_string());
    assert_eq!(check(&token, set.as_bytes()), Ok(()));
    for (from, to) in [
        ("\"ES256\"", "\"ES384\""),
        ("\"sig\"", "\"enc\""),
        ("\"sig\"", "\"sig\",\"key_ops\":[\"encrypt\"]"),
        (&*thumbprint, "another"),
    ] {
        let changed = set.replace(from, to);
        let verdict = check(&token, changed.as_bytes());
        assert!(
            matches!(verdict, Err(Rejected::Signature(_))),
            "{changed}: {verdict:?}"
        );
    }
    let silent = set.replace("\"alg\":\"ES256\",", "");
    assert_eq!(
        check(&token, silent.as_bytes()),
        Ok(()),
        "the type of the key says enough"
    );
}

#[test]
fn refuses_unsigned_tokens() {
    let jwks = files(Algorithm::Es256, "it").jwks;
    let token = |header: Value| {
        format!(
            "{}.{}.",
            encode_segment(header.to_string().as_bytes()),
            encode_segment(b"{}")
        )
    };
    for (header, wanted) in [
        (
            json!({"alg": "none", "kid": "it"}),
            Rejected::Signature("the algorithm is not supported"),
        ),
        (
            json!({"alg": "HS256", "kid": "it"}),
            Rejected::Signature("the algorithm is not supported"),
        ),
        (
            json!({"alg": "ES256", "kid": "it"}),
            Rejected::Signature("the signature matches no key with this id"),
        ),
        (json!({"alg": "ES256"}), Rejected::NoKeyId),
        (
            json!({"alg": "ES256", "kid": "it", "crit": ["x"]}),
            Rejected::Critical,
        ),
        (
            json!({"alg": "ES256", "kid": "it", "crit": null}),
            Rejected::Critical,
        ),
        (json!({"kid": "it"}), Rejected::Syntax),
    ] {
        assert_eq!(check(&token(header.clone()), &jwks), Err(wanted), "{header}");
    }
    for text in ["", "a", "a.b", "a.b.c", "....", "é.é.é"] {
        assert_eq!(check(text, &jwks), Err(Rejected::Syntax), "{text}");
    }
}

#[test]
fn accepts_unsupported_keys_in_sets() {
    let set = json!({"keys": [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "EC", "crv": "secp256k1", "x": "", "y": ""}]});
    assert_eq!(KeySet::parse(set.to_string().as_bytes()).unwrap().len(), 2);
    let lone = json!({"kty": "OKP", "crv": "Ed25519", "x": encode_segment(&[7; 32])});
    assert_eq!(KeySet::parse(lone.to_string().as_bytes()).unwrap().len(), 1);
}
