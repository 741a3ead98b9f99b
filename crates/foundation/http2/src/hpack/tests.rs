//! Encoder and decoder together, and blocks of other encoders.

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Decoder, Encoder, Field, HpackError, huffman};

mod rfc;

const NO_LIMIT: usize = usize::MAX;

fn decode(decoder: &mut Decoder, block: &[u8], limit: usize) -> Result<(usize, Vec<Field>), HpackError> {
    let mut fields = Vec::new();
    let size = decoder.decode(block, limit, |field| fields.push(field))?;
    Ok((size, fields))
}

fn decoded(block: &[u8]) -> Result<Vec<Field>, HpackError> {
    Ok(decode(&mut Decoder::new(4096), block, NO_LIMIT)?.1)
}

fn header(name: &str, value: &str) -> Field {
    Field::Header(name.parse().unwrap(), value.parse().unwrap())
}

/// A literal without indexing, with plain strings.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |text: &[u8]| u8::try_from(text.len()).unwrap();
    [&[0, length(name)], name, &[length(value)], value].concat()
}

fn write(encoder: &mut Encoder, field: &Field, out: &mut BytesMut) {
    match field {
        Field::Method(method) => encoder.method(method, out),
        Field::Scheme(scheme) => encoder.scheme(std::str::from_utf8(scheme).unwrap(), out),
        Field::Authority(authority) => encoder.authority(authority, out),
        Field::Path(path) => encoder.path(path, out),
        Field::Status(status) => encoder.status(*status, out),
        Field::Header(name, value) => encoder.field(name, value, out),
        Field::Protocol(_) | Field::Malformed => panic!("no encoder writes {field:?}"),
    }
}

fn encode(encoder: &mut Encoder, fields: &[Field]) -> BytesMut {
    let mut out = BytesMut::new();
    encoder.begin(&mut out);
    for field in fields {
        write(encoder, field, &mut out);
    }
    out
}

#[test]
fn decodes_past_malformed_fields() {
    for (name, value) in [
        (&b"Content-Type"[..], &b"x"[..]),
        (b"", b"x"),
        (b"a b", b"x"),
        (b"a:b", b"x"),
        (b"a\xe9", b"x"),
        (b"a", b"x\0"),
        (b"a", b"x\r\nb: c"),
        (b"a", b"\x7f"),
        (b":unknown", b"x"),
        (b":", b"x"),
        (b":Path", b"/"),
        (b":path", b"/a b"),
        (b":path", b"/\n"),
        (b":authority", b"a\tb"),
        (b":method", b""),
        (b":method", b"G T"),
        (b":status", b"20"),
        (b":status", b"2000"),
        (b":status", b"099"),
        (b":status", b"2x0"),
    ] {
        let block = [literal(name, value), literal(b"fine", b"yes")].concat();
        assert_eq!(
            decoded(&block),
            Ok(vec![Field::Malformed, header("fine", "yes")]),
            "{} {}",
            name.escape_ascii(),
            value.escape_ascii()
        );
    }
}

#[test]
fn decodes_all_pseudo_headers() {
    for (name, value, field) in [
        (
            &b":method"[..],
            &b"PURGE"[..],
            Field::Method(Method::from_bytes(b"PURGE").unwrap()),
        ),
        (b":scheme", b"ws", Field::Scheme("ws".into())),
        (b":authority", b"", Field::Authority("".into())),
        (b":path", b"/a?b", Field::Path("/a?b".into())),
        (b":protocol", b"websocket", Field::Protocol("websocket".into())),
        (b":status", b"418", Field::Status(StatusCode::IM_A_TEAPOT)),
    ] {
        assert_eq!(decoded(&literal(name, value)), Ok(vec![field]));
    }
}

#[test]
fn malformed_entries_stay_indexed() {
    // Indexes `x: \0` and `:bad: x`; then references both, and the name `x` with another value.
    let block = b"\x40\x01x\x01\0\x40\x04:bad\x01x\xbe\xbf\x0f\x30\x01y";
    let malformed = vec![Field::Malformed; 4];
    assert_eq!(decoded(block), Ok([malformed, vec![header("x", "y")]].concat()));
}

