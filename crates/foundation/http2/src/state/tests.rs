//! The cost of frames, counted in visited streams and in bytes held.

use std::hash::BuildHasher as _;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use super::*;
use crate::error::Error;
use crate::frame::{HEAD, Head, Kind, flag};
use crate::limits::{CROWDED_STALL, MAX_UNREAD_FEW_STREAMS, UNPRODUCTIVE_FRAMES, UNREAD, UNREAD_STREAMS};
use crate::settings::SharedLimit;

mod fields;
mod open;
mod windows;

const STREAMS: u32 = 4000;
const CONFIG: Config = Config {
    max_streams: STREAMS,
    connection_window: 1 << 20,
    stream_window: 1 << 20,
    ..Config::DEFAULT
};
/// POST of http to /, by static indices alone.
const POST: [u8; 3] = [0x83, 0x86, 0x84];
/// Far above the allowed unproductive frames, even if a slow machine gets a refill during the test.
const MANY: u32 = 30 * UNPRODUCTIVE_FRAMES;

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    [&head.bytes(), payload].concat()
}

fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &more.to_be_bytes())
}

fn request(stream: u32, flags: u8) -> Vec<u8> {
    frame(Kind::Headers, flag::END_HEADERS | flags, stream, &POST)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(Kind::Reset, 0, stream, &8_u32.to_be_bytes())
}

fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|n| 2 * n + 1)
}

/// A server that has received a client's preface and SETTINGS.
fn greeted(config: &Config) -> Arc<SharedState> {
    let core = SharedState::new(config, Role::Server);
    let greeting = [&PREFACE[..], &frame(Kind::Settings, 0, 0, &[])].concat();
    core.state().receive(&greeting).unwrap();
    core.state().output = WriteBuffer::default();
    core
}

/// Takes all received requests.
fn handed_over(core: &Arc<SharedState>) -> Vec<Accepted> {
    let mut opened = Vec::new();
    while core.state().accept(core, &mut opened) {}
    opened
}

/// Drains the output as a socket would; returns the streams of its DATA frames.
fn written(state: &mut State) -> Vec<u32> {
    let out = state.output.take();
    let (mut rest, mut data) = (&out[..], Vec::new());
    while let Some(head) = Head::read(rest) {
        if head.kind == Kind::Data {
            data.push(head.stream);
        }
        rest = &rest[HEAD + head.length..];
    }
    data
}

/// A server with the maximum number of responses, each of 100 bytes, that wait for the connection's window.
fn blocked_by_connection_window() -> Arc<SharedState> {
    let core = greeted(&CONFIG);
    for stream in streams() {
        core.state().receive(&request(stream, flag::END_STREAM)).unwrap();
    }
    assert_eq!(handed_over(&core).len(), STREAMS as usize);
    let mut state = core.state();
    state.send_window = 0;
    for stream in streams() {
        assert!(state.respond(stream, &Response::new(()), false));
        assert!(state.send_data(stream, Bytes::from_static(&[b'x'; 100]), true));
        state.drop_sender(stream);
    }
    assert!(written(&mut state).is_empty());
    state.visited = 0;
    drop(state);
    core
}

#[test]
fn stream_window_visits_one_stream() {
    let core = blocked_by_connection_window();
    let mut state = core.state();
    let frames = 1000;
    for n in 0..frames {
        state.receive(&window(1 + 2 * n, 1)).unwrap();
    }
    assert!(state.visited <= frames as usize, "{}", state.visited);
    assert!(written(&mut state).is_empty());
}

#[test]
fn connection_window_visits_sending_streams() {
    let core = blocked_by_connection_window();
    let mut state = core.state();
    let frames = 5000;
    for _ in 0..frames {
        state.receive(&window(0, 1)).unwrap();
    }
    assert!(state.visited <= 3 * frames, "{}", state.visited);
    // Round robin: each stream sends once before one sends twice.
    let mut first = written(&mut state);
    first.truncate(STREAMS as usize);
    first.sort_unstable();
    assert!(first.into_iter().eq(streams()));
    // Everything is sent in the end, even through a slow socket.
    state.receive(&window(0, 1 << 20)).unwrap();
    while !state.streams.is_empty() {
        assert!(!written(&mut state).is_empty());
        state.send_scheduled();
    }
    assert_eq!((state.buffered.bytes(), state.header_memory), (0, 0));
}

