//! The handwritten codec of the call stream against the generated messages.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use outrigger_wire::common::v1::{HttpExtension, InvokeRequest, InvokeResponse, StreamPayload};
use outrigger_wire::internals::v1::{
    Actor, InternalInvokeRequest, InternalInvokeRequestStream, InternalInvokeResponse,
    InternalInvokeResponseStream, ListStringValue, Status,
};
use outrigger_wire::invoke::{
    Chunk, DecodeError, FRAME_PREFIX, FrameError, Limits, RequestHead, RequestParts, ResponseHead,
    ResponseParts, Verb, decode_request, decode_response, encode_chunk, encode_request, encode_response,
    entries, method_of, verb_of,
};
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost_types::Any;

type Metadata = HashMap<String, ListStringValue>;

fn metadata() -> impl Strategy<Value = Metadata> {
    let values = vec("[ -~é€]{0,20}", 1..4).prop_map(|values| ListStringValue { values });
    hash_map("[a-z][a-z0-9-]{0,11}", values, 0..12)
}

fn payload() -> impl Strategy<Value = StreamPayload> {
    (vec(any::<u8>(), 0..300), any::<u64>()).prop_map(|(data, seq)| StreamPayload {
        data: data.into(),
        seq,
    })
}

fn actor() -> impl Strategy<Value = Actor> {
    (".{0,8}", ".{0,8}").prop_map(|(actor_type, actor_id)| Actor { actor_type, actor_id })
}

fn content_type() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{1,12}/[a-z+.-]{1,12}"]
}

/// The codec writes an `Any` only if it has a type.
fn type_only(type_url: String) -> Option<Any> {
    (!type_url.is_empty()).then_some(Any {
        type_url,
        value: Vec::new(),
    })
}

prop_compose! {
    fn request()(
        method in ".{0,40}", verb in 0..10i32, querystring in "[a-z=&]{0,20}", type_url in "[a-z./]{0,20}",
        content_type in content_type(), metadata in metadata(), actor in option::of(actor()),
    ) -> InternalInvokeRequest {
        let http_extension = Some(HttpExtension { verb, querystring });
        let message = Some(InvokeRequest { method, data: type_only(type_url), content_type, http_extension });
        InternalInvokeRequest { ver: 1, metadata, message, actor }
    }
}

prop_compose! {
    fn response()(
        code in any::<i32>(), message in ".{0,20}", details in vec(("[a-z.]{0,9}", vec(any::<u8>(), 0..9)), 0..3),
        type_url in "[a-z./]{0,20}", content_type in content_type(),
        headers in metadata(), trailers in metadata(),
    ) -> InternalInvokeResponse {
        let details = details.into_iter().map(|(type_url, value)| Any { type_url, value }).collect();
        InternalInvokeResponse {
            status: Some(Status { code, message, details }),
            headers,
            trailers,
            message: Some(InvokeResponse { data: type_only(type_url), content_type }),
        }
    }
}

fn assert_same(map: &HeaderMap, metadata: &Metadata) {
    assert_eq!(
        map.len(),
        metadata.values().map(|list| list.values.len()).sum::<usize>()
    );
    for (name, list) in metadata {
        let values: Vec<_> = map.get_all(name).iter().map(|v| v.as_bytes()).collect();
        assert_eq!(
            values,
            list.values.iter().map(String::as_bytes).collect::<Vec<_>>(),
            "values of {name}"
        );
    }
}

fn chunk_of(payload: &Option<StreamPayload>) -> Option<Chunk> {
    payload.as_ref().map(|p| Chunk {
        seq: p.seq,
        len: p.data.len(),
    })
}

/// Completes a frame with its data, checks its prefix, and returns the message.
fn message_of(mut frame: BytesMut, payload: &Option<StreamPayload>) -> Bytes {
    if let Some(payload) = payload {
        frame.extend_from_slice(&payload.data);
    }
    let mut message = frame.freeze();
    let prefix = message.split_to(FRAME_PREFIX);
    assert_eq!(prefix[0], 0);
    assert_eq!(
        u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize,
        message.len()
    );
    message
}