#[test]
fn rejects_invalid_blocks() {
    for (block, error) in [
        (&b"\x80"[..], HpackError::Index(0)),
        (b"\xbe", HpackError::Index(62)),
        (b"\xff\x00", HpackError::Index(127)),
        (b"\x7f\x00\x01x", HpackError::Index(63)),
        (b"\x0f\x2f\x01x", HpackError::Index(62)),
        (b"\xff\xff\xff\xff\xff\xff\xff", HpackError::Integer),
        (b"\xff", HpackError::Truncated),
        (b"\x40", HpackError::Truncated),
        (b"\x40\x03ab", HpackError::Truncated),
        (b"\x40\x01a", HpackError::Truncated),
        (b"\x40\x01a\x05valu", HpackError::Truncated),
        (b"\x01\x81\xff", HpackError::Huffman),
        (b"\x3f\xe2\x1f", HpackError::TableSize(4097)),
        (b"\x82\x20", HpackError::LateUpdate),
    ] {
        assert_eq!(decoded(block), Err(error), "{}", block.escape_ascii());
    }
}

#[test]
fn size_updates_evict_entries() {
    let mut decoder = Decoder::new(4096);
    decode(&mut decoder, b"\x40\x01a\x01b\x40\x01c\x01d", NO_LIMIT).unwrap();
    assert_eq!(decoder.table().size(), 68);
    // Shrinks to the smallest size that holds one entry, then back to the default.
    let (_, fields) = decode(&mut decoder, b"\x3f\x03\x3f\xe1\x1f\xbe", NO_LIMIT).unwrap();
    assert_eq!(fields, [header("c", "d")]);
    assert_eq!(
        decode(&mut decoder, b"\xbf", NO_LIMIT),
        Err(HpackError::Index(63))
    );
    decode(&mut decoder, b"\x20", NO_LIMIT).unwrap();
    assert_eq!(decoder.table().size(), 0);
    // A field larger than the table is still emitted.
    let (_, fields) = decode(&mut decoder, b"\x40\x01a\x01b", NO_LIMIT).unwrap();
    assert_eq!((fields, decoder.table().size()), (vec![header("a", "b")], 0));
}

#[test]
fn entry_reuses_evicted_name() {
    let mut decoder = Decoder::new(4096);
    let (_, fields) = decode(&mut decoder, b"\x3f\x03\x40\x01a\x01b\x7e\x01c\xbe", NO_LIMIT).unwrap();
    assert_eq!(fields, [header("a", "b"), header("a", "c"), header("a", "c")]);
}

#[test]
fn limit_stops_output_not_accounting() {
    let large = "v".repeat(3000);
    let mut encoded = vec![0x40, 1, b'a', 0x7f, 0xb9, 0x16];
    encoded.extend_from_slice(large.as_bytes());
    let size = 1 + 3000 + 32;
    // The entry, and a thousand one-byte references to it.
    encoded.extend([0xbe; 1000]);
    // Then a small and a large literal, and another indexed field.
    encoded.extend(literal(b"b", b"c"));
    encoded.extend(b"\x40\x01d\x01e");
    let mut decoder = Decoder::new(4096);
    let (total, fields) = decode(&mut decoder, &encoded, 2 * size + 1).unwrap();
    assert_eq!(total, 1001 * size + 2 * 34);
    assert_eq!(fields, vec![header("a", &large); 2]);
    let (total, fields) = decode(&mut decoder, b"\xbe\xbf", size + 34).unwrap();
    assert_eq!(
        (total, fields),
        (size + 34, vec![header("d", "e"), header("a", &large)])
    );
}

