use futures::stream::{self, TryStreamExt};
use outrigger_component::{Metadata, Setup};
use outrigger_offload::{INLINE, done_at_once};
use outrigger_policy::resiliency::Resiliency;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::metrics::Metrics;

use super::segments::{SEGMENT, TAG};
use super::*;

const KEYS: &str = include_str!("../../../../components/crypto/tests/data/keys.jwks.json");

/// A document written by Dapr's own library, github.com/dapr/kit v0.17.0, with the keys of [`KEYS`].
macro_rules! document {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("../../tests/data/crypto/", $name, ".enc")).as_slice(),
        )
    };
}

async fn block() -> Crypto {
    let policies = Resiliency::build(&[], "app").0;
    let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
    let block = Crypto::new(true, Arc::new(Resilience::new(policies, metrics)));
    let metadata = [("jwks".to_owned(), KEYS.to_owned())];
    let setup = Setup {
        metadata: Metadata::new("keys", metadata).unwrap(),
        app_id: "app".to_owned(),
    };
    let catalog = outrigger_components::builtin();
    let entry = catalog.crypto.find("crypto.dapr.jwks", "v1").unwrap();
    let _placed = block.insert("keys", entry.build(setup).await.unwrap(), Secrets::default());
    block
}

fn pieces(bytes: &[u8], size: usize) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static {
    let pieces: Vec<_> = bytes
        .chunks(size)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    stream::iter(pieces)
}

async fn whole(output: Result<Output, CryptoError>) -> Result<Vec<u8>, CryptoError> {
    let pieces: Vec<Bytes> = output?.try_collect().await?;
    Ok(pieces.concat())
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31) >> 3) as u8).collect()
}

fn options(key: &str, algorithm: &str) -> EncryptOptions {
    EncryptOptions {
        key: key.to_owned(),
        algorithm: algorithm.to_owned(),
        ..EncryptOptions::default()
    }
}

async fn sealed(block: &Crypto, plain: &[u8], options: &EncryptOptions) -> Vec<u8> {
    let provider = block.provider("keys").unwrap();
    whole(provider.encrypt(options, pieces(plain, 1000)).await)
        .await
        .unwrap()
}

async fn opened(block: &Crypto, document: &[u8], key: &str) -> Result<Vec<u8>, CryptoError> {
    let provider = block.provider("keys").unwrap();
    whole(provider.decrypt(key, pieces(document, 777)).await).await
}

#[tokio::test]
async fn decrypts_documents_of_dapr() {
    let block = block().await;
    for ((name, document), key, length) in [
        (document!("empty"), "", 0),
        (document!("small-gcm"), "", 20),
        (document!("small-chacha"), "", 20),
        (document!("small-rsa"), "", 20),
        (document!("small-unnamed"), "oct32", 20),
        (document!("two-segments"), "", SEGMENT + 20),
    ] {
        let plain = opened(&block, document, key).await;
        assert_eq!(
            plain.unwrap_or_else(|error| panic!("{name}: {error:?}")),
            text(length),
            "{name}"
        );
    }
}

#[tokio::test]
async fn round_trips_any_length() {
    let block = block().await;
    for length in [
        0,
        1,
        SEGMENT - 1,
        SEGMENT,
        SEGMENT + 1,
        2 * SEGMENT,
        3 * SEGMENT + 5,
    ] {
        for cipher in ["", "aes-gcm", "CHACHA20-POLY1305"] {
            let with = EncryptOptions {
                cipher: cipher.to_owned(),
                ..options("oct32", "a256kw")
            };
            let plain = text(length);
            let document = sealed(&block, &plain, &with).await;
            let header = document
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'\n')
                .nth(2)
                .unwrap()
                .0
                + 1;
            let segments = length.div_ceil(SEGMENT);
            assert_eq!(
                document.len(),
                header + length + segments * TAG,
                "{length} {cipher}"
            );
            assert!(
                opened(&block, &document, "").await.unwrap() == plain,
                "{length} {cipher}"
            );
        }
    }
}