proptest! {
    #[test]
    fn decodes_generated_request(request in request(), payload in option::of(payload())) {
        let frame = InternalInvokeRequestStream { request: Some(request.clone()), payload: payload.clone() };
        let bytes = Bytes::from(frame.encode_to_vec());
        let read = decode_request(&bytes, &Limits::default()).unwrap();
        let head = read.head.unwrap();
        assert_same(&head.metadata, &request.metadata);
        prop_assert_eq!(read.payload.map(|p| StreamPayload { data: p.data, seq: p.seq }), payload);
        prop_assert_eq!(RequestHead::from_message(request, &Limits::default()).unwrap().0, head);
    }

    #[test]
    fn generated_decoder_reads_request(
        request in request(), payload in option::of(payload()),
    ) {
        let (head, _) = RequestHead::from_message(request.clone(), &Limits::default()).unwrap();
        let mut out = BytesMut::new();
        encode_request(&head.parts(), entries(&head.metadata), chunk_of(&payload), &mut out).unwrap();
        let read = InternalInvokeRequestStream::decode(message_of(out, &payload)).unwrap();
        prop_assert_eq!(read, InternalInvokeRequestStream { request: Some(request), payload });
    }

    #[test]
    fn decodes_generated_response(response in response(), payload in option::of(payload())) {
        let frame = InternalInvokeResponseStream { response: Some(response.clone()), payload: payload.clone() };
        let bytes = Bytes::from(frame.encode_to_vec());
        let read = decode_response(&bytes, &Limits::default()).unwrap();
        let head = read.head.unwrap();
        assert_same(&head.headers, &response.headers);
        assert_same(&head.trailers, &response.trailers);
        prop_assert_eq!(read.payload.map(|p| StreamPayload { data: p.data, seq: p.seq }), payload);
        prop_assert_eq!(ResponseHead::from_message(response, &Limits::default()).unwrap().0, head);
    }

    #[test]
    fn generated_decoder_reads_response(
        response in response(), payload in option::of(payload()),
    ) {
        let (head, _) = ResponseHead::from_message(response.clone(), &Limits::default()).unwrap();
        let mut out = BytesMut::new();
        let chunk = chunk_of(&payload);
        encode_response(&head.parts(), entries(&head.headers), entries(&head.trailers), chunk, &mut out).unwrap();
        let read = InternalInvokeResponseStream::decode(message_of(out, &payload)).unwrap();
        prop_assert_eq!(read, InternalInvokeResponseStream { response: Some(response), payload });
    }

    #[test]
    fn generated_decoder_reads_chunk(payload in payload()) {
        let mut out = BytesMut::new();
        let payload = Some(payload);
        encode_chunk(chunk_of(&payload).unwrap(), &mut out).unwrap();
        let read = InternalInvokeRequestStream::decode(message_of(out, &payload)).unwrap();
        prop_assert_eq!(read, InternalInvokeRequestStream { request: None, payload });
    }

    #[test]
    fn heads_round_trip_unary_messages(request in request(), response in response(), data in vec(any::<u8>(), 0..50)) {
        let limits = Limits::default();
        let (head, _) = RequestHead::from_message(request, &limits).unwrap();
        let message = head.clone().into_message(data.clone().into());
        let (again, body) = RequestHead::from_message(message, &limits).unwrap();
        prop_assert_eq!((again, &body[..]), (head, &data[..]));
        let (head, _) = ResponseHead::from_message(response, &limits).unwrap();
        let message = head.clone().into_message(data.clone().into()).unwrap();
        let (again, body) = ResponseHead::from_message(message, &limits).unwrap();
        prop_assert_eq!((again, &body[..]), (head, &data[..]));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        let _ = decode_request(&bytes, &Limits::default());
        let _ = decode_response(&bytes, &Limits::default());
    }

    /// Corrupting a valid message reaches deeper code than random bytes.
    #[test]
    fn corrupted_messages_do_not_panic(
        request in request(), response in response(), payload in payload(), damage in vec((any::<u16>(), any::<u8>()), 1..8),
    ) {
        let payload = Some(payload);
        let request = InternalInvokeRequestStream { request: Some(request), payload: payload.clone() };
        let response = InternalInvokeResponseStream { response: Some(response), payload };
        for mut bytes in [request.encode_to_vec(), response.encode_to_vec()] {
            for (at, byte) in &damage {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *byte;
            }
            let bytes = Bytes::from(bytes);
            let _ = decode_request(&bytes, &Limits::default());
            let _ = decode_response(&bytes, &Limits::default());
        }
    }
}

fn request_with(entries: &[(&str, &str)]) -> Bytes {
    let list = |value: &str| ListStringValue {
        values: vec![value.to_owned()],
    };
    let metadata = entries
        .iter()
        .map(|(name, value)| ((*name).to_owned(), list(value)))
        .collect();
    let request = InternalInvokeRequest {
        metadata,
        message: Some(InvokeRequest::default()),
        ..Default::default()
    };
    InternalInvokeRequestStream {
        request: Some(request),
        payload: None,
    }
    .encode_to_vec()
    .into()
}

fn decoded(message: &Bytes) -> Result<RequestHead, DecodeError> {
    decode_request(message, &Limits::default()).map(|frame| frame.head.expect("a head"))
}

#[test]
fn lowercases_and_renames_headers() {
    let head = decoded(&request_with(&[("X-Request-Id", "7"), (":path", "/a")])).unwrap();
    assert_eq!(head.metadata["x-request-id"], "7");
    assert_eq!(head.metadata["dapr-path"], "/a");
}