#[test]
fn closed_streams_leave_window_queue() {
    let core = greeted(&CONFIG);
    core.state().send_window = 0;
    for n in 0..50_000 {
        let stream = 2 * n + 1;
        core.state().receive(&request(stream, flag::END_STREAM)).unwrap();
        handed_over(&core);
        let mut state = core.state();
        state.respond(stream, &Response::new(()), false);
        state.send_data(stream, Bytes::from_static(b"x"), true);
        state.drop_sender(stream);
        state.drop_receiver(stream);
        state.receive(&reset(stream)).unwrap();
        written(&mut state);
        assert!(state.awaiting_window.len() < 100 && state.buffered.bytes() == 0);
    }
}

/// Sends a frame until the connection fails; returns the number of frames accepted.
fn until_broken(core: &Arc<SharedState>, frame: impl Fn(u32) -> Vec<u8>) -> u32 {
    for n in 0..MANY {
        let mut state = core.state();
        let received = state.receive(&frame(n));
        written(&mut state);
        if let Err(broken) = received {
            assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM, "{broken}");
            return n;
        }
    }
    panic!("it took {MANY} frames");
}

#[test]
fn charges_useless_window_updates() {
    // For a stream that waits for the connection, for a closed stream, and for the connection without
    // waiting streams.
    until_broken(&blocked_by_connection_window(), |_| window(1, 1));
    let core = greeted(&CONFIG);
    let words = [request(1, flag::END_STREAM), reset(1)].concat();
    core.state().receive(&words).unwrap();
    until_broken(&core, |_| window(1, 1));
    until_broken(&greeted(&CONFIG), |_| window(0, 1));
}

#[test]
fn charges_initial_window_per_stream() {
    let core = blocked_by_connection_window();
    let change = |n: u32| {
        let value = (1 + n % 2).to_be_bytes();
        frame(Kind::Settings, 0, 0, &[&[0, 4], &value[..]].concat())
    };
    let frames = until_broken(&core, change);
    let visits = core.state().visited;
    assert_eq!(visits, (frames * STREAMS) as usize);
    assert!(
        visits <= (UNPRODUCTIVE_FRAMES as usize * STREAMS_PER_FRAME) * 2,
        "{visits}"
    );
}

#[test]
fn useful_window_updates_are_free() {
    let core = greeted(&CONFIG);
    core.state().receive(&request(1, flag::END_STREAM)).unwrap();
    handed_over(&core);
    let mut state = core.state();
    state.respond(1, &Response::new(()), false);
    for _ in 0..2 * UNPRODUCTIVE_FRAMES {
        state.send_data(1, Bytes::from_static(b"message"), false);
        assert_eq!(written(&mut state), [1]);
        let words = [window(0, 7), window(1, 7), frame(Kind::Ping, 0, 0, &[0; 8])].concat();
        state.receive(&words).unwrap();
        written(&mut state);
    }
}

#[test]
fn drops_requests_reset_before_dispatch() {
    let core = greeted(&CONFIG);
    let words: Vec<u8> = streams()
        .flat_map(|stream| request(stream, 0))
        .chain(streams().skip(1).flat_map(reset))
        .collect();
    core.state().receive(&words).unwrap();
    let opened = handed_over(&core);
    assert_eq!(opened.len(), 1);
    drop(opened);
    let state = core.state();
    assert!(state.pending_accept.is_empty() && state.streams.len() == 1);
}

#[test]
fn turn_dispatches_limited_requests() {
    let core = greeted(&CONFIG);
    for stream in streams() {
        core.state().receive(&request(stream, flag::END_STREAM)).unwrap();
    }
    let mut opened = Vec::new();
    assert!(core.state().accept(&core, &mut opened));
    assert_eq!(opened.len(), REQUESTS_PER_TURN);
    assert!(core.state().begin_turn(Waker::noop()));
    assert_eq!(handed_over(&core).len() + opened.len(), STREAMS as usize);
    assert!(!core.state().begin_turn(Waker::noop()));
}

