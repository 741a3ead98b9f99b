//! The cryptography API over both protocols: streamed documents, and single operations with keys.

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use outrigger_transport::body::{Body, BoxError};
use outrigger_wire::common::v1::StreamPayload;
use outrigger_wire::runtime::v1 as proto;
use prost::Message;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::common::grpc::{self, Outcome};
use crate::common::{Answer, Net, Node, post, request, within};

const KEYS: &str = include_str!("../../../../components/crypto/tests/data/keys.jwks.json");
const SMALL: &[u8] = include_bytes!("../../../blocks/tests/data/crypto/small-rsa.enc");
const TWO_SEGMENTS: &[u8] = include_bytes!("../../../blocks/tests/data/crypto/two-segments.enc");
const ENCRYPT: &str = "/v1.0-alpha1/crypto/keys/encrypt";
const DECRYPT: &str = "/v1.0-alpha1/crypto/keys/decrypt";
const GRPC: &str = "/dapr.proto.runtime.v1.Dapr/";

fn component() -> String {
    let keys: serde_json::Value = serde_json::from_str(KEYS).unwrap();
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: keys\nspec:\n  type: crypto.dapr.jwks\n  \
         version: v1\n  metadata:\n  - name: jwks\n    value: '{keys}'\n"
    )
}

async fn with_keys() -> Node {
    Net::plain().sidecar("me").resource(&component()).start().await
}

fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31) >> 3) as u8).collect()
}

async fn encrypted(node: &Node, plain: Vec<u8>) -> Bytes {
    let headers = ["dapr-key-name: oct32", "dapr-key-wrap-algorithm: AES"];
    let answer = node
        .ask(request("PUT", ENCRYPT, &headers, Bytes::from(plain)))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    answer.body
}

async fn decrypted(node: &Node, document: impl Into<Bytes>) -> Answer {
    node.ask(request("PUT", DECRYPT, &[], document.into())).await
}

fn encrypt_request(options: Option<proto::EncryptRequestOptions>, data: &[u8], seq: u64) -> Vec<u8> {
    let data = Bytes::copy_from_slice(data);
    proto::EncryptRequest {
        options,
        payload: Some(StreamPayload { data, seq }),
    }
    .encode_to_vec()
}

fn options(key: &str, algorithm: &str) -> Option<proto::EncryptRequestOptions> {
    Some(proto::EncryptRequestOptions {
        component_name: "keys".to_owned(),
        key_name: key.to_owned(),
        key_wrap_algorithm: algorithm.to_owned(),
        ..proto::EncryptRequestOptions::default()
    })
}

async fn encrypt(node: &Node, messages: &[Vec<u8>]) -> Outcome {
    let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    grpc::call(node.ports.grpc, &format!("{GRPC}EncryptAlpha1"), &[], &messages).await
}

async fn decrypt(node: &Node, document: &[u8], piece: usize) -> Outcome {
    let pieces = document.chunks(piece).zip(0..).map(|(data, seq)| {
        let options = (seq == 0).then(|| proto::DecryptRequestOptions {
            component_name: "keys".to_owned(),
            key_name: String::new(),
        });
        let data = Bytes::copy_from_slice(data);
        proto::DecryptRequest {
            options,
            payload: Some(StreamPayload { data, seq }),
        }
        .encode_to_vec()
    });
    let pieces: Vec<_> = pieces.collect();
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    grpc::call(node.ports.grpc, &format!("{GRPC}DecryptAlpha1"), &[], &pieces).await
}

/// The concatenated pieces of a response, after a check of their numbers.
fn payload(outcome: &Outcome) -> Vec<u8> {
    let mut all = Vec::new();
    for (message, expected) in outcome.messages.iter().zip(0_u64..) {
        // Both kinds of responses have the same shape.
        let payload = proto::EncryptResponse::decode(message.clone())
            .unwrap()
            .payload
            .unwrap();
        assert_eq!(payload.seq, expected);
        assert!(!payload.data.is_empty() && payload.data.len() <= (64 << 10) + 16);
        all.extend_from_slice(&payload.data);
    }
    all
}