#[test]
fn detects_grpc_caller_by_spelling() {
    for (name, value, from_grpc) in [
        ("content-type", "application/grpc", true),
        ("content-type", "application/grpc+proto", true),
        ("Content-Type", "application/grpc", false),
        ("Content-Type", "text/plain", false),
        ("content-type", "text/plain", false),
        ("accept", "application/grpc", false),
    ] {
        let head = decoded(&request_with(&[(name, value)])).unwrap();
        assert_eq!(head.is_from_grpc(), from_grpc, "{name}: {value}");
        let (head, _) =
            RequestHead::from_message(head.into_message(Bytes::new()), &Limits::default()).unwrap();
        assert_eq!(head.is_from_grpc(), from_grpc, "{name}: {value}");
    }
}

#[test]
fn error_names_illegal_header() {
    let error = decoded(&request_with(&[("no spaces", "1")])).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Name {
            name: "no spaces".to_owned()
        }
    );
}

#[test]
fn error_locates_illegal_value() {
    let error = decoded(&request_with(&[("x-note", "two\nlines")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a value of metadata \"x-note\" is not legal in a header: it holds a control character"
    );
}

#[test]
fn limits_metadata_values() {
    let limits = Limits {
        metadata_values: 2,
        ..Limits::default()
    };
    let message = request_with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    assert_eq!(
        decode_request(&message, &limits),
        Err(DecodeError::TooManyValues { limit: 2 })
    );
}

#[test]
fn rejects_request_without_message() {
    let frame = InternalInvokeRequestStream {
        request: Some(InternalInvokeRequest::default()),
        payload: None,
    };
    let error = decode_request(&frame.encode_to_vec().into(), &Limits::default()).unwrap_err();
    assert_eq!(
        error,
        DecodeError::Missing {
            field: "request.message"
        }
    );
}

#[test]
fn merges_repeated_fields() {
    // A protobuf message field may be repeated; later parts are merged into the first.
    let first = request_with(&[("a", "1")]);
    let second = request_with(&[("a", "2"), ("b", "3")]);
    let head = decoded(&[first, second].concat().into()).unwrap();
    assert_eq!(head.metadata.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(head.metadata["b"], "3");
}

#[test]
fn skips_unknown_fields() {
    // Field 100 as a number, 8 bytes, a length, a group with a number, and 4 bytes.
    let unknown = [
        &[0xa0, 0x06, 0x01][..],
        &[0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xa2, 0x06, 2, 9, 9],
        &[0xa3, 0x06, 0x08, 0x05, 0xa4, 0x06],
        &[0xa5, 0x06, 1, 2, 3, 4],
    ]
    .concat();
    let message = [
        unknown.clone().into(),
        request_with(&[("a", "1")]),
        unknown.into(),
    ]
    .concat();
    assert_eq!(decoded(&message.into()).unwrap().metadata["a"], "1");
}

#[test]
fn groups_values_by_name() {
    let mut map = HeaderMap::new();
    for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        map.append(name, value.parse().unwrap());
    }
    let mut out = BytesMut::new();
    encode_request(&RequestParts::default(), entries(&map), None, &mut out).unwrap();
    let read = InternalInvokeRequestStream::decode(message_of(out, &None)).unwrap();
    let metadata = read.request.unwrap().metadata;
    assert_eq!(metadata["a"].values, ["1", "3"]);
    assert_eq!(metadata["b"].values, ["2"]);
}

#[test]
fn encodes_non_utf8_as_latin1() {
    let mut out = BytesMut::new();
    encode_response(
        &ResponseParts::default(),
        [("x-name", &b"Ren\xe9"[..])],
        [],
        None,
        &mut out,
    )
    .unwrap();
    let read = InternalInvokeResponseStream::decode(message_of(out, &None)).unwrap();
    assert_eq!(read.response.unwrap().headers["x-name"].values, ["René"]);
}

#[test]
fn rejects_oversized_frame() {
    let chunk = Chunk {
        seq: 0,
        len: u32::MAX as usize,
    };
    let error = encode_chunk(chunk, &mut BytesMut::new()).unwrap_err();
    assert!(matches!(error, FrameError::TooLarge { len, .. } if len > chunk.len));
}

#[test]
fn verbs_round_trip() {
    for verb in (1..10).map(|number| Verb::try_from(number).unwrap()) {
        let method = method_of(verb).unwrap();
        assert_eq!(verb_of(&method), verb);
        assert_eq!(verb.as_str_name(), method.as_str());
    }
    assert_eq!(method_of(Verb::None), None);
    assert_eq!(verb_of(&http::Method::from_bytes(b"BREW").unwrap()), Verb::None);
}
