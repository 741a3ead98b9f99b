//! Both ends of a connection, against a peer that says anything: nobody panics, and nobody waits for ever.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use outrigger_http1::{Answer, Client, Config, Incoming, Service, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(10);
const CONFIG: Config = Config {
    head: 512,
    fields: 16,
    patience: LONG,
    http2: true,
};

struct Echo;

impl Service for Echo {
    type Body = Full<Bytes>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        Response::new(Full::new(match request.into_body() {
            Incoming::Empty => Bytes::new(),
            Incoming::Whole(data) => data,
            Incoming::Stream(body) => body.collect().await.map(|b| b.to_bytes()).unwrap_or_default(),
        }))
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
    let serving = tokio::spawn(async move {
        let drain = CancellationToken::new();
        serve(far, Arc::new(Echo), &CONFIG, &drain).await.map(drop)
    });
    say(&mut near, words, piece).await;
    near.shutdown().await.expect("a pipe");
    let mut answers = Vec::new();
    near.read_to_end(&mut answers).await.expect("a pipe");
    let _ended = serving.await.expect("no panic");
}

async fn as_server(words: &[u8], piece: usize) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let calling = tokio::spawn(async move {
        let mut client = Some(Client::new(near));
        while let Some(free) = client.take() {
            let request = Request::post("/").body(Full::new(Bytes::from_static(b"body"))).expect("a request");
            let Ok(answer) = free.call(request).await else { return };
            client = match answer.into_body() {
                Answer::Whole(_, client) => client,
                Answer::Coming(mut body) => {
                    while let Some(Ok(_)) = body.frame().await {}
                    body.take_client()
                }
            };
        }
    });
    tokio::task::yield_now().await;
    say(&mut far, words, piece).await;
    drop(far);
    calling.await.expect("no panic");
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
        tokio::time::timeout(LONG, talk).await.expect("somebody waits for ever");
    });
});
