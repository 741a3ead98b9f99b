//! Header lists: limits, charges, and the peer's limit.

use http::{HeaderMap, HeaderValue};

use super::*;
use crate::limits::HEADER_MEMORY;

/// A header list of about `size` bytes by the protocol's count, encoded as references to one entry that the
/// block itself inserts.
fn bomb(size: usize) -> Vec<u8> {
    let mut block = POST.to_vec();
    // Literal with incremental indexing: x: 8 bytes; its entry is index 62, 41 bytes.
    block.extend_from_slice(b"\x40\x01x\x08--------");
    block.resize(block.len() + size / 41, 0x80 | 62);
    block
}

#[test]
fn bounds_header_lists_and_total() {
    let config = Config {
        header_list: 1 << 20,
        header_memory: 8 << 20,
        ..CONFIG
    };
    let core = greeted(&config);
    let block = bomb(512 * 1024);
    assert!(block.len() < 16_384);
    let mut refused = Vec::new();
    for stream in streams().take(40) {
        let words = frame(Kind::Headers, flag::END_HEADERS, stream, &block);
        core.state().receive(&words).unwrap();
        let mut state = core.state();
        assert!(state.header_memory <= config.header_memory);
        // HEADERS with :status 431, a literal with the name of static index 8.
        if state
            .output
            .take()
            .windows(5)
            .any(|bytes| bytes == b"\x08\x03431")
        {
            refused.push(stream);
        }
    }
    assert!(refused.len() > 30, "{refused:?}");
    // Completed streams make room.
    let taken = handed_over(&core).len();
    assert_eq!(taken + refused.len(), 40);
    for stream in streams().take(40) {
        core.state().drop_sender(stream);
        core.state().reset(stream, Reason::CANCEL);
    }
    assert_eq!(core.state().header_memory, 0);
    core.state().receive(&request(99, flag::END_STREAM)).unwrap();
    assert_eq!(handed_over(&core).len(), 1);
}

#[test]
fn refuses_oversized_list_per_protocol() {
    for grpc in [false, true] {
        let core = greeted(&Config { grpc, ..CONFIG });
        let words = frame(Kind::Headers, flag::END_HEADERS, 1, &bomb(100 * 1024));
        core.state().receive(&words).unwrap();
        assert!(handed_over(&core).is_empty());
        let said = core.state().output.take();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(said.contains("431"), !grpc, "{said}");
        let named = said.contains("grpc-message") && said.contains("larger than the limit of 65536 bytes");
        assert_eq!(named, grpc, "{said}");
        // The tables are in sync: the next request may use the entry.
        let mut block = POST.to_vec();
        block.push(0x80 | 62);
        let words = frame(Kind::Headers, flag::END_HEADERS, 3, &block);
        core.state().receive(&words).unwrap();
        assert_eq!(handed_over(&core)[0].request.headers()["x"], "--------");
    }
}

/// The maximum number of streams fits with heads of the usual size: a gRPC call has 12 fields, 700 bytes.
const _: () = assert!(4096 * (700 + 12 * crate::limits::FIELD_MEMORY) < HEADER_MEMORY);

/// SETTINGS with a limit on header lists.
fn limited(bytes: u8) -> Vec<u8> {
    frame(Kind::Settings, 0, 0, &[0, 6, 0, 0, 0, bytes])
}

#[test]
fn respects_client_header_limit() {
    let value =
        HeaderValue::from_static("one that is rather long, if not to say too long for anybody to take it");
    let mut large = Response::new(());
    large.headers_mut().insert("x", value);
    for (grpc, answer) in [(false, &b"\x8e"[..]), (true, b"grpc-status\x018")] {
        let core = greeted(&Config { grpc, ..CONFIG });
        let words = [
            limited(100),
            request(1, flag::END_STREAM),
            request(3, flag::END_STREAM),
        ]
        .concat();
        core.state().receive(&words).unwrap();
        handed_over(&core);
        let mut state = core.state();
        state.output = WriteBuffer::default();
        assert!(!state.respond(1, &large, false));
        let said = state.output.take();
        assert!(
            said.windows(answer.len()).any(|bytes| bytes == answer),
            "{said:?}"
        );
        assert!(!state.streams[&1].state.is_send_open());
        // Trailers too.
        let mut trailers = HeaderMap::new();
        trailers.extend(large.headers().clone());
        trailers.insert("y", large.headers()["x"].clone());
        assert!(state.respond(3, &Response::new(()), false));
        state.output = WriteBuffer::default();
        state.send_trailers(3, trailers);
        let said = state.output.take();
        let head = Head::read(&said).unwrap();
        assert_eq!(head.kind, if grpc { Kind::Headers } else { Kind::Reset });
        assert!(!String::from_utf8_lossy(&said).contains("rather long"));
    }
}

#[test]
fn respects_server_header_limit() {
    let core = SharedState::new(&CONFIG, Role::Client);
    let mut state = core.state();
    state.receive(&limited(200)).unwrap();
    let mut head = Request::new(());
    let cx = Context::from_waker(Waker::noop());
    *head.uri_mut() = "http://app/method".parse().unwrap();
    assert!(matches!(
        state.poll_open(&head, true, &mut None, &cx),
        Poll::Ready(Ok(1))
    ));
    head.headers_mut()
        .insert("x", HeaderValue::from_static("a value"));
    let opened = state.poll_open(&head, true, &mut None, &cx);
    let Poll::Ready(Err(error)) = opened else {
        panic!("{opened:?}")
    };
    // :method GET, :scheme http, :authority app, :path /method, x: a value.
    let size = 4 * 32 + 7 + 3 + 7 + 4 + 10 + 3 + 5 + 7 + 32 + 1 + 7;
    assert_eq!(error, StreamError::PeerHeaderListLimit { size, limit: 200 });
    assert_eq!(state.last_id, 1);
}

#[test]
fn oversized_response_head_fails_call() {
    let core = SharedState::new(&CONFIG, Role::Client);
    let mut state = core.state();
    let cx = Context::from_waker(Waker::noop());
    state.receive(&frame(Kind::Settings, 0, 0, &[])).unwrap();
    for stream in [1, 3] {
        assert!(
            state
                .poll_open(&Request::new(()), true, &mut None, &cx)
                .is_ready()
        );
        let mut block = bomb(100 * 1024);
        // Replaces the request's fields with `:status 200`.
        block.splice(..3, [0x88]);
        let flags = flag::END_HEADERS | flag::END_STREAM;
        state
            .receive(&frame(Kind::Headers, flags, stream, &block))
            .unwrap();
        let end = state.streams[&stream].state.recv_end();
        let error = StreamError::HeadersTooLarge(CONFIG.header_list);
        assert_eq!(end, Some(RecvEnd::Failed(error)));
    }
}