#[tokio::test]
async fn processes_large_documents_off_thread() {
    let block = block().await;
    let with = options("oct32", "a256kw");
    for (length, at_once) in [(INLINE / 2, true), (INLINE + 1, false)] {
        let plain = text(length);
        let (was_at_once, document) = done_at_once(sealed(&block, &plain, &with)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to encrypt");
        let (was_at_once, decrypted) = done_at_once(opened(&block, &document, "")).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to decrypt");
        assert!(decrypted.unwrap() == plain, "{length}");
    }
}

#[tokio::test]
async fn accepts_any_piece_size() {
    let block = block().await;
    let plain = text(2 * SEGMENT + 9);
    let document = sealed(&block, &plain, &options("rsa", "RSA")).await;
    let provider = block.provider("keys").unwrap();
    for size in [1, 13, SEGMENT, SEGMENT + TAG, document.len()] {
        let output = provider.decrypt("", pieces(&document, size)).await;
        assert!(whole(output).await.unwrap() == plain, "{size}");
    }
}

#[tokio::test]
async fn buffers_at_most_one_segment() {
    let block = block().await;
    let provider = block.provider("keys").unwrap();
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let mut output = provider
        .encrypt(&options("oct32", "AES"), receiver)
        .await
        .unwrap();
    let header = output.try_next().await.unwrap().unwrap();
    assert!(header.starts_with(b"dapr.io/enc/v1\n{"));
    sender.unbounded_send(Ok(text(SEGMENT + 1).into())).unwrap();
    let first = output.try_next().await.unwrap().unwrap();
    assert_eq!(first.len(), SEGMENT + TAG, "before the input ended");
    drop(sender);
    assert_eq!(output.try_next().await.unwrap().unwrap().len(), 1 + TAG);
    assert!(output.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn manifest_names_decryption_key() {
    let block = block().await;
    let named = async |with: EncryptOptions| {
        let document = sealed(&block, b"x", &with).await;
        let line = document.split(|byte| *byte == b'\n').nth(1).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(line).unwrap();
        manifest.get("k").map(|key| key.as_str().unwrap().to_owned())
    };
    assert_eq!(named(options("oct32", "AES")).await.as_deref(), Some("oct32"));
    let other = EncryptOptions {
        decryption_key: "other".to_owned(),
        ..options("oct32", "AES")
    };
    assert_eq!(named(other.clone()).await.as_deref(), Some("other"));
    let omitted = EncryptOptions {
        omit_key: true,
        ..other
    };
    assert_eq!(named(omitted.clone()).await, None);
    let document = sealed(&block, b"x", &omitted).await;
    let Err(CryptoError::Operation(text)) = opened(&block, &document, "").await else {
        panic!("decrypted without a key")
    };
    assert!(text.contains("no key name was provided"), "{text}");
    assert_eq!(opened(&block, &document, "oct32").await.unwrap(), b"x");
}

#[tokio::test]
async fn detects_any_modification() {
    let block = block().await;
    let document = sealed(&block, &text(2 * SEGMENT + 7), &options("oct32", "AES")).await;
    let header = document
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(2)
        .unwrap()
        .0
        + 1;
    let full = SEGMENT + TAG;
    let (first, second) = (header..header + full, header + full..header + 2 * full);
    let last = header + 2 * full..document.len();
    let part = |range: std::ops::Range<usize>| document[range].to_vec();
    let flipped = |at: usize| {
        let mut changed = document.clone();
        changed[at] ^= 1;
        changed
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a bit of the first segment", flipped(header)),
        ("a bit of the last tag", flipped(document.len() - 1)),
        ("the end is missing", part(0..document.len() - 1)),
        ("the last segment is missing", part(0..last.start)),
        (
            "a segment is missing",
            [part(0..first.end), part(last.clone())].concat(),
        ),
        (
            "segments change places",
            [part(0..header), part(second), part(first), part(last.clone())].concat(),
        ),
        (
            "a segment is repeated",
            [part(0..document.len()), part(last)].concat(),
        ),
        ("something follows", [document.clone(), vec![0]].concat()),
    ];
    for (what, changed) in cases {
        let result = opened(&block, &changed, "").await;
        assert!(
            matches!(result, Err(CryptoError::Stream(_))),
            "{what}: {result:?}"
        );
    }
    for at in 0..header - 1 {
        let result = opened(&block, &flipped(at), "").await;
        assert!(
            matches!(result, Err(CryptoError::Operation(_))),
            "byte {at} of the header: {result:?}"
        );
    }
    for cut in 0..header {
        let result = opened(&block, &document[..cut], "").await;
        assert!(
            matches!(result, Err(CryptoError::Operation(_))),
            "only {cut} bytes: {result:?}"
        );
    }
}

/// The one truncation that cannot be detected: Dapr writes no segment for an empty document.
#[tokio::test]
async fn header_alone_is_empty_document() {
    let block = block().await;
    let document = sealed(&block, b"text", &options("oct32", "AES")).await;
    let newlines = document.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let (third, _) = newlines.clone().nth(2).unwrap();
    assert_eq!(opened(&block, &document[..=third], "").await.unwrap(), b"");
    let (_, empty) = document!("empty");
    assert_eq!(empty.iter().filter(|byte| **byte == b'\n').count(), 3);
    assert!(empty.ends_with(b"\n"), "Dapr's empty document is a header alone");
}

#[tokio::test]
async fn reports_invalid_headers() {
    let block = block().await;
    let long = [b"dapr.io/enc/v1\n".to_vec(), vec![b'x'; 70 << 10]].concat();
    let manifest = |json: &str| format!("dapr.io/enc/v1\n{json}\nAAAA\n").into_bytes();
    for (document, expected) in [
        (b"".to_vec(), "scheme name not found"),
        (b"hello".to_vec(), "scheme name not found"),
        (b"dapr.io/enc/v2\n{}\nx\n".to_vec(), "unsupported scheme"),
        (b"dapr.io/enc/v1\n".to_vec(), "manifest not found"),
        (
            b"dapr.io/enc/v1\n{}\n".to_vec(),
            "message authentication code not found",
        ),
        (b"dapr.io/enc/v1\n\nx\n".to_vec(), "invalid format"),
        (long, "longer than 64 KiB"),
        (manifest("{}"), "invalid manifest"),
        (
            manifest(r#"{"k":"oct32","kw":9,"wfk":"AA==","cph":1,"np":"AAAAAAAAAA=="}"#),
            "invalid manifest",
        ),
        (
            manifest(r#"{"k":"oct32","kw":1,"wfk":"AA==","cph":3,"np":"AAAAAAAAAA=="}"#),
            "invalid manifest",
        ),
        (
            manifest(r#"{"k":"oct32","kw":1,"wfk":"","cph":1,"np":"AAAAAAAAAA=="}"#),
            "invalid manifest",
        ),
        (
            manifest(r#"{"k":"oct32","kw":1,"wfk":"AA==","cph":1,"np":"AAAA"}"#),
            "invalid manifest",
        ),
        (
            manifest(r#"{"k":"oct32","kw":1,"wfk":"AA==","cph":1,"np":"AAAAAAAAAA=="}"#),
            "validate the document's signature",
        ),
    ] {
        let result = opened(&block, &document, "").await;
        let Err(CryptoError::Operation(text)) = result else {
            panic!("{expected}: {result:?}")
        };
        assert!(text.contains(expected), "{text}, expected {expected}");
    }
}

#[tokio::test]
async fn missing_key_looks_like_wrong_key() {
    let block = block().await;
    let document = sealed(&block, b"x", &options("oct32", "AES")).await;
    let mut texts = Vec::new();
    for key in ["absent", "oct16", "rsa", "p256"] {
        let Err(CryptoError::Operation(text)) = opened(&block, &document, key).await else {
            panic!("{key} decrypts")
        };
        texts.push(text);
    }
    texts.dedup();
    assert_eq!(texts, ["failed to validate the document's signature"]);
}

/// A document forged with knowledge of `file_key`, with `wrapped` as the wrapped file key.
fn forged(file_key: &FileKey, key: &str, wrapping: Wrapping, wrapped: &[u8]) -> Vec<u8> {
    let prefix = [7; scheme::PREFIX];
    let manifest = Manifest {
        key: key.to_owned(),
        wrapping,
        file_key: wrapped.to_vec(),
        cipher: Cipher::AesGcm,
        prefix: prefix.to_vec(),
    };
    let header = file_key.sign(&serde_json::to_string(&manifest).unwrap()).unwrap();
    let mut segments = file_key.segments(Cipher::AesGcm, prefix).unwrap();
    segments.push(b"the forger's text");
    let payload = segments.last(Direction::Encrypt).unwrap().unwrap();
    [header.as_bytes(), &payload].concat()
}

#[tokio::test]
async fn substitute_key_is_not_forgeable() {
    let block = block().await;
    let provider = block.provider("keys").unwrap();
    let wrapped_short = {
        let with = Parameters {
            key: "oct32",
            algorithm: "A256KW",
            ..Parameters::default()
        };
        provider
            .component
            .wrap_key(&[0; 16], with)
            .await
            .unwrap()
            .ciphertext
    };
    let guesses = [[0; 32], [0xff; 32]];
    for file_key in guesses.map(|bytes| FileKey::of(Some(&bytes)).unwrap()) {
        for (what, key, wrapping, wrapped) in [
            ("noise", "oct32", Wrapping::Aes256Kw, &[0xa5; 40][..]),
            ("no key of this name", "absent", Wrapping::Aes256Kw, &[0xa5; 40]),
            ("a key of another kind", "rsa", Wrapping::Aes256Kw, &[0xa5; 40]),
            ("noise for RSA", "rsa", Wrapping::RsaOaep256, &[0xa5; 256]),
            (
                "a file key that is too short",
                "oct32",
                Wrapping::Aes256Kw,
                &wrapped_short,
            ),
        ] {
            let document = forged(&file_key, key, wrapping, wrapped);
            let result = opened(&block, &document, "").await;
            let Err(CryptoError::Operation(text)) = result else {
                panic!("{what}: {result:?}")
            };
            assert_eq!(text, "failed to validate the document's signature", "{what}");
        }
        // Check of the forging helper: with the right key the document is decrypted.
        let with = Parameters {
            key: "oct32",
            algorithm: "A256KW",
            ..Parameters::default()
        };
        let wrapped = provider.component.wrap_key(file_key.bytes(), with).await.unwrap();
        let document = forged(&file_key, "oct32", Wrapping::Aes256Kw, &wrapped.ciphertext);
        assert_eq!(opened(&block, &document, "").await.unwrap(), b"the forger's text");
    }
}

#[tokio::test]
async fn refuses_encryption_before_output() {
    let block = block().await;
    let provider = block.provider("keys").unwrap();
    for (key, algorithm, cipher, expected) in [
        (
            "oct32",
            "nope",
            "",
            "option Algorithm is not valid: algorithm NOPE is not supported",
        ),
        (
            "oct32",
            "AES",
            "des",
            "option Cipher is not valid: cipher DES is not supported",
        ),
        (
            "absent",
            "AES",
            "",
            "failed to wrap the file key: failed to retrieve the key: key not found",
        ),
        ("rsa", "AES", "", "failed to wrap the file key: key type mismatch"),
        (
            "oct16",
            "AES",
            "",
            "failed to wrap the file key: key type mismatch",
        ),
        (
            "oct32",
            "A256CBC-NOPAD",
            "",
            "failed to wrap the file key: invalid nonce",
        ),
    ] {
        let with = EncryptOptions {
            cipher: cipher.to_owned(),
            ..options(key, algorithm)
        };
        let result = provider.encrypt(&with, pieces(b"x", 1)).await;
        let Err(CryptoError::Operation(text)) = result else {
            panic!("{key} {algorithm} encrypts")
        };
        assert!(text.starts_with(expected), "{text}, expected {expected}");
    }
    let long = EncryptOptions {
        decryption_key: "k".repeat(65 << 10),
        ..options("oct32", "AES")
    };
    let result = provider.encrypt(&long, pieces(b"x", 1)).await;
    assert!(matches!(result, Err(CryptoError::Operation(text)) if text.contains("header is too long")));
}

#[tokio::test]
async fn input_error_ends_output() {
    let block = block().await;
    let provider = block.provider("keys").unwrap();
    let input = stream::iter([Ok(Bytes::from_static(b"begin")), Err(BoxError::from("gone"))]);
    let result = whole(provider.encrypt(&options("oct32", "AES"), input).await).await;
    assert!(matches!(result, Err(CryptoError::Stream(text)) if text == "gone"));
}