#[test]
fn stream_hashes_are_unpredictable() {
    let [one, other] = [greeted(&CONFIG), greeted(&CONFIG)].map(|core| {
        let state = core.state();
        (0..8u32)
            .map(|n| state.streams.hasher().hash_one(1 + n * 16_384))
            .collect::<Vec<_>>()
    });
    assert_ne!(one, other);
    // Distant identifiers do not collide either.
    let mut low: Vec<_> = one.iter().map(|hash| hash & 0xffff).collect();
    low.sort_unstable();
    low.dedup();
    assert!(low.len() >= 6, "{low:?}");
}

#[test]
fn one_byte_frames_charge_slack() {
    let core = greeted(&CONFIG);
    core.state().receive(&request(1, 0)).unwrap();
    let Incoming::Stream(body) = handed_over(&core).remove(0).request.into_body() else {
        panic!("the body is still to come")
    };
    let mut state = core.state();
    let bytes = 200_000;
    for _ in 0..bytes {
        state.receive(&frame(Kind::Data, 0, 1, b"x")).unwrap();
    }
    let held = state.streams[&1].recv_queue.held();
    assert!(held < bytes + 32 * 1024, "{held}");
    assert_eq!(state.slack, state.streams[&1].recv_queue.slack());
    assert!(state.slack > 0);
    // Consumed down to the slack, which stays charged until it is freed.
    state.released = CONFIG.connection_window / 2;
    state.release_connection_capacity(0);
    assert_eq!(state.released, CONFIG.connection_window / 2);
    let cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(piece) = state.poll_piece(1, &cx) {
        assert!(matches!(piece, Some(Ok(Piece::Data(data))) if data.len() <= 16 * 1024));
    }
    assert_eq!(state.slack, 0);
    assert!(state.released < CONFIG.connection_window / 2);
    drop(state);
    drop(body);
}

#[test]
fn queued_one_byte_pieces_are_merged() {
    let core = blocked_by_connection_window();
    core.state().receive(&reset(1)).unwrap();
    core.state()
        .receive(&request(2 * STREAMS + 1, flag::END_STREAM))
        .unwrap();
    handed_over(&core);
    let mut state = core.state();
    let (stream, before) = (2 * STREAMS + 1, state.buffered.bytes());
    state.respond(stream, &Response::new(()), false);
    for _ in 0..100_000 {
        assert!(state.send_data(stream, Bytes::from_static(b"x"), false));
    }
    assert_eq!(state.buffered.bytes(), before + 100_000);
    let held = state.streams[&stream].send_queue.held();
    assert!(held < 100_000 + 32 * 1024, "{held}");
}

#[test]
fn full_send_buffers_allow_one_piece() {
    let core = greeted(&Config {
        send_buffers: 1000,
        ..CONFIG
    });
    let cx = Context::from_waker(Waker::noop());
    let words = [request(1, flag::END_STREAM), request(3, flag::END_STREAM)].concat();
    core.state().receive(&words).unwrap();
    handed_over(&core);
    let mut state = core.state();
    state.send_window = 0;
    for stream in [1, 3] {
        state.respond(stream, &Response::new(()), false);
        assert!(state.poll_capacity(stream, &cx).is_ready());
        state.send_data(stream, Bytes::from_static(&[b'x'; 600]), false);
        assert_eq!(state.poll_capacity(stream, &cx).is_ready(), stream == 1);
    }
    assert!(state.poll_capacity(1, &cx).is_pending());
    state.receive(&window(0, 700)).unwrap();
    // Sent output makes room for both streams while they hold less than their share. A part of the second
    // was sent.
    assert_eq!((state.buffered.bytes(), state.streams[&3].buffered), (600, 500));
    assert!(state.poll_capacity(1, &cx).is_ready() && state.poll_capacity(3, &cx).is_ready());
}