#[tokio::test]
async fn decrypts_document_of_other_api() {
    let node = with_keys().await;
    for length in [0, 5, 65_536, 200_000] {
        let plain = text(length);
        let document = encrypted(&node, plain.clone()).await;
        assert!(document.starts_with(b"dapr.io/enc/v1\n"));
        let outcome = decrypt(&node, &document, 10_000).await;
        assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
        assert!(payload(&outcome) == plain, "{length}");
        let pieces: Vec<_> = plain
            .chunks(7_000)
            .zip(0..)
            .map(|(data, seq)| {
                encrypt_request((seq == 0).then(|| options("rsa", "rsa")).flatten(), data, seq)
            })
            .collect();
        if pieces.is_empty() {
            continue;
        }
        let outcome = encrypt(&node, &pieces).await;
        assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
        let answer = decrypted(&node, payload(&outcome)).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body == plain, "{length}");
    }
    let labels = [
        "component=\"keys\"",
        "operation=\"crypto_op\"",
        "success=\"true\"",
    ];
    node.counts("dapr_component_crypto_count", &labels, 14.0).await;
}

#[tokio::test]
async fn decrypts_documents_of_dapr() {
    let node = with_keys().await;
    for (document, length) in [(SMALL, 20), (TWO_SEGMENTS, 65_556)] {
        let answer = decrypted(&node, document).await;
        assert!(answer.status == 200 && answer.body == text(length));
        assert!(payload(&decrypt(&node, document, 4096).await) == text(length));
    }
    let unnamed = include_bytes!("../../../blocks/tests/data/crypto/small-unnamed.enc").as_slice();
    let message = decrypted(&node, unnamed).await.error(500, "ERR_CRYPTO");
    assert!(message.contains("no key name was provided"), "{message}");
    let named = request(
        "PUT",
        DECRYPT,
        &["dapr-key-name: oct32"],
        Bytes::from_static(unnamed),
    );
    assert_eq!(node.ask(named).await.body, text(20));
}

#[tokio::test]
async fn streams_large_documents() {
    let node = with_keys().await;
    let plain = text(3 << 20);
    let document = encrypted(&node, plain.clone()).await;
    let answer = decrypted(&node, document.clone()).await;
    assert!(answer.body == plain);
    assert_eq!(answer.header("content-length"), None, "it is sent as it comes");
    let mut tampered = document.to_vec();
    *tampered.last_mut().unwrap() ^= 1;
    let response = node
        .send(request("PUT", DECRYPT, &[], Bytes::from(tampered)))
        .await;
    assert_eq!(response.status(), 200, "the beginning is right");
    let whole = within(response.into_body().collect()).await;
    assert!(whole.is_err(), "the end of the response is missing");
}

#[tokio::test]
async fn accepts_upload_sent_before_read() {
    let node = Net::plain()
        .sidecar("me")
        .flag("--max-body-size=64Mi")
        .resource(&component())
        .start()
        .await;
    // More than the buffers of both sockets.
    let length = 24 << 20;
    let mut sent = format!(
        "PUT {ENCRYPT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\
         dapr-key-name: oct32\r\ndapr-key-wrap-algorithm: AES\r\n\r\n"
    )
    .into_bytes();
    sent.resize(sent.len() + length, 7);
    let mut stream = TcpStream::connect(("127.0.0.1", node.ports.http)).await.unwrap();
    within(stream.write_all(&sent)).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(
        answer.len() > length && answer.ends_with(b"\r\n0\r\n\r\n"),
        "it is whole"
    );
}

#[tokio::test]
async fn reports_tampered_documents() {
    let node = with_keys().await;
    let document = encrypted(&node, text(100_000)).await;
    let mut tampered = document.to_vec();
    *tampered.last_mut().unwrap() ^= 1;
    let message = decrypted(&node, tampered.clone()).await.error(500, "ERROR");
    assert_eq!(message, "error processing segment 1: failed to decrypt segment");
    let outcome = decrypt(&node, &tampered, 50_000).await;
    assert_eq!(outcome.status.code(), Code::Internal);
    assert_eq!(
        outcome.status.message(),
        "failed to perform operation: error processing segment 1: failed to decrypt segment"
    );
    let cut = document.slice(..document.len() - 1);
    decrypted(&node, cut).await.error(500, "ERROR");
    let mut header = document.to_vec();
    header[30] ^= 1;
    decrypted(&node, header).await.error(500, "ERR_CRYPTO");
    for nothing in [&b""[..], b"hello", &document[..20]] {
        let message = decrypted(&node, Bytes::copy_from_slice(nothing))
            .await
            .error(500, "ERR_CRYPTO");
        assert!(
            message.starts_with("failed to perform operation: invalid header: "),
            "{message}"
        );
    }
    let absent = request("PUT", DECRYPT, &["dapr-key-name: absent"], document);
    let message = node.ask(absent).await.error(500, "ERR_CRYPTO");
    assert!(
        message.ends_with("failed to validate the document's signature"),
        "{message}"
    );
}