#[test]
fn never_indexed_stays_sensitive() {
    let mut encoder = Encoder::new();
    let mut secret = HeaderValue::from_static("s3cret");
    secret.set_sensitive(true);
    let fields = [
        Field::Header(HeaderName::from_static("x-key"), secret),
        header("authorization", "Bearer x"),
        header("dapr-api-token", "x"),
        header("cookie", "a=b"),
    ];
    for _ in 0..2 {
        let block = encode(&mut encoder, &fields);
        assert_eq!(block[0], 0x10);
        for field in decoded(&block).unwrap() {
            assert!(
                matches!(&field, Field::Header(_, value) if value.is_sensitive()),
                "{field:?}"
            );
        }
    }
    let Field::Header(_, value) = decoded(&literal(b"a", b"b")).unwrap().remove(0) else {
        panic!("no header");
    };
    assert!(!value.is_sensitive());
}

#[test]
fn repeated_call_costs_byte_per_field() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    let call = [
        Field::Method(Method::POST),
        Field::Scheme("http".into()),
        Field::Authority("127.0.0.1:50001".into()),
        Field::Path("/dapr.proto.runtime.v1.Dapr/InvokeService".into()),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
        header("user-agent", "grpc-go/1.73.0"),
        header("dapr-app-id", "callee"),
    ];
    for turn in 0..3 {
        let block = encode(&mut encoder, &call);
        assert_eq!(block.len() == call.len(), turn > 0);
        assert_eq!(decode(&mut decoder, &block, NO_LIMIT).unwrap().1, call);
    }
    // No duplicates are inserted.
    assert_eq!(decoder.table().fields().count(), 6);
}

#[test]
fn finds_reordered_fields() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    let fields = ["te", "server", "dapr-a", "dapr-b", "user-agent"].map(|name| header(name, "same"));
    let path = Field::Path("same".into());
    let authority = Field::Authority("same".into());
    let mut turns = [&fields[..], &[authority, path]].concat();
    let mut secret = HeaderValue::from_static("same");
    secret.set_sensitive(true);
    for turn in 0..20 {
        turns.rotate_left(turn % 3);
        turns.swap(0, 3);
        let block = encode(&mut encoder, &turns);
        assert_eq!(block.len() == turns.len(), turn > 0);
        assert_eq!(decode(&mut decoder, &block, NO_LIMIT).unwrap().1, turns);
        let sensitive = Field::Header(HeaderName::from_static("te"), secret.clone());
        assert_eq!(encode(&mut encoder, &[sensitive])[0] & 0xf0, 0x10);
    }
}

#[test]
fn differing_values_are_not_indexed() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
    for turn in 0..100 {
        let fields = [
            Field::Path(format!("/{turn}").into()),
            header("dapr-caller-app-id", &turn.to_string()),
            header("traceparent", &turn.to_string()),
            header("x-request-id", &turn.to_string()),
        ];
        let block = encode(&mut encoder, &fields);
        assert_eq!(decode(&mut decoder, &block, NO_LIMIT).unwrap().1, fields);
    }
    assert_eq!(decoder.table().fields().count(), 4 + 4 + 1);
    for number in 0..100 {
        let fields = [header(&format!("dapr-{number}"), "x")];
        let block = encode(&mut encoder, &fields);
        assert_eq!(decode(&mut decoder, &block, NO_LIMIT).unwrap().1, fields);
    }
    assert_eq!(decoder.table().fields().count(), 32);
}

#[test]
fn announces_peer_table_sizes() {
    let block = |sizes: &[usize]| {
        let mut encoder = Encoder::new();
        sizes.iter().for_each(|size| encoder.set_max_table(*size));
        encode(&mut encoder, &[])
    };
    assert_eq!(block(&[])[..], []);
    assert_eq!(block(&[4096, 1 << 20])[..], []);
    assert_eq!(block(&[0])[..], [0x20]);
    assert_eq!(block(&[10, 20])[..], [0x2a, 0x34]);
    assert_eq!(block(&[20, 10])[..], [0x2a]);
    assert_eq!(block(&[0, 1 << 20])[..], [0x20, 0x3f, 0xe1, 0x1f]);
}

