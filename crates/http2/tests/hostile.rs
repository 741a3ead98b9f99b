//! Peers that say anything at all: neither end may panic, hang, or answer more than it was asked.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use outrigger_http2::frame::{PREFACE, flag};
use outrigger_http2::{Config, Ended, Incoming, Reason, Service, Silence, Times, connect, serve};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: Duration = Duration::from_secs(5);
const CONFIG: Config = Config {
    stream_window: 1024,
    connection_window: 65_535,
    max_streams: 8,
    header_list: 512,
    send_buffer: 1024,
};
const TIMES: Times = Times {
    preface: LONG,
    silence: Silence {
        interval: LONG,
        patience: LONG,
    },
};

struct Echo;

impl Service for Echo {
    type Body = Full<Bytes>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = match request.into_body() {
            Incoming::Empty => Bytes::from_static(b"nothing"),
            Incoming::Whole(data) => data,
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

/// One frame, mostly of a kind and with flags that mean something.
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
        let mut words = [b"\0\0\0\x04\0\0\0\0\0", &frames[..]].concat();
        if spoil {
            let at = at.index(words.len());
            words[at] ^= by;
        }
        words
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
    fn a_server_survives_any_client(words in conversation(), piece in 1usize..50) {
        run(async {
            let (mut near, far) = tokio::io::duplex(1 << 20);
            let serving = tokio::spawn(async move {
                serve(far, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await
            });
            let _gone = near.write_all(PREFACE).await;
            for piece in words.chunks(piece) {
                let _gone = near.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            near.shutdown().await.unwrap();
            let mut answers = Vec::new();
            near.read_to_end(&mut answers).await.unwrap();
            // It never fails to begin with SETTINGS, and never panics.
            assert_eq!(answers[3], 4);
            let _ended: Result<(), Ended> = serving.await.unwrap();
        });
    }

    #[test]
    fn a_client_survives_any_server(words in conversation(), piece in 1usize..50) {
        run(async {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let (client, connection) = connect(near, &CONFIG, None);
            let running = tokio::spawn(connection.run());
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
            for piece in words.chunks(piece) {
                let _gone = far.write_all(piece).await;
                tokio::task::yield_now().await;
            }
            drop(far);
            calling.await.unwrap();
            let _ended: Result<(), Ended> = running.await.unwrap();
        });
    }
}

#[tokio::test]
async fn pings_that_nobody_reads_the_answers_of_end_the_connection() {
    let (mut near, far) = tokio::io::duplex(1024);
    let serving =
        tokio::spawn(async move { serve(far, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await });
    let _gone = near.write_all(PREFACE).await;
    let _gone = near.write_all(b"\0\0\0\x04\0\0\0\0\0").await;
    let ping = b"\0\0\x08\x06\0\0\0\0\0--------";
    while near.write_all(ping).await.is_ok() {}
    let ended = tokio::time::timeout(LONG, serving).await.unwrap().unwrap();
    let Err(Ended::Broken(broken)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM);
}

#[tokio::test]
async fn fields_without_end_end_the_connection() {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let serving =
        tokio::spawn(async move { serve(far, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await });
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
    let Err(Ended::Broken(broken)) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(broken.reason, Reason::ENHANCE_YOUR_CALM);
}
