use std::io;
use std::net::IpAddr;
use std::sync::Mutex;

use http_body_util::Full;
use outrigger_accept::Accept;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

#[tokio::test]
async fn limits_bytes_of_bodies_in_flight() {
    let budget = Arc::new(Semaphore::new(10));
    let body = |more: usize| Full::new(Bytes::from(vec![b'x'; UNCHARGED + more]));
    let limit = UNCHARGED + 8;
    let (first, taken) = receive(body(6), limit, &budget).await.unwrap();
    assert_eq!(first.len(), UNCHARGED + 6);
    let refused = receive(body(6), limit, &budget).await.unwrap_err();
    assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        receive(body(4), limit, &budget).await.is_ok(),
        "what was refused keeps no room"
    );
    let all = take(&budget, 4);
    assert!(
        receive(body(0), limit, &budget).await.is_ok(),
        "what is small needs none"
    );
    drop((taken, all));
    assert!(receive(body(6), limit, &budget).await.is_ok());
    let large = receive(body(9), limit, &budget).await.unwrap_err();
    assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(budget.available_permits(), 10);
}

/// A listener with one connection.
struct Once(Mutex<Option<DuplexStream>>);

impl Accept for Once {
    type Stream = DuplexStream;
    type Peer = ();

    async fn accept(&self) -> io::Result<(DuplexStream, ())> {
        let stream = self.0.lock().unwrap().take();
        match stream {
            Some(stream) => Ok((stream, ())),
            None => std::future::pending().await,
        }
    }

    fn source((): ()) -> Option<IpAddr> {
        None
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }
}

/// The client of a server with responses of this size, and the server's budget.
fn client(answer: usize) -> (DuplexStream, Arc<Semaphore>) {
    let (client, server) = tokio::io::duplex(1024);
    let budget = Arc::new(Semaphore::new(1 << 20));
    let webhook = Webhook {
        handle: move |_: Request<Bytes>| std::future::ready(Response::new(Bytes::from(vec![b'x'; answer]))),
        limit: 1 << 20,
        budget: Arc::clone(&budget),
    };
    let limits = Limits {
        connections: 8,
        per_source: 8,
    };
    let listener = Once(Mutex::new(Some(server)));
    let connection = move |accepted: Accepted<DuplexStream, ()>| {
        webhook
            .clone()
            .converse(accepted.stream, accepted.permit, accepted.drain)
    };
    let drain = CancellationToken::new();
    tokio::spawn(outrigger_accept::serve(
        listener,
        Admission::new(limits),
        drain,
        connection,
    ));
    (client, budget)
}

const ASKED: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";

#[tokio::test(start_paused = true)]
async fn slow_reader_releases_budget() {
    let (mut client, budget) = client(1 << 20);
    client.write_all(ASKED).await.unwrap();
    let begun = tokio::time::Instant::now();
    let mut piece = [0; 100];
    assert!(client.read(&mut piece).await.unwrap() > 0);
    assert_eq!(budget.available_permits(), UNCHARGED, "the answer keeps its room");
    while client.read(&mut piece).await.unwrap_or(0) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(budget.available_permits(), 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn unread_response_releases_budget() {
    let (mut client, budget) = client(1 << 20);
    client.write_all(ASKED).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(budget.available_permits(), UNCHARGED);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(budget.available_permits(), 1 << 20);
}

#[tokio::test]
async fn delivers_large_response() {
    let (mut client, budget) = client(1 << 20);
    client.write_all(ASKED).await.unwrap();
    client.shutdown().await.unwrap();
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    let head = heard.len() - (1 << 20);
    assert!(heard[..head].ends_with(b"\r\n\r\n") && heard[head..].iter().all(|byte| *byte == b'x'));
    assert_eq!(budget.available_permits(), 1 << 20);
}