#[test]
fn values_do_not_retain_block() {
    let block = Bytes::from([literal(b"a", b"one"), b"\x40\x01b\x03two".to_vec()].concat());
    let mut fields = Vec::new();
    Decoder::new(4096)
        .decode(&block, NO_LIMIT, |field| fields.push(field))
        .unwrap();
    assert_eq!(fields, [header("a", "one"), header("b", "two")]);
    assert!(block.is_unique());
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "content-type",
            "te",
            "user-agent",
            "grpc-status",
            "traceparent",
            "authorization",
            "accept-encoding",
            "via",
        ])
        .prop_map(str::to_owned),
        "dapr-[a-c]{1,2}",
        "[a-z0-9-]{1,80}",
    ]
}

fn field() -> impl Strategy<Value = Field> {
    let text = || "[!-~]{1,40}";
    let value = prop_oneof!["[a-c]?", "gzip, deflate", "[ -~\t]{0,60}", "[a-z]{500,1200}"];
    prop_oneof![
        prop::sample::select(vec!["GET", "POST", "OPTIONS", "PURGE"])
            .prop_map(|method| Field::Method(method.parse().unwrap())),
        "https?|ws".prop_map(|scheme| Field::Scheme(scheme.into())),
        text().prop_map(|authority| Field::Authority(authority.into())),
        prop_oneof!["/[a-c]?", text()].prop_map(|path| Field::Path(path.into())),
        (100u16..1000).prop_map(|status| Field::Status(StatusCode::from_u16(status).unwrap())),
        (name(), value).prop_map(|(name, value)| header(&name, &value)),
    ]
}

/// Table size changes between two blocks, and the fields of the next.
fn blocks() -> impl Strategy<Value = Vec<(Vec<usize>, Vec<Field>)>> {
    let sizes = vec(prop_oneof![0usize..200, 0usize..6000], 0..3);
    let sizes = prop_oneof![3 => Just(Vec::new()), 1 => sizes];
    vec((sizes, vec(field(), 0..12)), 1..8)
}

proptest! {
    #[test]
    fn fields_round_trip(blocks in blocks()) {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new(4096));
        for (sizes, fields) in blocks {
            sizes.iter().for_each(|size| encoder.set_max_table(*size));
            let block = encode(&mut encoder, &fields);
            let (size, decoded) = decode(&mut decoder, &block, NO_LIMIT).unwrap();
            prop_assert_eq!(&decoded, &fields);
            prop_assert!(size >= 32 * fields.len());
            prop_assert!(decoder.table().fields().count() <= 32 && decoder.table().size() <= 4096);
        }
    }

    #[test]
    fn huffman_and_plain_strings_agree(value in "[ -~]{0,100}") {
        let coded = huffman::encode(value.as_bytes());
        let mut block = vec![0, 0x81, 0x1f, 0x80 | u8::try_from(coded.len()).unwrap()];
        block.extend_from_slice(&coded);
        if coded.len() < 127 {
            prop_assert_eq!(decoded(&block), Ok(vec![header("a", &value)]));
        }
    }

    #[test]
    fn decodes_arbitrary_bytes(blocks: Vec<Vec<u8>>, limit in 0usize..500) {
        harmless(&blocks, limit)?;
    }

    #[test]
    fn decodes_corrupted_blocks(
        blocks in blocks(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        limit in 0usize..2000,
    ) {
        let mut encoder = Encoder::new();
        let mut blocks: Vec<Vec<u8>> = blocks.iter().map(|(_, fields)| encode(&mut encoder, fields).to_vec()).collect();
        for (at, byte) in damage {
            let block = at.get_mut(&mut blocks);
            if !block.is_empty() {
                *at.get_mut(block) = byte;
            }
        }
        harmless(&blocks, limit)?;
    }
}

fn harmless(blocks: &[Vec<u8>], limit: usize) -> Result<(), TestCaseError> {
    let mut decoder = Decoder::new(4096);
    for block in blocks {
        let Ok((size, fields)) = decode(&mut decoder, block, limit) else {
            break;
        };
        prop_assert!(size <= limit || fields.len() * 32 <= limit);
        prop_assert!(decoder.table().size() <= 4096);
    }
    Ok(())
}
