//! Growth of receive windows with the bandwidth-delay product.

use super::*;
use crate::settings::WindowMemory;
use crate::state::windows::BANDWIDTH_PING;

const START: u32 = 64 * 1024;
const MIB: u32 = 1024 * 1024;

fn config(limit: usize) -> (Config, &'static WindowMemory) {
    let memory: &'static WindowMemory = Box::leak(Box::new(WindowMemory::new(limit)));
    let config = Config {
        stream_window: START,
        connection_window: MIB,
        max_stream_window: 4 * START,
        window_growth: 16 * START,
        window_memory: Some(memory),
        ..CONFIG
    };
    (config, memory)
}

/// A server with one request whose body is being received.
fn receiving(config: &Config) -> (Arc<SharedState>, RecvStream) {
    let core = greeted(config);
    core.state().receive(&request(1, 0)).unwrap();
    let Incoming::Stream(body) = handed_over(&core).remove(0).request.into_body() else {
        panic!("the body is still to come")
    };
    (core, body)
}

/// Receives and consumes `bytes` on a stream.
fn transfer(core: &Arc<SharedState>, stream: u32, bytes: u32) {
    let cx = Context::from_waker(Waker::noop());
    let mut state = core.state();
    let mut left = bytes as usize;
    while left > 0 {
        let now = left.min(16 * 1024);
        let data = frame(Kind::Data, 0, stream, &vec![b'x'; now]);
        state.receive(&data).unwrap();
        while let Poll::Ready(Some(piece)) = state.poll_piece(stream, &cx) {
            assert!(matches!(piece, Ok(Piece::Data(_))));
        }
        left -= now;
    }
}

fn acknowledge(core: &Arc<SharedState>) {
    let ack = frame(Kind::Ping, flag::ACK, 0, &BANDWIDTH_PING);
    core.state().receive(&ack).unwrap();
}

/// Whether a probe was sent, and the WINDOW_UPDATE frames.
fn sent(core: &Arc<SharedState>) -> (bool, Vec<(u32, u32)>) {
    let out = core.state().output.take();
    let (mut rest, mut ping, mut updates) = (&out[..], false, Vec::new());
    while let Some(head) = Head::read(rest) {
        let payload = &rest[HEAD..HEAD + head.length];
        ping |= head.kind == Kind::Ping && payload == BANDWIDTH_PING;
        if head.kind == Kind::WindowUpdate {
            updates.push((head.stream, u32::from_be_bytes(payload.try_into().unwrap())));
        }
        rest = &rest[HEAD + head.length..];
    }
    (ping, updates)
}

/// A round trip that consumes all of a stream's window; true if it was probed.
fn round_trip(core: &Arc<SharedState>, stream: u32) -> bool {
    let size = core.state().streams[&stream].recv_window_size;
    transfer(core, stream, size / 2);
    let (probed, _) = sent(core);
    transfer(core, stream, size * 3 / 4);
    if probed {
        acknowledge(core);
    }
    probed
}

#[test]
fn doubles_limiting_window() {
    let (config, memory) = config(usize::MAX);
    let (core, body) = receiving(&config);
    assert!(round_trip(&core, 1));
    assert_eq!(core.state().streams[&1].recv_window_size, 2 * START);
    // The connection's window grows with it, and both changes are announced.
    let (_, updates) = sent(&core);
    assert!(
        updates.contains(&(1, START)) && updates.contains(&(0, START)),
        "{updates:?}"
    );
    assert!(round_trip(&core, 1));
    assert_eq!(core.state().streams[&1].recv_window_size, 4 * START);
    assert_eq!(memory.reserved(), 3 * START as usize);
    // At the limit, probing stops.
    assert!(!round_trip(&core, 1));
    drop(body);
    drop(core);
    assert_eq!(memory.reserved(), 0);
}

#[test]
fn keeps_sufficient_window() {
    let (config, memory) = config(usize::MAX);
    let (core, _body) = receiving(&config);
    transfer(&core, 1, START / 2);
    assert!(sent(&core).0);
    transfer(&core, 1, START / 2);
    acknowledge(&core);
    assert_eq!(core.state().streams[&1].recv_window_size, START);
    assert_eq!(memory.reserved(), 0);
    // Windows that need no growth are probed rarely.
    assert!((0..3).all(|_| !round_trip(&core, 1)));
    assert!((0..9).any(|_| round_trip(&core, 1)));
}

#[test]
fn unread_stream_does_not_grow() {
    let (config, memory) = config(usize::MAX);
    let (core, _body) = receiving(&config);
    for _ in 0..4 {
        let data = frame(Kind::Data, 0, 1, &[b'x'; 16 * 1024]);
        core.state().receive(&data).unwrap();
    }
    acknowledge(&core);
    assert!(!sent(&core).0);
    assert_eq!(
        (core.state().streams[&1].recv_window_size, memory.reserved()),
        (START, 0)
    );
}

#[test]
fn growth_respects_shared_budget() {
    let (config, memory) = config(START as usize);
    let (first, _one) = receiving(&config);
    let (second, _other) = receiving(&config);
    assert!(round_trip(&first, 1) && round_trip(&second, 1));
    assert_eq!(first.state().streams[&1].recv_window_size, 2 * START);
    assert_eq!(second.state().streams[&1].recv_window_size, START);
    assert_eq!(memory.reserved(), START as usize);
}

#[test]
fn growth_respects_connection_budget() {
    let (mut config, memory) = config(usize::MAX);
    config.window_growth = START;
    let (core, _body) = receiving(&config);
    assert!(round_trip(&core, 1) && round_trip(&core, 1));
    assert_eq!(core.state().streams[&1].recv_window_size, 2 * START);
    assert_eq!(memory.reserved(), START as usize);
}

#[test]
fn closed_stream_returns_growth() {
    let (config, memory) = config(usize::MAX);
    let (core, body) = receiving(&config);
    assert!(round_trip(&core, 1));
    sent(&core);
    let words = [reset(1), request(3, 0)].concat();
    core.state().receive(&words).unwrap();
    drop(body);
    core.state().drop_sender(1);
    let opened = handed_over(&core);
    // The connection's window shrinks with the next reads.
    transfer(&core, 3, START);
    assert_eq!(memory.reserved(), 0);
    let state = core.state();
    assert!(state.recv_window <= config.connection_window);
    drop(state);
    drop(opened);
}

#[test]
fn charges_unsolicited_ping_ack() {
    let (config, _) = config(usize::MAX);
    let core = greeted(&config);
    until_broken(&core, |_| frame(Kind::Ping, flag::ACK, 0, &BANDWIDTH_PING));
}
