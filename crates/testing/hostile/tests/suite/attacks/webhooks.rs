//! Webhooks, whose clients present no certificate: reviews that are small as text and large in memory, and
//! unread responses.

use futures::FutureExt;

use super::Run::Do;
use super::Verdict::Bounded;
use super::{Attack, TIMEOUT, attack};
use crate::h1;
use crate::listeners::Process;
use crate::listeners::Protocol::Webhook;
use crate::peer::{Peer, Received, Sent, Target};

const MIB: usize = 1 << 20;
/// Bytes per write: each write has a timeout.
const PIECE: usize = MIB;
/// Reviews with unread responses.
const MANY: usize = 22;

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "a large review of many small values",
        Webhook,
        Do(|target| small_values(target).boxed()),
        Bounded,
        (192, 40_000),
    ),
    attack(
        "large reviews with unread responses",
        Webhook,
        Do(|target| unread(target).boxed()),
        Bounded,
        (400, 40_000),
    ),
];

/// A review of an object that contains `inside`.
fn review(target: &Target, inside: &str) -> String {
    match target.listener.process {
        Process::Operator => format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{{"uid":"u",
            "desiredAPIVersion":"dapr.io/v2alpha1","objects":[{{"apiVersion":"dapr.io/v2alpha1","kind":"Subscription",
            "spec":{{"metadata":{inside}}}}}]}}}}"#
        ),
        _ => format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","kind":{{"kind":"Pod"}},
            "userInfo":{{"groups":["system:masters"]}},"object":{{"metadata":{{"annotations":{{"dapr.io/enabled":"true",
            "dapr.io/app-id":"a"}}}},"spec":{{"tolerations":[{inside}]}}}}}}}}"#
        ),
    }
}

/// An object with a member takes 7 bytes here, and a hundred times as much decoded.
async fn small_values(target: Target) -> Received {
    let size = match target.listener.process {
        // Half of the limit, so that it arrives in time on a busy machine.
        Process::Operator => 32 * MIB,
        _ => 7 * MIB,
    };
    let values = format!("[{}0]", r#"{"":0},"#.repeat(size / 7));
    let Some(mut peer) = post(&target, &review(&target, &values)).await else {
        return Received {
            wrong: Some("the review was not accepted".to_owned()),
            ..Received::default()
        };
    };
    let mut received = peer.receive(4 * TIMEOUT, h1::is_answered).await;
    if h1::statuses(&received) != [413] {
        received.wrong = Some(format!("answered with {:?}", h1::statuses(&received)));
    }
    received
}

/// The operator's responses are as large as its requests.
async fn unread(target: Target) -> Received {
    let size = match target.listener.process {
        Process::Operator => 20 * MIB,
        _ => 4 * MIB,
    };
    let review = review(&target, &format!("\"{}\"", "v".repeat(size)));
    let (mut peers, mut last) = (Vec::new(), Received::default());
    for number in 0..MANY {
        // A rejection may arrive before all of the review was sent.
        let Some(mut peer) = post(&target, &review).await else {
            continue;
        };
        last = peer.receive(2 * TIMEOUT, |bytes| !bytes.is_empty()).await;
        let statuses = h1::statuses(&last);
        if statuses != [200] && statuses != [503] {
            last.wrong = Some(format!("{number} was answered with {statuses:?}"));
            return last;
        }
        peers.push(peer);
    }
    if peers.is_empty() {
        last.wrong = Some("no review was answered".to_owned());
    }
    last
}

/// A connection on which a review was posted, if all of it was accepted.
async fn post(target: &Target, body: &str) -> Option<Peer> {
    let mut peer = target.connect().await.ok()?;
    let (path, length) = (h1::path(target.listener), body.len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let pieces = body.as_bytes().chunks(PIECE);
    for piece in std::iter::once(head.as_bytes()).chain(pieces) {
        if peer.send(piece).await != Sent::All {
            return None;
        }
    }
    Some(peer)
}
