//! Many connections of one attacker.

use std::io::ErrorKind;
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, StreamExt};

use super::Run::Do;
use super::Verdict::{Bounded, Ends};
use super::{Attack, FLOOD, LITTLE, attack};
use crate::child::{DESCRIPTORS, limit_files, open_files};
use crate::h2::{hello, request};
use crate::honest;
use crate::listeners::Protocol::{Http1, Http2, Tcp, Tls};
use crate::peer::{Peer, Raw, Received, Target};

/// Connections of a crowd that only connects.
const MANY: u32 = 400;
/// All from one address, or each from another.
const ONE: u32 = 1;
const EACH: u32 = MANY;
/// Connections of a crowd above the server's limit, and the maximum that the server may keep including all
/// others.
const TOO_MANY: u32 = 720;
const KEPT: u64 = DESCRIPTORS * 2 / 5;
/// Connections of such a crowd opened concurrently.
const AT_ONCE: usize = 8;
/// An honest client is served within this time while such a crowd stays; silent connections are closed
/// later than that.
const SERVED: Duration = Duration::from_secs(8);
/// Connections of a crowd that completes handshakes.
const SOME: usize = 150;
/// Descriptors left to a process that runs short of them.
const FEW: u32 = 100;
/// How long a crowd stays.
const STAY: Duration = Duration::from_millis(400);

/// A ClientHello that declares more than is sent.
const HALF_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "silent connections",
        Tcp,
        Do(|target| crowd(target, MANY, ONE, &[]).boxed()),
        Bounded,
        LITTLE,
    ),
    attack(
        "silent connections from many addresses",
        Tcp,
        Do(|target| crowd(target, MANY, EACH, &[]).boxed()),
        Bounded,
        LITTLE,
    ),
    attack(
        "more silent connections than the limit, held open",
        Tcp,
        Do(|target| hold_silent(target).boxed()),
        Bounded,
        (48, 8_000),
    ),
    attack(
        "more connections than the limit, idle after a request",
        Tcp,
        Do(|target| idle_after_request(target).boxed()),
        Bounded,
        (128, 20_000),
    ),
    attack(
        "more connections than the process has descriptors",
        Tcp,
        Do(|target| beyond_descriptors(target).boxed()),
        Bounded,
        LITTLE,
    ),
    attack(
        "half a request on each of many connections",
        Http1,
        Do(|target| crowd(target, MANY, ONE, b"GET / HTTP/1.1\r\nHost: ").boxed()),
        Bounded,
        LITTLE,
    ),
    attack(
        "half a handshake on each of many connections",
        Tls,
        Do(|target| crowd(target, MANY, ONE, HALF_HELLO).boxed()),
        Bounded,
        LITTLE,
    ),
    attack(
        "a refused request on each of many connections",
        Http2,
        Do(|target| refused(target).boxed()),
        Bounded,
        (48, 8_000),
    ),
    attack(
        "plaintext instead of TLS",
        Tls,
        Do(|target| plain(target, b"GET / HTTP/1.1\r\n\r\n".to_vec()).boxed()),
        Ends,
        LITTLE,
    ),
    attack(
        "records of one byte",
        Tls,
        Do(|target| plain(target, small_records()).boxed()),
        Ends,
        FLOOD,
    ),
    attack(
        "a handshake message of 16 MiB",
        Tls,
        Do(|target| plain(target, large_message()).boxed()),
        Ends,
        FLOOD,
    ),
];

/// Opens connections from `machines` addresses in turn, sends the same on each, and holds them.
async fn crowd(target: Target, count: u32, machines: u32, input: &'static [u8]) -> Received {
    let held = connected(&target, count, machines, input).await;
    tokio::time::sleep(STAY).await;
    crowd_of(held.len(), count as usize)
}

/// The result of a crowd with this many connections: invalid if less than half are open.
pub(super) fn crowd_of(connected: usize, count: usize) -> Received {
    Received {
        wrong: (2 * connected < count).then(|| format!("only {connected} of {count} connected")),
        ..Received::default()
    }
}

/// Whether the server was reached, even if it closed the connection at once to make room for others.
pub(super) fn is_reached<T>(connecting: &std::io::Result<T>) -> bool {
    match connecting {
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
        ),
    }
}