#[tokio::test]
async fn refuses_incomplete_requests() {
    let node = with_keys().await;
    let put = |path: &str, headers: &[&str]| request("PUT", path, headers, "x");
    let message = node.ask(put(ENCRYPT, &[])).await.error(400, "ERR_BAD_REQUEST");
    assert_eq!(message, "invalid request: missing header 'dapr-key-name'");
    let message = node
        .ask(put(ENCRYPT, &["dapr-key-name: k"]))
        .await
        .error(400, "ERR_BAD_REQUEST");
    assert_eq!(
        message,
        "invalid request: missing header 'dapr-key-wrap-algorithm'"
    );
    let message = node
        .ask(put("/v1.0-alpha1/crypto/other/encrypt", &[]))
        .await
        .error(400, "ERR_CRYPTO_PROVIDER_NOT_FOUND");
    assert_eq!(message, "crypto provider other not found");
    let headers = ["dapr-key-name: absent", "dapr-key-wrap-algorithm: AES"];
    let message = node.ask(put(ENCRYPT, &headers)).await.error(500, "ERR_CRYPTO");
    assert_eq!(
        message,
        "failed to perform operation: failed to wrap the file key: failed to retrieve the key: key not found"
    );
    let bare = Net::plain().sidecar("bare").start().await;
    bare.ask(put(ENCRYPT, &[]))
        .await
        .error(500, "ERR_CRYPTO_PROVIDERS_NOT_CONFIGURED");
    let small = Net::plain()
        .sidecar("small")
        .flag("--max-body-size=1Ki")
        .resource(&component())
        .start()
        .await;
    let headers = ["dapr-key-name: oct32", "dapr-key-wrap-algorithm: AES"];
    let large = request("PUT", ENCRYPT, &headers, Bytes::from(text(5000)));
    let message = small.ask(large).await.error(500, "ERROR");
    assert!(message.contains("too large"), "{message}");
}

#[tokio::test]
async fn validates_stream_messages() {
    let node = with_keys().await;
    let good = || encrypt_request(options("oct32", "AES"), b"x", 0);
    let other = Some(proto::EncryptRequestOptions {
        component_name: "other".to_owned(),
        ..options("oct32", "AES").unwrap()
    });
    for (messages, code, expected) in [
        (
            vec![encrypt_request(None, b"x", 0)],
            Code::InvalidArgument,
            "does not contain the required options",
        ),
        (
            vec![encrypt_request(options("", "AES"), b"x", 0)],
            Code::InvalidArgument,
            "missing property 'keyName'",
        ),
        (
            vec![encrypt_request(options("k", ""), b"x", 0)],
            Code::InvalidArgument,
            "missing property 'keyWrapAlgorithm'",
        ),
        (
            vec![encrypt_request(other, b"x", 0)],
            Code::InvalidArgument,
            "crypto provider other not found",
        ),
        (
            vec![encrypt_request(options("oct32", "nope"), b"x", 0)],
            Code::Internal,
            "algorithm NOPE is not supported",
        ),
        (vec![], Code::Internal, "error receiving the first message: EOF"),
        (
            vec![good(), encrypt_request(None, b"y", 2)],
            Code::Internal,
            "invalid sequence number received: 2 (expected: 1)",
        ),
        (
            vec![encrypt_request(options("oct32", "AES"), b"x", 1)],
            Code::Internal,
            "invalid sequence number received: 1 (expected: 0)",
        ),
        (
            vec![good(), encrypt_request(options("oct32", "AES"), b"y", 1)],
            Code::Internal,
            "options found in non-leading message",
        ),
    ] {
        let outcome = encrypt(&node, &messages).await;
        assert_eq!(outcome.status.code(), code, "{expected}: {:?}", outcome.status);
        assert!(
            outcome.status.message().contains(expected),
            "{:?}",
            outcome.status
        );
    }
    let silent = Body::stream(StreamBody::new(
        stream::pending::<Result<Frame<Bytes>, BoxError>>(),
    ));
    let method = format!("{GRPC}EncryptAlpha1");
    let response = grpc::start(node.ports.grpc, &method, &[], silent).await;
    let outcome = Outcome::read(response).await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
    assert!(
        outcome
            .status
            .message()
            .contains("error waiting for first message")
    );
}

