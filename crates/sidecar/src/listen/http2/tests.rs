//! The server against the library's own client, over pipes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use h2::Reason;
use h2::client::SendRequest;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::listen::Versions;

const LONG: Duration = Duration::from_secs(5);

/// Echoes a body as soon as it may; counts the calls it gave up.
struct Echo {
    may: Semaphore,
    begun: AtomicUsize,
    dropped: AtomicUsize,
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Handler for Echo {
    async fn handle(self: Arc<Self>, _: Arc<Client>, request: Request<Body>) -> Response<Body> {
        let unfinished = Counted(&self.dropped);
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.may.acquire().await.unwrap().forget();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        std::mem::forget(unfinished);
        Response::new(body.into())
    }
}

struct Served {
    echo: Arc<Echo>,
    drain: CancellationToken,
    server: JoinHandle<Result<(), Ended>>,
    client: DuplexStream,
}

fn served(permits: usize) -> Served {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let echo = Arc::new(Echo {
        may: Semaphore::new(permits),
        begun: AtomicUsize::new(0),
        dropped: AtomicUsize::new(0),
    });
    let (handler, drain) = (Arc::clone(&echo), CancellationToken::new());
    let stop = drain.clone();
    let server = tokio::spawn(async move {
        let options = Options {
            versions: Versions::Http2,
            tls: None,
            head_limit: 4096,
            header_list_limit: 64 * 1024,
        };
        serve(far, handler, Client::default(), &options, &stop).await
    });
    Served {
        echo,
        drain,
        server,
        client: near,
    }
}

async fn connected(io: DuplexStream) -> SendRequest<Bytes> {
    let (sender, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

fn post() -> Request<()> {
    Request::post("http://app/echo").body(()).unwrap()
}

async fn eventually(count: &AtomicUsize, wanted: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, reached).await.unwrap();
}

#[tokio::test]
async fn settings_leave_before_the_client_says_anything() {
    let Served {
        mut client, server, ..
    } = served(0);
    let mut head = [0; 9];
    timeout(LONG, client.read_exact(&mut head))
        .await
        .unwrap()
        .unwrap();
    // Type 4 (SETTINGS) of stream 0: RFC 9113 section 6.5.
    assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]));
    client
        .write_all(b"\x16\x03\x01 this is TLS, not HTTP/2")
        .await
        .unwrap();
    assert!(timeout(LONG, server).await.unwrap().unwrap().is_err());
}

#[tokio::test]
async fn a_body_comes_back_whole_whatever_its_size() {
    let Served { client, .. } = served(2);
    let mut sender = connected(client).await;
    for size in [1, 200 * 1024] {
        let (response, mut stream) = sender.send_request(post(), false).unwrap();
        stream.send_data(vec![b'x'; size].into(), true).unwrap();
        let mut body = timeout(LONG, response).await.unwrap().unwrap().into_body();
        let mut got = 0;
        while let Some(data) = timeout(LONG, body.data()).await.unwrap() {
            let data = data.unwrap();
            got += data.len();
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(got, size);
        sender = sender.ready().await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_its_client_gives_up_is_dropped() {
    let Served { client, echo, .. } = served(0);
    let mut sender = connected(client).await;
    let (_response, mut stream) = sender.send_request(post(), false).unwrap();
    eventually(&echo.begun, 1).await;
    assert_eq!(echo.dropped.load(Ordering::SeqCst), 0);
    stream.send_reset(Reason::CANCEL);
    eventually(&echo.dropped, 1).await;
}

#[tokio::test]
async fn draining_lets_the_call_in_flight_finish() {
    let Served {
        client,
        echo,
        drain,
        mut server,
    } = served(0);
    let mut sender = connected(client).await;
    let (response, mut stream) = sender.send_request(post(), false).unwrap();
    stream.send_data(Bytes::from_static(b"late"), true).unwrap();
    eventually(&echo.begun, 1).await;
    drain.cancel();
    assert!(timeout(Duration::from_millis(50), &mut server).await.is_err());
    echo.may.add_permits(1);
    let mut body = timeout(LONG, response).await.unwrap().unwrap().into_body();
    assert_eq!(&body.data().await.unwrap().unwrap()[..], b"late");
    drop((body, sender));
    timeout(LONG, server).await.unwrap().unwrap().unwrap();
}
