//! Arbitrary input: neither side may panic, hang, or send more replies than requested.
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use outrigger_http2::frame::{PREFACE, flag};
use outrigger_http2::{Config, Error, Incoming, KeepAlive, Reason, Service, Timeouts, connect, serve};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: Duration = Duration::from_secs(5);
const CONFIG: Config = Config {
    stream_window: 1024,
    connection_window: 65_535,
    max_streams: 8,
    header_list: 512,
    send_buffer: 1024,
    ..Config::DEFAULT
};
const TIMES: Timeouts = Timeouts {
    preface: LONG,
    keep_alive: KeepAlive {
        interval: LONG,
        timeout: LONG,
    },
};

struct Echo;

impl Service for Echo {
    type Body = Full<Bytes>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = match request.into_body() {
            Incoming::Empty => Bytes::from_static(b"nothing"),
            Incoming::Full(data) => data,
            Incoming::Stream(body) => match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(_cut) => Bytes::new(),
            },
        };
        Response::new(Full::new(body))
    }

    fn reason(never: Infallible) -> Reason {
        match never {}
    }
}

/// One frame, mostly with a valid type and flags.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => 0u8..10, 1 => any::<u8>()];
    let flags = prop_oneof![
        Just(0),
        Just(flag::END_STREAM),
        Just(flag::END_HEADERS),
        Just(flag::END_HEADERS | flag::END_STREAM),
        Just(flag::END_HEADERS | flag::PADDED),
        any::<u8>(),
    ];
    let payload = prop_oneof![
        // GET / of http, by static indices alone.
        4 => Just(vec![0x82, 0x86, 0x84]),
        2 => Just(vec![0x83, 0x86, 0x84, 0x41, 0x01, b'a']),
        1 => Just(vec![0, 0, 0, 8]),
        1 => Just(vec![0, 4, 0, 0, 0, 0]),
        1 => Just(vec![0; 8]),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    (kind, flags, 0u32..8, payload).prop_map(|(kind, flags, stream, payload)| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let stream = stream.to_be_bytes();
        [&length[1..], &[kind, flags], &stream, &payload].concat()
    })
}

fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let frames = prop::collection::vec(frame(), 0..30).prop_map(|frames| frames.concat());
    (frames, any::<bool>(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(frames, spoil, at, by)| {
        let mut input = [b"\0\0\0\x04\0\0\0\0\0", &frames[..]].concat();
        if spoil {
            let at = at.index(input.len());
            input[at] ^= by;
        }
        input
    })
}