#[tokio::test]
async fn disables_single_operations_by_default() {
    let node = with_keys().await;
    let answer = node.ask(post("/v1.0-alpha1/subtlecrypto/keys/sign", "{}")).await;
    let message = answer.error(501, "ERR_API_UNIMPLEMENTED");
    assert_eq!(message, "this API is currently not implemented");
    let method = format!("{GRPC}SubtleGetKeyAlpha1");
    let outcome = grpc::unary(
        node.ports.grpc,
        &method,
        &[],
        &proto::SubtleGetKeyRequest::default(),
    )
    .await;
    assert_eq!(outcome.status.code(), Code::Unimplemented);
}

#[tokio::test]
async fn runs_single_operations() {
    let node = Net::plain()
        .sidecar("me")
        .spec("  features:\n  - name: SubtleCrypto\n    enabled: true\n")
        .resource(&component())
        .start()
        .await;
    let subtle = async |operation: &str, body: serde_json::Value| {
        let path = format!("/v1.0-alpha1/subtlecrypto/keys/{operation}");
        node.ask(post(&path, body.to_string())).await
    };
    // 32 bytes each, in base64.
    let digest = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
    let with = json!({ "keyName": "oct32", "algorithm": "A256GCM", "nonce": "AAECAwQFBgcICQoL", "associatedData": "eA==" });
    let and = |more: serde_json::Value| {
        let mut all = with.clone();
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let sealed = subtle("encrypt", and(json!({ "plaintext": digest })))
        .await
        .json();
    let opened = subtle("decrypt", and(sealed.clone())).await.json();
    assert_eq!(opened, json!({ "plaintext": digest }));
    let mut tampered = sealed;
    tampered["tag"] = "AAAAAAAAAAAAAAAAAAAAAA==".into();
    let message = subtle("decrypt", and(tampered)).await.error(500, "ERR_CRYPTO");
    assert_eq!(
        message, "failed to perform operation: failed to decrypt",
        "the reason is not revealed"
    );
    let kek = json!({ "keyName": "rsa", "algorithm": "RSA-OAEP-256", "plaintextKey": digest });
    let wrapped = subtle("wrapkey", kek).await.json();
    let unwrap =
        json!({ "keyName": "rsa", "algorithm": "RSA-OAEP-256", "wrappedKey": wrapped["wrappedKey"] });
    assert_eq!(
        subtle("unwrapkey", unwrap).await.json(),
        json!({ "plaintextKey": digest })
    );
    let signed = subtle(
        "sign",
        json!({ "keyName": "p256", "algorithm": "ES256", "digest": digest }),
    )
    .await
    .json();
    let verify = |digest: &str| json!({ "keyName": "p256-public", "algorithm": "ES256", "digest": digest, "signature": signed["signature"] });
    assert_eq!(
        subtle("verify", verify(digest)).await.json(),
        json!({ "valid": true })
    );
    let other = digest.replace("AQID", "AAAA");
    assert_eq!(subtle("verify", verify(&other)).await.json(), json!({}));
    let key = subtle("getkey", json!({ "name": "rsa" })).await.json();
    assert!(
        key["publicKey"]
            .as_str()
            .unwrap()
            .starts_with("-----BEGIN PUBLIC KEY-----\n"),
        "{key}"
    );
    let method = format!("{GRPC}SubtleGetKeyAlpha1");
    let ask = proto::SubtleGetKeyRequest {
        component_name: "keys".to_owned(),
        name: "p256".to_owned(),
        format: 1,
    };
    let outcome = grpc::unary(node.ports.grpc, &method, &[], &ask).await;
    let key: proto::SubtleGetKeyResponse = outcome.message();
    assert!(
        key.name == "p256"
            && key.public_key.contains(r#""crv":"P-256""#)
            && !key.public_key.contains("\"d\"")
    );
    let message = subtle("getkey", json!({ "name": "oct32" }))
        .await
        .error(500, "ERR_CRYPTO_KEY");
    assert_eq!(message, "failed to retrieve key oct32: key not found");
    let answer = subtle("getkey", json!({ "name": "rsa", "format": 7 })).await;
    assert_eq!(
        answer.error(400, "ERR_BAD_REQUEST"),
        "invalid request: invalid key format"
    );
    subtle("sign", json!({ "digest": "not base64!" }))
        .await
        .error(400, "ERR_MALFORMED_REQUEST");
    let labels = ["component=\"keys\"", "operation=\"get\"", "success=\"false\""];
    node.counts("dapr_component_crypto_count", &labels, 1.0).await;
}
