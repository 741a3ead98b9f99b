//! Header blocks of one connection: no input panics, the limit holds, and decoded fields survive a round
//! trip.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use outrigger_http2::hpack::{Decoder, Encoder, Field};

const TABLE: usize = 4096;

fn write(encoder: &mut Encoder, field: &Field, out: &mut BytesMut) {
    match field {
        Field::Method(method) => encoder.method(method, out),
        Field::Scheme(scheme) => encoder.scheme(&String::from_utf8_lossy(scheme), out),
        Field::Authority(authority) => encoder.authority(authority, out),
        Field::Path(path) => encoder.path(path, out),
        Field::Status(status) => encoder.status(*status, out),
        Field::Header(name, value) => encoder.field(name, value, out),
        Field::Protocol(_) | Field::Malformed => {}
    }
}

fn survives(field: &Field) -> bool {
    match field {
        Field::Scheme(scheme) => scheme.is_ascii(),
        Field::Protocol(_) | Field::Malformed => false,
        _ => true,
    }
}

fuzz_target!(|input: (u16, Vec<&[u8]>)| {
    let (limit, blocks) = input;
    let limit = usize::from(limit);
    let (mut decoder, mut encoder, mut other) = (Decoder::new(TABLE), Encoder::new(), Decoder::new(TABLE));
    for block in blocks {
        let mut fields = Vec::new();
        let Ok(size) = decoder.decode(block, limit, |field| fields.push(field))
        else {
            return;
        };
        assert!(fields.len() * 32 <= limit.min(size));
        fields.retain(survives);
        let mut out = BytesMut::new();
        encoder.begin(&mut out);
        fields
            .iter()
            .for_each(|field| write(&mut encoder, field, &mut out));
        let mut again = Vec::new();
        other
            .decode(&out, usize::MAX, |field| again.push(field))
            .expect("our own block");
        assert_eq!(again, fields);
    }
});
