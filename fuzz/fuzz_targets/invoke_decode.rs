//! The decoders of the call stream: no input panics, and accepted messages survive a round trip.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use outrigger_wire::invoke::{
    FRAME_PREFIX, Limits, decode_request, decode_response, encode_request, encode_response, entries,
};

fuzz_target!(|data: &[u8]| {
    let message = Bytes::copy_from_slice(data);
    let limits = Limits::default();
    if let Ok(frame) = decode_request(&message, &limits)
        && let Some(head) = frame.head
    {
        let mut out = BytesMut::new();
        encode_request(&head.parts(), entries(&head.metadata), None, &mut out).expect("a short frame");
        let again = decode_request(&out.freeze().slice(FRAME_PREFIX..), &limits).expect("our own frame");
        assert_eq!(again.head, Some(head));
    }
    if let Ok(frame) = decode_response(&message, &limits)
        && let Some(head) = frame.head
    {
        let mut out = BytesMut::new();
        encode_response(
            &head.parts(),
            entries(&head.headers),
            entries(&head.trailers),
            None,
            &mut out,
        )
        .expect("a short frame");
        let again = decode_response(&out.freeze().slice(FRAME_PREFIX..), &limits).expect("our own frame");
        assert_eq!(again.head, Some(head));
    }
});
