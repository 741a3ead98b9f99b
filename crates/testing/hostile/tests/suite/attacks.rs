//! The attacks: their actions, the required protocol, the expected result, and the allowed cost.

mod crowds;
mod http1;
mod http2;
mod malformed;
mod messages;
mod names;
mod silence;
mod state;
mod unfinished;
mod webhooks;

use std::time::Duration;

use futures::future::BoxFuture;

use crate::h1;
use crate::h2;
use crate::listeners::{Listener, Protocol};
use crate::peer::{Received, Target};

pub use silence::SILENCES;

pub struct Attack {
    pub name: &'static str,
    /// The protocol that a listener must speak.
    pub needs: Protocol,
    pub run: Run,
    pub verdict: Verdict,
    /// Allowed peak memory of the process, MiB.
    pub memory: u64,
    /// Allowed CPU time of the process in milliseconds, including that for honest clients. Generous,
    /// because it must hold for a debug build; it detects superlinear growth.
    pub work: u64,
}

/// The action.
#[derive(Clone, Copy)]
pub enum Run {
    /// Sends these bytes on one connection.
    SendBytes(fn(&Listener) -> Vec<u8>),
    /// Runs a function.
    Do(fn(Target) -> BoxFuture<'static, Received>),
}

/// The expected result, in addition to the ceilings and an honest client being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// HTTP/1.1: no success response, and the connection is closed.
    Refused,
    /// HTTP/1.1: at most one response, and the connection is closed: the rest is never interpreted as a
    /// request.
    OneAnswer,
    /// HTTP/1.1: at most one response; the connection may stay open.
    Swallowed,
    /// HTTP/1.1: a success response.
    Answered,
    /// HTTP/2: no success response on stream 1.
    StreamRefused,
    /// The connection is closed; in HTTP/2, possibly after a GOAWAY with the reason.
    Ends,
    /// Only the ceilings apply.
    Bounded,
}

/// Ceilings of small attacks, MiB and milliseconds.
const LITTLE: (u64, u64) = (24, 2_000);
/// Ceilings of floods.
const FLOOD: (u64, u64) = (32, 4_000);
/// Ceilings of thousands of concurrent requests, the maximum of one connection.
const STREAMS: (u64, u64) = (128, 6_000);
/// How long an attacker waits for its connection to close.
pub const TIMEOUT: Duration = Duration::from_secs(5);

const fn attack(
    name: &'static str,
    needs: Protocol,
    run: Run,
    verdict: Verdict,
    ceilings: (u64, u64),
) -> Attack {
    Attack {
        name,
        needs,
        run,
        verdict,
        memory: ceilings.0,
        work: ceilings.1,
    }
}

/// All attacks.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    [
        http1::ATTACKS,
        malformed::ATTACKS,
        http2::ATTACKS,
        messages::ATTACKS,
        state::ATTACKS,
        unfinished::ATTACKS,
        webhooks::ATTACKS,
        crowds::ATTACKS,
        // Last, because the metric series that it leaves make each scrape larger, which the ceilings of the
        // others do not include.
        names::ATTACKS,
    ]
    .into_iter()
    .flatten()
}

impl Attack {
    /// Whether the attack is about the number of connections.
    pub fn is_crowd(&self) -> bool {
        crowds::ATTACKS.iter().any(|crowd| crowd.name == self.name)
    }

    /// Runs the attack.
    pub async fn run(&self, target: Target) -> Received {
        match self.run {
            Run::Do(attack) => attack(target).await,
            Run::SendBytes(input) => {
                let Ok(mut peer) = target.connect().await else {
                    return Received::not_connected();
                };
                peer.send(&input(target.listener)).await;
                let verdict = self.verdict;
                let limit = match verdict {
                    Verdict::Swallowed => TIMEOUT / 5,
                    _ => TIMEOUT,
                };
                peer.receive(limit, move |bytes| match verdict {
                    Verdict::Answered => h1::is_answered(bytes),
                    Verdict::StreamRefused => h2::is_over(bytes, 1),
                    Verdict::Bounded => true,
                    Verdict::Refused | Verdict::OneAnswer | Verdict::Swallowed | Verdict::Ends => false,
                })
                .await
            }
        }
    }
}

impl Verdict {
    /// Why the result is not the expected one.
    pub fn judge(self, needs: Protocol, received: &Received) -> Result<(), String> {
        if let Some(wrong) = &received.wrong {
            return Err(wrong.clone());
        }
        let statuses = h1::statuses(received);
        let good = statuses.iter().any(|status| (200..300).contains(status));
        let request = match needs {
            Protocol::Http2 | Protocol::Grpc => format!(
                "{:?}",
                h2::frames(&received.bytes).iter().take(8).collect::<Vec<_>>()
            ),
            _ => format!("{statuses:?}"),
        };
        let wrong = match self {
            Self::Bounded => None,
            Self::Swallowed if statuses.len() > 1 => Some("several answers"),
            Self::Swallowed => None,
            Self::Answered if !good => Some("no answer"),
            Self::Answered => None,
            Self::StreamRefused if h2::is_exhausted(&received.bytes, 1) => None,
            Self::StreamRefused if h2::is_ok(&received.bytes, 1) => Some("answered with 200"),
            Self::StreamRefused if !received.closed && !h2::is_over(&received.bytes, 1) => {
                Some("not answered")
            }
            Self::StreamRefused => None,
            Self::Ends if needs == Protocol::Http2 && h2::is_closed_with_error(received) => None,
            _ if !received.closed => Some("the connection stays open"),
            Self::Ends => None,
            Self::Refused if good => Some("a good answer"),
            Self::Refused | Self::OneAnswer if statuses.len() > 1 => Some("several answers"),
            Self::Refused | Self::OneAnswer => None,
        };
        wrong.map_or(Ok(()), |wrong| Err(format!("{wrong}; heard {request}")))
    }
}
