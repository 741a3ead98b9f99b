//! Peers that say anything at all, in pieces of any size: neither end may panic or hang, and what hyper's ends say
//! arrives as it was said.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outrigger_http1::{Answer, Client, Config, Incoming, Service, serve};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(20);
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
        let body = match request.into_body() {
            Incoming::Empty => Bytes::new(),
            Incoming::Whole(data) => data,
            Incoming::Stream(body) => match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(cut) => cut.to_string().into(),
            },
        };
        Response::new(Full::new(body))
    }
}

/// Parts of requests, mostly in an order that means something.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => prop::sample::select(vec![
            "GET / HTTP/1.1\r\n", "POST /a HTTP/1.1\r\n", "HEAD * HTTP/1.0\r\n", "host: h\r\n", "\r\n",
            "content-length: 3\r\n", "transfer-encoding: chunked\r\n", "expect: 100-continue\r\n",
            "connection: close\r\n", "abc", "3\r\nabc\r\n", "0\r\n", "x: y\r\n", "te: trailers\r\n",
            "POST /a HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc",
            "POST /a HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\n", "SM\r\n\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Parts of answers, mostly in an order that means something.
fn answers() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => prop::sample::select(vec![
            "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.0 204 No\r\n", "\r\n", "abc",
            "content-length: 3\r\n", "transfer-encoding: chunked\r\n", "connection: close\r\n",
            "3\r\nabc\r\n", "0\r\n", "x: y\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ]).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

fn post(body: Full<Bytes>) -> Request<Full<Bytes>> {
    Request::post("/").header("host", "h").body(body).unwrap()
}

/// What there is of the body, and the connection where it can be used again.
async fn read(answer: Answer<DuplexStream, Full<Bytes>>) -> (Bytes, Option<Client<DuplexStream>>) {
    let mut body = match answer {
        Answer::Whole(data, client) => return (data, client),
        Answer::Coming(body) => body,
    };
    let mut data = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        data.extend_from_slice(frame.data_ref().map_or(&[], |data| &**data));
    }
    (data.into(), body.take_client())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_a_client_says_the_connection_ends_when_it_leaves(said in words(), step in 1usize..40) {
        let heard = runtime().block_on(async {
            let (client, server) = duplex(4096);
            let drain = CancellationToken::new();
            let served = tokio::spawn(async move {
                serve(server, Arc::new(Echo), &CONFIG, &drain).await.is_ok()
            });
            let (mut reader, mut writer) = tokio::io::split(client);
            let reading = tokio::spawn(async move {
                let mut heard = Vec::new();
                let _cut = reader.read_to_end(&mut heard).await;
                heard
            });
            for piece in said.chunks(step) {
                if writer.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let _closed = writer.shutdown().await;
            drop(writer);
            timeout(LONG * 10, served).await.expect("the connection ends").unwrap();
            timeout(LONG, reading).await.expect("the client is told").unwrap()
        });
        // Whatever is answered is an answer.
        prop_assert!(heard.is_empty() || heard.starts_with(b"HTTP/1."), "{:?}", Bytes::from(heard));
    }

    #[test]
    fn bodies_of_the_library_arrive_as_they_were_sent(
        bodies in prop::collection::vec((any::<bool>(), prop::collection::vec(0usize..20_000, 0..5)), 1..4),
        room in 1usize..9000,
    ) {
        let result: Result<(), TestCaseError> = runtime().block_on(async {
            let (client, server) = duplex(room);
            let drain = CancellationToken::new();
            tokio::spawn(async move { serve(server, Arc::new(Echo), &CONFIG, &drain).await.is_ok() });
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
            tokio::spawn(connection);
            for (chunked, sizes) in bodies {
                let pieces: Vec<Bytes> = sizes.iter().map(|size| vec![b'x'; *size].into()).collect();
                let whole = pieces.concat();
                let body = if chunked {
                    let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
                    StreamBody::new(stream::iter(frames)).boxed()
                } else {
                    Full::from(whole.clone()).boxed()
                };
                sender.ready().await.unwrap();
                let mut request = Request::post("/").header("host", "h").body(body).unwrap();
                *request.version_mut() = http::Version::HTTP_11;
                let answer = timeout(LONG, sender.send_request(request)).await.expect("an answer").unwrap();
                let heard = timeout(LONG, answer.into_body().collect()).await.expect("a body").unwrap().to_bytes();
                prop_assert!(heard == whole, "{} bytes instead of {}", heard.len(), whole.len());
            }
            Ok(())
        });
        result?;
    }

    #[test]
    fn whatever_a_server_says_a_call_ends_when_it_leaves(said in answers(), step in 1usize..40) {
        runtime().block_on(async {
            let (client, mut server) = duplex(4096);
            let calling = tokio::spawn(async move {
                let mut client = Some(Client::new(client));
                while let Some(free) = client.take() {
                    let Ok(answer) = free.call(post(Full::from("body"))).await else { return };
                    client = read(answer.into_body()).await.1;
                }
            });
            tokio::task::yield_now().await;
            for piece in said.chunks(step) {
                if server.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(server);
            timeout(LONG, calling).await.expect("the call ends").unwrap();
        });
    }

    #[test]
    fn answers_of_the_library_arrive_as_they_were_sent(
        sizes in prop::collection::vec(0usize..20_000, 1..5),
        room in 1usize..9000,
    ) {
        let result: Result<(), TestCaseError> = runtime().block_on(async {
            let (client, server) = duplex(room);
            let echo = service_fn(async |request: Request<hyper::body::Incoming>| {
                Ok::<_, Infallible>(Response::new(request.into_body()))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), echo));
            let mut client = Some(Client::new(client));
            for size in sizes {
                let free = client.take().expect("a connection to use again");
                let sent = Bytes::from(vec![b'x'; size]);
                let calling = free.call(post(Full::new(sent.clone())));
                let answer = timeout(LONG, calling).await.expect("an answer").unwrap().into_body();
                let (heard, again) = timeout(LONG, read(answer)).await.expect("a body");
                prop_assert!(heard == sent, "{} bytes instead of {size}", heard.len());
                client = again;
            }
            Ok(())
        });
        result?;
    }
}