/// Sends requests whose responses get no window, until one is refused. Returns the number of responses
/// queued.
fn waiting_answers(core: &Arc<SharedState>, answer: &Bytes) -> usize {
    core.state().send_window = 0;
    let taken = (0..STREAMS).take_while(|number| {
        let stream = 2 * number + 1;
        core.state().receive(&request(stream, flag::END_STREAM)).unwrap();
        handed_over(core);
        let mut state = core.state();
        state.respond(stream, &Response::new(()), false);
        let is_taken = state.send_data(stream, answer.clone(), false);
        assert_eq!(state.accepts_data(stream), is_taken);
        is_taken
    });
    let taken = taken.count();
    assert_eq!(core.state().buffered.bytes(), taken * answer.len());
    taken
}

/// Drains the output as if the client read all that the windows allow.
fn read_all(state: &mut State) {
    state.send_scheduled();
    while !written(state).is_empty() {
        state.send_scheduled();
    }
}

#[test]
fn bounds_unread_large_responses() {
    let core = greeted(&CONFIG);
    // A gRPC message of the usual maximum size: this many may always wait.
    let answer = Bytes::from(vec![0; (4 << 20) + 5]);
    assert!(UNREAD_STREAMS * answer.len() > UNREAD);
    assert_eq!(waiting_answers(&core, &answer), UNREAD_STREAMS);
}

#[test]
fn bounds_unread_huge_responses() {
    let core = greeted(&CONFIG);
    // The largest response to a bulk get of state.
    let answer = Bytes::from(vec![0; 64 << 20]);
    let most = MAX_UNREAD_FEW_STREAMS / answer.len();
    assert!(most < UNREAD_STREAMS / 10);
    assert_eq!(waiting_answers(&core, &answer), most);
    // Reading some makes room for others.
    let mut state = core.state();
    state.receive(&window(1, 64 << 20)).unwrap();
    state.receive(&window(0, 128 << 20)).unwrap();
    state.send_scheduled();
    assert_eq!(state.buffered.bytes(), most * answer.len(), "its memory is whole");
    read_all(&mut state);
    assert_eq!(state.buffered.bytes(), (most - 1) * answer.len());
}

#[test]
fn bounds_unread_across_connections() {
    const MAX_MEMORY: usize = 8 << 20;
    let memory: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(MAX_MEMORY)));
    let config = Config {
        unread_memory: Some(memory),
        ..CONFIG
    };
    let answer = Bytes::from(vec![0; 1 << 20]);
    let [first, second, third] = [(), (), ()].map(|()| greeted(&config));
    assert_eq!(
        waiting_answers(&first, &answer),
        8,
        "unexpected number of queued responses"
    );
    assert_eq!(waiting_answers(&second, &answer), 4, "half of it");
    assert_eq!(waiting_answers(&third, &answer), 2, "a third");
    assert_eq!(memory.held(), 14 * answer.len());
    first.state().disconnect();
    drop((first, second));
    assert_eq!(memory.held(), 2 * answer.len());
    let mut state = third.state();
    // The refused stream is closed, the others continue.
    state.receive(&window(0, 2 * MAX_MEMORY as u32)).unwrap();
    state.receive(&window(1, MAX_MEMORY as u32)).unwrap();
    read_all(&mut state);
    assert_eq!(memory.held(), answer.len());
}

/// A connection with a response of 6 MiB on stream 1, where all connections share 8.
fn crowded() -> (Arc<SharedState>, &'static SharedLimit) {
    let memory: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(8 << 20)));
    let core = greeted(&Config {
        unread_memory: Some(memory),
        ..CONFIG
    });
    core.state().receive(&request(1, flag::END_STREAM)).unwrap();
    handed_over(&core);
    let mut state = core.state();
    state.send_window = 0;
    state.respond(1, &Response::new(()), false);
    assert!(state.send_data(1, Bytes::from(vec![0; 6 << 20]), false));
    drop(state);
    (core, memory)
}