/// The open connections of a crowd. The server's kernel accepts them before the server does.
async fn connected(target: &Target, count: u32, machines: u32, input: &'static [u8]) -> Vec<Raw> {
    let mut held = Vec::new();
    for number in 0..count {
        let machine = target.source.to_bits() + number % machines;
        let Ok(stream) = target.from(machine.into()).raw().await else {
            continue;
        };
        let _full = match &stream {
            Raw::Left(stream) => stream.try_write(input),
            Raw::Right(stream) => stream.try_write(input),
        };
        held.push(stream);
    }
    held
}

/// An honest client is served while a crowd stays, of which the server does not keep all.
async fn serves_others(target: &Target, before: u64, connected: usize) -> Received {
    let others = target.from(std::net::Ipv4Addr::LOCALHOST);
    let served = tokio::time::timeout(SERVED, honest::call(&others)).await;
    let served = served.unwrap_or_else(|_| Err(format!("no other client is served within {SERVED:?}")));
    let kept = open_files(target.process).saturating_sub(before);
    let too_few = crowd_of(connected, TOO_MANY as usize).wrong;
    let wrong = served.err().or(too_few).or_else(|| {
        let many = kept > KEPT;
        many.then(|| format!("the server keeps {kept} connections"))
    });
    Received {
        wrong,
        ..Received::default()
    }
}

/// A crowd that stays as long as the server permits.
async fn hold_silent(target: Target) -> Received {
    let before = open_files(target.process);
    let held = connected(&target, TOO_MANY, EACH, &[]).await;
    let received = serves_others(&target, before, held.len()).await;
    drop(held);
    received
}

/// A crowd in which each connection makes one honest request and stays.
async fn idle_after_request(target: Target) -> Received {
    let before = open_files(target.process);
    let asking = futures::stream::iter(0..TOO_MANY).map(|number| {
        let machine = target.source.to_bits() + number % EACH;
        let target = target.from(machine.into());
        async move { connect_and_call(&target).await }
    });
    let held: Vec<std::io::Result<Option<Peer>>> = asking.buffer_unordered(AT_ONCE).collect().await;
    let reached = held.iter().filter(|connection| is_reached(connection)).count();
    let received = serves_others(&target, before, reached).await;
    drop(held);
    received
}

/// A connection with one completed call; `None` on timeout.
async fn connect_and_call(target: &Target) -> std::io::Result<Option<Peer>> {
    let mut peer = target.connect().await?;
    let received = tokio::time::timeout(SERVED, honest::send_request(target, &mut peer, "keep-alive")).await;
    Ok(received.is_ok().then_some(peer))
}

/// A crowd larger than the process's descriptor limit.
async fn beyond_descriptors(target: Target) -> Received {
    let room = open_files(target.process) + u64::from(FEW);
    let before = limit_files(target.process, Some(room));
    let received = crowd(target.clone(), 2 * FEW, ONE, &[]).await;
    limit_files(target.process, before);
    received
}

/// Connections whose requests are refused, and that stay.
async fn refused(target: Target) -> Received {
    let input = [hello(&[]), request(target.listener, 1, b"nobody")].concat();
    let connecting = (0..SOME).map(|_| send_and_receive(&target, &input));
    let held: Vec<std::io::Result<Peer>> = join_all(connecting).await;
    tokio::time::sleep(STAY).await;
    crowd_of(held.iter().filter(|one| is_reached(one)).count(), SOME)
}

/// A connection that has sent these bytes and read the response.
async fn send_and_receive(target: &Target, input: &[u8]) -> std::io::Result<Peer> {
    let mut peer = target.connect().await?;
    peer.send(input).await;
    Ok(peer)
}

/// Bytes that are not TLS, or invalid TLS.
async fn plain(target: Target, input: Vec<u8>) -> Received {
    let Ok(stream) = target.raw().await else {
        return Received::not_connected();
    };
    let peer = crate::peer::Peer::new(Box::new(stream));
    peer.flood(std::iter::once(input), super::TIMEOUT).await
}

/// A handshake message of 64 KiB in records of one byte.
fn small_records() -> Vec<u8> {
    let record = |byte: u8| [0x16, 3, 1, 0, 1, byte];
    let head = [1, 1, 0, 0].map(record).concat();
    [head, record(0).repeat(80_000)].concat()
}

/// Declares a ClientHello of 16 MiB and sends 4.
fn large_message() -> Vec<u8> {
    let first = [&[0x16, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x3ffc]].concat();
    let more = [&[0x16, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
    [first, more.repeat(256)].concat()
}
