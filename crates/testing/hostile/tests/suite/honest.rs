//! The honest client, which must be served during attacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::listeners::{Protocol, Request};
use crate::peer::{Peer, Received, Target};
use crate::{h1, h2};

/// gRPC statuses that never count as served: DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE.
const NOT_SERVED: [u16; 3] = [4, 8, 14];

/// Timeout of an honest client. Generous, because test machines are busy.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between calls.
const PAUSE: Duration = Duration::from_millis(30);
/// Minimum bytes of a certificate.
const CERTIFICATE: usize = 500;

/// One call on a new connection.
pub async fn call(target: &Target) -> Result<(), String> {
    let started = Instant::now();
    let outcome = tokio::time::timeout(TIMEOUT, exchange(target)).await;
    let name = target.listener.name;
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(format!(
            "an honest client of {name}: {why}, after {:?}",
            started.elapsed()
        )),
        Err(_) => Err(format!("an honest client of {name} had no answer in {TIMEOUT:?}")),
    }
}

async fn exchange(target: &Target) -> Result<(), String> {
    let mut peer = target
        .connect()
        .await
        .map_err(|e| format!("connecting failed: {e}"))?;
    let received = send_request(target, &mut peer, "close").await;
    if speaks_http1(target) {
        return match h1::statuses(&received).first() {
            Some(200..=299) => Ok(()),
            _ => Err(format!("heard {:?}", String::from_utf8_lossy(&received.bytes))),
        };
    }
    let data = h2::frames(&received.bytes)
        .iter()
        .filter(|f| f.kind == h2::kind::DATA)
        .map(|f| f.payload.len())
        .sum::<usize>();
    let honest = target.listener.honest;
    if !is_served(honest, &received.bytes) {
        let outcome = h2::outcome(&received.bytes, 1);
        return Err(format!("{outcome:?}, heard {:?}", h2::frames(&received.bytes)));
    }
    match honest {
        Request::Sign if data < CERTIFICATE => Err("no certificate was issued".to_owned()),
        _ => Ok(()),
    }
}

/// Whether a call on stream 1 got the expected response. An overload or timeout error does not count.
fn is_served(honest: Request, received: &[u8]) -> bool {
    let h2::Outcome {
        status: Some(200),
        code: Some(code),
    } = h2::outcome(received, 1)
    else {
        return false;
    };
    let expected = match honest {
        Request::Call(_, expected) => expected.contains(&code),
        Request::Get(_) | Request::Post(..) | Request::Sign => code == 0,
    };
    expected && !NOT_SERVED.contains(&code)
}

fn speaks_http1(target: &Target) -> bool {
    matches!(target.listener.honest, Request::Get(_) | Request::Post(..))
        && target.listener.offers(Protocol::Http1)
}

/// Sends an honest request on an unused connection; `connection` is the HTTP/1.1 header field.
pub async fn send_request(target: &Target, peer: &mut Peer, connection: &str) -> Received {
    let listener = target.listener;
    if speaks_http1(target) {
        let request = h1::request(listener, &format!("Connection: {connection}\r\n"));
        peer.send(request.as_bytes()).await;
        return peer.receive(TIMEOUT, h1::is_answered).await;
    }
    let input = [h2::hello(&[]), h2::request(listener, 1, &target.signing)].concat();
    peer.send(&input).await;
    peer.receive(TIMEOUT, |bytes| h2::is_over(bytes, 1)).await
}

/// Calls repeatedly until stopped, then once more.
pub async fn keep_calling(target: Target, stop: Arc<AtomicBool>) -> Result<u32, String> {
    let mut answered = 0;
    loop {
        let last = stop.load(Ordering::Acquire);
        call(&target)
            .await
            .map_err(|why| format!("{why}, {answered} calls were answered before"))?;
        answered += 1;
        if last {
            return Ok(answered);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until a server responds; `false` if it does not within `limit`.
pub async fn is_up(target: &Target, limit: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < limit {
        if call(target).await.is_ok() {
            return true;
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}

/// A HEADERS frame, with or without END_STREAM.
fn answered(block: &[u8], ended: bool) -> Vec<u8> {
    let flags = h2::END_HEADERS | if ended { h2::END_STREAM } else { 0 };
    h2::frame(h2::kind::HEADERS, flags, 1, block)
}

/// A trailers-only response with this gRPC status; 0x88 is `:status 200`.
fn trailers_only(code: &str) -> Vec<u8> {
    let mut block = vec![0x88];
    h2::field(&mut block, "content-type", b"application/grpc");
    h2::field(&mut block, "grpc-status", code.as_bytes());
    answered(&block, true)
}

#[test]
fn accepts_expected_status_only() {
    const REFUSED: Request = Request::Call("/s/m", &[3, 4, 8, 14]);
    const SERVED: Request = Request::Call("/s/m", &[0]);
    assert!(is_served(REFUSED, &trailers_only("3")));
    assert!(is_served(SERVED, &trailers_only("0")));
    assert!(is_served(Request::Sign, &trailers_only("0")));
    assert!(!is_served(Request::Sign, &trailers_only("3")));
    assert!(!is_served(SERVED, &trailers_only("3")));
    for overloaded in ["4", "8", "14"] {
        assert!(!is_served(REFUSED, &trailers_only(overloaded)), "{overloaded}");
    }
    for nothing in ["", "no number"] {
        assert!(!is_served(REFUSED, &trailers_only(nothing)), "{nothing:?}");
    }
}

#[test]
fn reads_status_from_trailers() {
    const SERVED: Request = Request::Call("/s/m", &[0]);
    // The first response indexes the field, the second one refers to it.
    let (mut head, mut trailers) = (vec![0x88], Vec::new());
    h2::field(&mut head, "content-type", b"application/grpc");
    h2::remembered(&mut trailers, "grpc-status", b"0");
    let data = h2::frame(h2::kind::DATA, 0, 1, &[0; 5]);
    let whole = [answered(&head, false), data.clone(), answered(&trailers, true)].concat();
    assert!(is_served(SERVED, &whole));
    assert!(!is_served(
        SERVED,
        &[answered(&head, false), data.clone()].concat()
    ));
    let another = h2::frame(h2::kind::HEADERS, h2::END_HEADERS, 3, &trailers);
    let again = [another, answered(&head, false), data, answered(&[0xbe], true)].concat();
    assert!(is_served(SERVED, &again));
    // In two frames.
    let halves = [
        h2::frame(h2::kind::HEADERS, h2::END_STREAM, 1, &[0x88]),
        h2::frame(h2::kind::CONTINUATION, h2::END_HEADERS, 1, &trailers),
    ];
    assert!(is_served(SERVED, &halves.concat()));
    // 0x8d is `:status 404`.
    let mut missing = vec![0x8d];
    missing.extend_from_slice(&trailers);
    assert!(!is_served(SERVED, &answered(&missing, true)));
}
