use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::rotation::RotationMode;

fn source(folder: &std::path::Path, jwt: bool) -> AuthoritySource {
    AuthoritySource {
        paths: Paths {
            root: folder.join("ca.crt"),
            issuer: folder.join("issuer.crt"),
            issuer_key: folder.join("issuer.key"),
            jwt_key: folder.join("jwt.key"),
            jwks: folder.join("jwks.json"),
            rotation: folder.join("ca-rotation.json"),
        },
        rotation: Rotation {
            mode: RotationMode::Own,
            terms: Terms::new(Duration::from_secs(24 * 3600), Duration::from_secs(900)),
            sentry: "spiffe://localhost/ns/default/dapr-sentry".parse().unwrap(),
            skew: time::Duration::minutes(15),
        },
        sentry: "spiffe://localhost/ns/default/dapr-sentry".parse().unwrap(),
        skew: Duration::from_secs(900),
        jwt: jwt.then(|| JwtConfig {
            issuer: None,
            algorithm: Algorithm::Es256,
            key_id: Some("mine".to_owned()),
            ttl: Duration::from_secs(60),
        }),
    }
}

#[test]
fn generates_private_material_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = AuthoritySource {
        jwt: None,
        ..source(folder.path(), true)
    };
    assert!(source.load_or_generate().unwrap().1);
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        names(),
        ["ca-rotation.json", "ca.crt", "issuer.crt", "issuer.key"],
        "nothing for tokens, no drafts"
    );
    for name in names() {
        let mode = std::fs::metadata(folder.path().join(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name:?}");
    }
    let before = std::fs::read(&source.paths.issuer).unwrap();
    let (authority, new) = source.load_or_generate().unwrap();
    assert!(!new && authority.jwt.is_none());
    assert_eq!(std::fs::read(&source.paths.issuer).unwrap(), before);
}

#[test]
fn generated_token_key_always_uses_rs256() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), true);
    let (authority, new) = source.load_or_generate().unwrap();
    assert!(new);
    assert_eq!(authority.jwt.as_ref().unwrap().algorithm(), Algorithm::Rs256);
    let jwks = std::fs::read_to_string(&source.paths.jwks).unwrap();
    assert!(
        jwks.contains("\"kid\":\"mine\"") && source.paths.jwt_key.exists(),
        "{jwks}"
    );
    let error = source.reload(&authority).unwrap_err().to_string();
    assert!(
        error.contains("algorithm ES256 needs a key of type ECDSA P-256, this one is RSA"),
        "{error}"
    );
}

#[test]
fn never_replaces_existing_files() {
    let folder = tempfile::tempdir().unwrap();
    let source = AuthoritySource {
        jwt: Some(JwtConfig {
            algorithm: Algorithm::Rs256,
            ..source(folder.path(), true).jwt.unwrap()
        }),
        ..source(folder.path(), true)
    };
    let (authority, _) = source.load_or_generate().unwrap();
    let files = [
        File::Root,
        File::Issuer,
        File::IssuerKey,
        File::JwtKey,
        File::Jwks,
    ];
    let contents = || files.map(|file| std::fs::read(source.paths.of(file)).ok());
    for file in files {
        let path = source.paths.of(file);
        let away = path.with_extension("away");
        std::fs::rename(path, &away).unwrap();
        let before = contents();
        for error in [
            source.reload(&authority).unwrap_err(),
            source.load_or_generate().unwrap_err(),
        ] {
            let error = error.to_string();
            let named = error.starts_with(&format!("{} is missing", path.display()));
            assert!(
                named && error.contains("restore it") && error.contains("move all"),
                "{error}"
            );
        }
        assert_eq!(contents(), before, "without {}", path.display());
        std::fs::rename(&away, path).unwrap();
    }
    source.load_or_generate().unwrap();
    source.paths.create(&[(File::Root, b"new")]).unwrap_err();
    assert_eq!(contents()[0], std::fs::read(&source.paths.root).ok());
    assert_ne!(contents()[0].as_deref(), Some(&b"new"[..]));
}

#[test]
fn replaces_expired_own_ca_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), false);
    let long_ago = OffsetDateTime::now_utc() - time::Duration::days(500);
    let old = x509::generate(&source.sentry, span(source.skew), long_ago).unwrap();
    let files: [(File, &[u8]); 3] = [
        (File::Root, &old.root),
        (File::Issuer, &old.issuer),
        (File::IssuerKey, &old.key),
    ];
    source.paths.create(&files).unwrap();
    // The CA is not recorded as generated.
    let error = source.load_or_generate().unwrap_err().to_string();
    assert!(error.contains("expired at"), "{error}");
    let record = Rotation::begin(&old.issuer);
    source.paths.replace(File::Rotation, &record).unwrap();
    let (authority, written) = source.load_or_generate().unwrap();
    assert!(
        written && authority.presented(OffsetDateTime::now_utc()).not_after() > OffsetDateTime::now_utc()
    );
    assert_ne!(std::fs::read(&source.paths.issuer).unwrap(), old.issuer);
    assert!(!source.load_or_generate().unwrap().1, "once");
}

#[test]
fn errors_name_file_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), false);
    source.load_or_generate().unwrap();
    std::fs::write(&source.paths.root, "nothing").unwrap();
    let error = source.load_or_generate().unwrap_err().to_string();
    assert!(
        error.starts_with("root certificates in ") && error.contains("ca.crt: "),
        "{error}"
    );
    assert!(
        error.ends_with("It must contain one or more PEM root certificates"),
        "{error}"
    );
}

#[test]
fn names_missing_folder() {
    let error = source(std::path::Path::new("/no/such/folder"), false)
        .load_or_generate()
        .unwrap_err();
    assert!(error.to_string().contains("/no/such/folder/"), "{error}");
}

#[test]
fn never_regenerates_vanished_files() {
    let folder = tempfile::tempdir().unwrap();
    let source = AuthoritySource {
        jwt: None,
        ..source(folder.path(), false)
    };
    let (authority, _) = source.load_or_generate().unwrap();
    for name in ["ca.crt", "issuer.crt", "issuer.key"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let error = source.reload(&authority).unwrap_err().to_string();
    assert!(
        error.contains("issuer.key no longer exist") && error.contains("restore them from a backup"),
        "{error}"
    );
    assert!(!source.paths.root.exists() && !source.paths.issuer_key.exists());
    assert!(source.load_or_generate().unwrap().1, "a start begins anew");
}

#[test]
fn completes_interrupted_first_start() {
    let made = tempfile::tempdir().unwrap();
    source(made.path(), false).load_or_generate().unwrap();
    let files = [File::IssuerKey, File::Issuer, File::Rotation, File::Root];
    let paths = source(made.path(), false).paths;
    let staged = files.map(|file| (file, std::fs::read_to_string(paths.of(file)).unwrap()));

    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path(), false);
    let text = serde_json::to_vec(&staged).unwrap();
    std::fs::write(folder.path().join(".new-ca.json"), text).unwrap();
    std::fs::write(&source.paths.issuer_key, &staged[0].1).unwrap();
    assert!(!source.load_or_generate().unwrap().1, "no other CA is made");
    let issuer = std::fs::read_to_string(&source.paths.issuer).unwrap();
    assert_eq!(issuer, staged[1].1);
}
