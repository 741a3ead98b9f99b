//! The state API: responses many times larger than their requests. Also bulk publishes, which would expand
//! similarly.

use std::time::Instant;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use super::Run::Do;
use super::Verdict::Bounded;
use super::silence::{Attentive, attentive};
use super::{Attack, FLOOD, TIMEOUT, attack};
use crate::h1;
use crate::h2::{END_HEADERS, END_STREAM, fields_of, frame, frames, hello, kind, setting};
use crate::listeners::Protocol::State;
use crate::peer::{Received, Target};

/// Bytes of the requested value.
const VALUE: usize = 1 << 20;
/// Number of times a bulk get repeats its key.
const MANY: usize = 10_000;
/// Events of a bulk publish, and bytes of metadata that each would inherit: a head may have 4 KiB.
const EVENTS: usize = 25_000;
const INHERITED: usize = 3_000;
const STORE: &str = "/v1.0/state/store";
/// Index of the method in the static table.
const POST: u8 = 0x83;
/// Identifier of the setting.
const INITIAL_WINDOW: u16 = 4;

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "large responses blocked on many streams",
        State,
        Do(|target| unread(target, 700, 1).boxed()),
        Bounded,
        (400, 20_000),
    ),
    attack(
        "huge responses blocked on few streams",
        State,
        Do(|target| unread(target, 80, 16).boxed()),
        Bounded,
        (1_200, 30_000),
    ),
    attack(
        "huge unread responses on many connections",
        State,
        Do(|target| unread_on_connections(target, 72, 16).boxed()),
        Bounded,
        (1_100, 30_000),
    ),
    attack(
        "huge responses blocked on several connections",
        State,
        Do(|target| unread_streams_on_connections(target, 3, 36, 16).boxed()),
        Bounded,
        (1_600, 30_000),
    ),
    attack(
        "a bulk get that repeats one key",
        State,
        Do(|target| repeated(target).boxed()),
        Bounded,
        FLOOD,
    ),
    attack(
        "a bulk publish whose events inherit metadata",
        State,
        Do(|target| inherited(target).boxed()),
        Bounded,
        FLOOD,
    ),
];

/// A bulk get that requests the value `times` times.
fn bulk(times: usize) -> String {
    format!(r#"{{"keys":[{}]}}"#, vec![r#""k""#; times].join(","))
}

/// Requests the value, `times` per response, on each of `streams` streams with closed windows.
async fn unread(target: Target, streams: u32, times: usize) -> Received {
    save(&target).await;
    let (input, all) = (bulks(&target, streams, times), streams as usize);
    let answered = |bytes: &[u8]| count(bytes, kind::HEADERS);
    let bytes = attentive(target, input, |bytes| answered(bytes) == all).await;
    let wrong = (answered(&bytes) < all).then(|| format!("{} of {all} were answered", answered(&bytes)));
    Received {
        wrong,
        ..Received::default()
    }
}

/// Number of frames of a type. The head of a response needs no window.
fn count(bytes: &[u8], which: u8) -> usize {
    frames(bytes).iter().filter(|f| f.kind == which).count()
}

/// The same on several connections at once, whose shared limit allows some of them.
async fn unread_streams_on_connections(
    target: Target,
    connections: u32,
    streams: u32,
    times: usize,
) -> Received {
    save(&target).await;
    let (input, requested) = (bulks(&target, streams, times), (connections * streams) as usize);
    let mut peers = Vec::new();
    for _ in 0..connections {
        peers.extend(Attentive::send(&target, &input).await);
    }
    let (mut answers, mut resets, begun) = (0, 0, Instant::now());
    while answers < requested && begun.elapsed() < 6 * TIMEOUT {
        for peer in &mut peers {
            peer.receive(TIMEOUT / 50).await;
        }
        let seen = |which| peers.iter().map(|peer| count(&peer.received, which)).sum();
        (answers, resets) = (seen(kind::HEADERS), seen(kind::RESET));
    }
    Received {
        wrong: (resets == 0).then(|| format!("{answers} of {requested} answered, {resets} reset")),
        ..Received::default()
    }
}

/// A bulk get of the value, `times` times, on each of `streams` streams with closed windows.
fn bulks(target: &Target, streams: u32, times: usize) -> Vec<u8> {
    let fields = fields_of(target.listener, POST, &format!("{STORE}/bulk"));
    let body = bulk(times);
    let requested = (0..streams).map(|number| {
        let stream = 1 + 2 * number;
        [
            frame(kind::HEADERS, END_HEADERS, stream, &fields),
            frame(kind::DATA, END_STREAM, stream, body.as_bytes()),
        ]
        .concat()
    });
    [
        hello(&[setting(INITIAL_WINDOW, 0)]),
        requested.collect::<Vec<_>>().concat(),
    ]
    .concat()
}

/// Requests the value, `times` per response, on each of many connections, and reads only the start.
async fn unread_on_connections(target: Target, connections: u32, times: usize) -> Received {
    save(&target).await;
    let (input, mut peers) = (post_request(&format!("{STORE}/bulk"), &bulk(times)), Vec::new());
    for number in 0..connections {
        let mut peer = target.connect().await.unwrap();
        peer.send(input.as_bytes()).await;
        let mut received = peer.receive(TIMEOUT * 2, |bytes| !bytes.is_empty()).await;
        if h1::statuses(&received) != [200] {
            received.wrong = Some(format!(
                "{number} was answered with {:?}",
                h1::statuses(&received)
            ));
            return received;
        }
        peers.push(peer);
    }
    // Responses are sent as far as the kernel accepts. The rest of some must have been dropped to make
    // room: of the oldest, or of the youngest if the connections came faster than a stalled reader is
    // detected.
    let rests = peers
        .into_iter()
        .map(async |mut peer| peer.receive(5 * TIMEOUT, |_| false).await);
    let mut rests = rests.collect::<FuturesUnordered<_>>();
    while let Some(received) = rests.next().await {
        if received.closed {
            return received;
        }
    }
    Received {
        wrong: Some("all connections stay open".to_owned()),
        ..Received::default()
    }
}

/// Requests the value more often than a response may contain it.
async fn repeated(target: Target) -> Received {
    save(&target).await;
    let mut received = post(&target, &format!("{STORE}/bulk"), &bulk(MANY)).await;
    if h1::statuses(&received) != [400] {
        received.wrong = Some(format!("answered with {:?}", h1::statuses(&received)));
    }
    received
}

/// Publishes events without content, each of which would copy the metadata of the request.
async fn inherited(target: Target) -> Received {
    let event =
        |id: usize| format!(r#"{{"entryId":"{id}","event":"","contentType":"text/plain","metadata":{{}}}}"#);
    let events: Vec<_> = (0..EVENTS).map(event).collect();
    let path = format!("/v1.0/publish/bulk/broker/t?metadata.a={}", "x".repeat(INHERITED));
    let mut received = post(&target, &path, &format!("[{}]", events.join(","))).await;
    if h1::statuses(&received) != [400] {
        received.wrong = Some(format!("answered with {:?}", h1::statuses(&received)));
    }
    received
}

async fn save(target: &Target) {
    let body = format!(r#"[{{"key":"k","value":"{}"}}]"#, "v".repeat(VALUE));
    let received = post(target, STORE, &body).await;
    assert_eq!(h1::statuses(&received), [204]);
}

fn post_request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

async fn post(target: &Target, path: &str, body: &str) -> Received {
    let mut peer = target.connect().await.unwrap();
    peer.send(post_request(path, body).as_bytes()).await;
    peer.receive(TIMEOUT, h1::is_answered).await
}