#[test]
fn response_memory_counts_until_written() {
    // Queued completely but blocked by the socket, and reset halfway.
    for reset_early in [false, true] {
        let (core, memory) = crowded();
        let mut state = core.state();
        for stream in [0, 1] {
            state.receive(&window(stream, (6 << 20) - 32 * 1024)).unwrap();
        }
        read_all(&mut state);
        for stream in [0, 1] {
            state
                .receive(&window(stream, if reset_early { 16 } else { 32 } * 1024))
                .unwrap();
        }
        if reset_early {
            state.receive(&reset(1)).unwrap();
        }
        state.send_scheduled();
        assert!(!state.output.is_empty() && state.streams.get(&1).is_none_or(|stream| stream.buffered == 0));
        assert_eq!(memory.held(), 6 << 20, "reset: {reset_early}");
        read_all(&mut state);
        assert_eq!(memory.held(), 0, "reset: {reset_early}");
    }
}

#[test]
fn stalled_connection_makes_room() {
    let (core, _) = crowded();
    let mut state = core.state();
    let (begun, stalled) = (Instant::now(), CROWDED_STALL);
    assert!(!state.output.is_empty());
    state.check_timeouts(begun).unwrap();
    state.check_timeouts(begun + stalled / 2).unwrap();
    let ended = state.check_timeouts(begun + stalled);
    assert!(
        matches!(ended, Err(Error::WriteTimeout(time)) if time == stalled),
        "{ended:?}"
    );
}

/// Whether a response survives a reader that takes `each` bytes every four seconds, while memory is
/// crowded.
fn survives_reading(each: u32) -> bool {
    let (core, _) = crowded();
    let mut state = core.state();
    let mut now = Instant::now();
    for _ in 0..10 {
        now += Duration::from_secs(4);
        state.receive(&window(1, each)).unwrap();
        state.receive(&window(0, each)).unwrap();
        read_all(&mut state);
        state.check_timeouts(now).unwrap();
    }
    state.accepts_data(1)
}

#[test]
fn drip_reader_makes_room() {
    assert!(survives_reading(128 << 10));
    assert!(!survives_reading(1));
}

#[test]
fn endless_data_on_reset_stream_fails() {
    let core = greeted(&CONFIG);
    core.state().receive(&request(1, 0)).unwrap();
    handed_over(&core);
    core.state().reset(1, Reason::CANCEL);
    let data = frame(Kind::Data, 0, 1, b"x");
    // Smaller than the connection's window.
    assert!((0..MANY).any(|_| core.state().receive(&data).is_err()));
}

/// Counts wake-ups.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl std::task::Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn closed_stream_wakes_one_waiter() {
    let core = SharedState::new(&CONFIG, Role::Client);
    let mut state = core.state();
    // One stream at a time.
    let settings = frame(Kind::Settings, 0, 0, &[0, 3, 0, 0, 0, 1]);
    state.receive(&settings).unwrap();
    let woken = Arc::new(WakeCount::default());
    let waker = Waker::from(Arc::clone(&woken));
    let (cx, head) = (Context::from_waker(&waker), Request::new(()));
    assert!(state.poll_open(&head, true, &mut None, &cx).is_ready());
    let mut tickets = [None; 100];
    for ticket in &mut tickets {
        assert!(state.poll_open(&head, true, ticket, &cx).is_pending());
        // A second poll keeps its place.
        assert!(state.poll_open(&head, true, ticket, &cx).is_pending());
    }
    assert_eq!(
        (state.pending_open.len(), woken.0.load(Ordering::Relaxed)),
        (100, 0)
    );
    let end = |state: &mut State, stream| {
        let flags = flag::END_HEADERS | flag::END_STREAM;
        state
            .receive(&frame(Kind::Headers, flags, stream, &[0x88]))
            .unwrap();
        state.drop_sender(stream);
        state.drop_receiver(stream);
    };
    end(&mut state, 1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    // The first cancels: the second gets its turn, and the end of its stream wakes the third.
    state.cancel_open(tickets[0].unwrap());
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    assert!(state.poll_open(&head, true, &mut tickets[1], &cx).is_ready());
    state.cancel_open(tickets[50].unwrap());
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    end(&mut state, 3);
    assert_eq!(woken.0.load(Ordering::Relaxed), 3);
    // GOAWAY wakes all of them.
    state.receive(&frame(Kind::GoAway, 0, 0, &[0; 8])).unwrap();
    assert_eq!(
        (state.pending_open.len(), woken.0.load(Ordering::Relaxed)),
        (0, 99)
    );
}
