//! Both ends of a connection with a peer that sends arbitrary bytes: no panics and no deadlocks.
#![no_main]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use libfuzzer_sys::fuzz_target;
use outrigger_http2::PREFACE;
use outrigger_http2::{
    Config, Incoming, KeepAlive, Reason, Service, Timeouts, connect, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const LONG: Duration = Duration::from_secs(10);
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
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
        Response::new(Full::new(read(request.into_body()).await))
    }

    fn reason(never: Infallible) -> Reason {
        match never {}
    }
}

async fn read(body: Incoming) -> Bytes {
    match body {
        Incoming::Empty => Bytes::new(),
        Incoming::Full(data) => data,
        Incoming::Stream(body) => body.collect().await.map(|b| b.to_bytes()).unwrap_or_default(),
    }
}

async fn say(io: &mut DuplexStream, words: &[u8], piece: usize) {
    for piece in words.chunks(piece) {
        let _gone = io.write_all(piece).await;
        tokio::task::yield_now().await;
    }
}

async fn as_client(words: &[u8], piece: usize) {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let serving =
        tokio::spawn(async move { serve(far, None, Arc::new(Echo), &CONFIG, TIMES, std::future::pending()).await });
    say(&mut near, &[PREFACE, SETTINGS, words].concat(), piece).await;
    near.shutdown().await.expect("a pipe");
    let mut answers = Vec::new();
    near.read_to_end(&mut answers).await.expect("a pipe");
    let _ended = serving.await.expect("no panic");
}

async fn as_server(words: &[u8], piece: usize) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let (client, connection) = connect(near, &CONFIG, None);
    let running = tokio::spawn(connection);
    let calling = tokio::spawn(async move {
        for _ in 0..3 {
            let request = Request::post("http://app/").body(Empty::<Bytes>::new()).expect("a request");
            if let Ok(answer) = client.send(request, |never| match never {}).await {
                read(answer.into_body()).await;
            }
        }
    });
    tokio::task::yield_now().await;
    say(&mut far, &[SETTINGS, words].concat(), piece).await;
    drop(far);
    calling.await.expect("no panic");
    let _ended = running.await.expect("no panic");
}

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (client, piece, words) = input;
    let piece = usize::from(piece).max(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let talk = async {
            if client {
                as_client(words, piece).await;
            } else {
                as_server(words, piece).await;
            }
        };
        tokio::time::timeout(LONG, talk).await.expect("deadlock");
    });
});
