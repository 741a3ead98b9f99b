//! gRPC: messages that are small on the wire and large when decoded. Sent within the server's windows, so
//! that the whole message reaches its decoder.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Run::Do;
use super::Verdict::Bounded;
use super::{Attack, FLOOD, TIMEOUT, attack};
use crate::h2::{END_STREAM, frame, frames, headers, hello, is_over, kind};
use crate::listeners::Protocol::Grpc;
use crate::peer::{Peer, Received, Sent, Target};

/// Just below the servers' maximum message size, 4 MiB.
const SIZE: usize = (4 << 20) - 4096;
const STREAM: u32 = 1;
/// Default windows (RFC 9113, section 6.9.2), and the identifier of their setting.
const WINDOW: usize = 65_535;
const INITIAL_WINDOW: u16 = 4;
const PIECE: usize = 16_384;

pub(super) const ATTACKS: &[Attack] = &[attack(
    "a message of two million empty fields",
    Grpc,
    Do(|target| send(target, [0x0a, 0x00].repeat(SIZE / 2))),
    Bounded,
    FLOOD,
)];

/// Calls the listener's honest method with this message.
fn send(target: Target, message: Vec<u8>) -> BoxFuture<'static, Received> {
    async move {
        let Ok(mut peer) = target.connect().await else {
            return Received::not_connected();
        };
        peer.send(&[hello(&[]), headers(target.listener, STREAM, false)].concat())
            .await;
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], &message].concat();
        let mut received = Received::default();
        let mut sent = 0;
        while sent < body.len() && !received.closed && !is_over(&received.bytes, STREAM) {
            let allowed = window(&received.bytes).min(body.len()).min(sent + PIECE);
            if allowed == sent {
                if !listen(&mut peer, &mut received).await {
                    break;
                }
                continue;
            }
            let ends = if allowed == body.len() { END_STREAM } else { 0 };
            if peer
                .send(&frame(kind::DATA, ends, STREAM, &body[sent..allowed]))
                .await
                != Sent::All
            {
                break;
            }
            sent = allowed;
        }
        while !received.closed && !is_over(&received.bytes, STREAM) {
            if !listen(&mut peer, &mut received).await {
                break;
            }
        }
        // The error depends on which of the server's limits applies first.
        let mut frames = frames(&received.bytes).into_iter();
        if frames.any(|frame| frame.stream == STREAM && frame.kind == kind::DATA) {
            received.wrong = Some("answered".to_owned());
        } else if !received.closed && !is_over(&received.bytes, STREAM) {
            received.wrong = Some("not answered".to_owned());
        }
        received
    }
    .boxed()
}

/// Receives more. False if nothing arrived.
async fn listen(peer: &mut Peer, received: &mut Received) -> bool {
    let news = peer.receive(TIMEOUT, |news| !news.is_empty()).await;
    received.bytes.extend_from_slice(&news.bytes);
    received.closed = news.closed;
    !news.bytes.is_empty()
}

/// Bytes of the body that the server's windows have allowed so far.
fn window(received: &[u8]) -> usize {
    let number = |payload: &[u8]| {
        payload
            .try_into()
            .map_or(0, |number| u32::from_be_bytes(number) as usize)
    };
    let (mut connection, mut stream, mut initial) = (WINDOW, 0, WINDOW);
    for frame in frames(received) {
        match (frame.kind, frame.stream) {
            (kind::WINDOW, 0) => connection += number(frame.payload),
            (kind::WINDOW, STREAM) => stream += number(frame.payload),
            (kind::SETTINGS, _) => {
                let settings = frame.payload.chunks_exact(6);
                let wanted = settings.filter(|setting| setting[..2] == INITIAL_WINDOW.to_be_bytes());
                initial = wanted
                    .map(|setting| number(&setting[2..]))
                    .next_back()
                    .unwrap_or(initial);
            }
            _ => {}
        }
    }
    connection.min(initial + stream)
}