fn run<F: Future>(what: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG, what).await.unwrap() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_time: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn server_survives_any_client(input in conversation(), piece in 1usize..50) {
        run(async {
            let (mut near, far) = tokio::io::duplex(1 << 20);
            let serving = tokio::spawn(async move {
                serve(far, None, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await
            });
            let _gone = near.write_all(PREFACE).await;
            for piece in input.chunks(piece) {
                let _gone = near.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            near.shutdown().await.unwrap();
            let mut answers = Vec::new();
            near.read_to_end(&mut answers).await.unwrap();
            // The server starts with SETTINGS and never panics.
            assert_eq!(answers[3], 4);
            let _ended: Result<(), Error> = serving.await.unwrap();
        });
    }

    #[test]
    fn client_survives_any_server(input in conversation(), piece in 1usize..50) {
        run(async {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let (client, connection) = connect(near, &CONFIG, None);
            let running = tokio::spawn(connection);
            let calling = tokio::spawn(async move {
                for _ in 0..3 {
                    let request = Request::post("http://app/").body(Empty::<Bytes>::new()).unwrap();
                    let Ok(answer) = client.send(request, |never| match never {}).await else {
                        continue;
                    };
                    if let Incoming::Stream(body) = answer.into_body() {
                        let _whole_or_cut = body.collect().await;
                    }
                }
            });
            tokio::task::yield_now().await;
            for piece in input.chunks(piece) {
                let _gone = far.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            drop(far);
            calling.await.unwrap();
            let _ended: Result<(), Error> = running.await.unwrap();
        });
    }
}

#[tokio::test]
async fn unread_ping_replies_end_connection() {
    let (mut near, far) = tokio::io::duplex(1024);
    let serving = tokio::spawn(async move {
        serve(far, None, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await
    });
    let _gone = near.write_all(PREFACE).await;
    let _gone = near.write_all(b"\0\0\0\x04\0\0\0\0\0").await;
    let ping = b"\0\0\x08\x06\0\0\0\0\0--------";
    while near.write_all(ping).await.is_ok() {}
    let ended = tokio::time::timeout(LONG, serving).await.unwrap().unwrap();
    let Err(Error::Protocol(broken)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM);
}

#[tokio::test]
async fn endless_headers_end_connection() {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let serving = tokio::spawn(async move {
        serve(far, None, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await
    });
    near.write_all(PREFACE).await.unwrap();
    near.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    near.write_all(b"\0\0\x01\x01\0\0\0\0\x01\x82").await.unwrap();
    while near.write_all(b"\0\0\0\x09\0\0\0\0\x01").await.is_ok() {
        tokio::task::yield_now().await;
        if serving.is_finished() {
            break;
        }
    }
    let ended = tokio::time::timeout(LONG, serving).await.unwrap().unwrap();
    let Err(Error::Protocol(broken)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM);
}

/// A frame as bytes.
fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// HEADERS of a request, by static indices alone.
fn get(n: u32, flags: u8) -> Vec<u8> {
    bytes(1, flag::END_HEADERS | flags, 2 * n + 1, &[0x82, 0x86, 0x84])
}

fn reset(n: u32) -> Vec<u8> {
    bytes(3, 0, 2 * n + 1, &8_u32.to_be_bytes())
}

type Attack = (&'static str, fn(u32) -> Vec<u8>);

/// Frames of the n-th round of an attack.
const ATTACKS: [Attack; 13] = [
    ("rapid reset", |n| [get(n, 0), reset(n)].concat()),
    ("a reset caused by the server", |n| {
        [get(n, 0), bytes(8, 0, 2 * n + 1, &[0; 4])].concat()
    }),
    ("a body behind its end", |n| {
        [get(n, flag::END_STREAM), bytes(0, 0, 2 * n + 1, b"x")].concat()
    }),
    ("priorities that depend on themselves", |n| {
        [
            get(n, 0),
            bytes(2, 0, 2 * n + 1, &[&(2 * n + 1).to_be_bytes()[..], &[0]].concat()),
        ]
        .concat()
    }),
    ("requests that are none", |n| {
        bytes(1, flag::END_HEADERS | flag::END_STREAM, 2 * n + 1, &[])
    }),
    ("settings", |_| bytes(4, 0, 0, &[0, 4, 0, 0, 1, 0])),
    ("acknowledged settings", |_| bytes(4, flag::ACK, 0, &[])),
    ("pings", |_| bytes(6, 0, 0, &[0; 8])),
    ("windows", |_| bytes(8, 0, 0, &[0, 0, 0, 1])),
    ("priorities", |n| bytes(2, 0, 2 * n + 1, &[0; 5])),
    ("unknown frames", |_| bytes(0x77, 0, 0, &[])),
    ("empty data", |n| match n {
        0 => get(0, 0),
        _ => bytes(0, 0, 1, &[]),
    }),
    ("padding without data", |n| match n {
        0 => get(0, 0),
        _ => bytes(0, flag::PADDED, 1, &[2, 0, 0]),
    }),
];

#[tokio::test]
async fn floods_end_connection() {
    for (name, attack) in ATTACKS {
        let (near, far) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(async move {
            serve(far, None, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await
        });
        let (mut read, mut write) = tokio::io::split(near);
        let reading = tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
        let _gone = write.write_all(PREFACE).await;
        let _gone = write.write_all(b"\0\0\0\x04\0\0\0\0\0").await;
        // Many times the budget, because a slow machine refills a part of it.
        for n in 0..1_000_000 {
            if write.write_all(&attack(n)).await.is_err() {
                break;
            }
        }
        drop(write);
        let ended = tokio::time::timeout(6 * LONG, serving).await.unwrap().unwrap();
        let Err(Error::Protocol(broken)) = ended else {
            panic!("{name}: {ended:?}")
        };
        assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM, "{name}");
        drop(reading);
    }
}

#[tokio::test]
async fn busy_connection_yields() {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    // The complete input is ready before the server starts: 50,000 frames.
    let mut input = [PREFACE, &b"\0\0\0\x04\0\0\0\0\0"[..], &get(0, 0)].concat();
    input.extend(std::iter::repeat_n(bytes(0, 0, 1, b"x"), 50_000).flatten());
    near.write_all(&input).await.unwrap();
    let config = Config {
        stream_window: 1 << 20,
        connection_window: 1 << 20,
        ..CONFIG
    };
    let driver = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&driver);
    let other = tokio::spawn(std::future::poll_fn(move |cx| {
        counted.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    let serving = tokio::spawn(async move {
        serve(far, None, Arc::new(Echo), &config, TIMES, std::future::pending()).await
    });
    near.shutdown().await.unwrap();
    serving.await.unwrap().unwrap();
    other.abort();
    // One read takes 32 KiB, here 3,276 frames.
    let driver = driver.load(Ordering::Relaxed);
    assert!(driver >= 50_000 / 3_276, "{driver}");
}
