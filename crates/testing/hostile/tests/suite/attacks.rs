//! The attacks: what is done, what a listener must offer for it, what must come of it, and what it may cost.

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
use crate::peer::{Heard, Target};

pub use silence::SILENCES;

pub struct Attack {
    pub name: &'static str,
    /// What a listener must speak for it.
    pub needs: Protocol,
    pub run: Run,
    pub verdict: Verdict,
    /// Memory the process may need for it, at the peak (MiB).
    pub memory: u64,
    /// Work of the process, with that for honest clients (milliseconds of CPU time). Generous: it must hold for a build
    /// without optimisation, and tells what grows from what does not.
    pub work: u64,
}

/// What is done.
#[derive(Clone, Copy)]
pub enum Run {
    /// These bytes on one connection.
    Say(fn(&Listener) -> Vec<u8>),
    /// Anything.
    Do(fn(Target) -> BoxFuture<'static, Heard>),
}

/// What must come of it, besides the ceilings, and an honest client that is served meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// HTTP/1.1: no good answer, and the end of the connection.
    Refused,
    /// HTTP/1.1: one answer at most, and the end of the connection: what follows is never read as a request.
    OneAnswer,
    /// HTTP/1.1: one answer at most; the connection may go on.
    Swallowed,
    /// HTTP/1.1: a good answer.
    Answered,
    /// HTTP/2: stream 1 has no good answer.
    StreamRefused,
    /// The end of the connection; in HTTP/2, that or a GOAWAY that tells why.
    Ends,
    /// Nothing but the ceilings.
    Bounded,
}

/// Ceilings of attacks that say little, MiB and milliseconds.
const LITTLE: (u64, u64) = (24, 2_000);
/// Ceilings of floods.
const FLOOD: (u64, u64) = (32, 4_000);
/// Ceilings of thousands of requests that are there at once, as many as one connection may have.
const STREAMS: (u64, u64) = (128, 6_000);
/// How long an attacker listens for the end of its connection.
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

/// Every attack.
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
        // Last: the series that it leaves behind make each scrape larger, and the ceilings of the others do not count them.
        names::ATTACKS,
    ]
    .into_iter()
    .flatten()
}

impl Attack {
    /// Whether it is about how many connections there are.
    pub fn is_crowd(&self) -> bool {
        crowds::ATTACKS.iter().any(|crowd| crowd.name == self.name)
    }

    /// Attacks.
    pub async fn run(&self, target: Target) -> Heard {
        match self.run {
            Run::Do(attack) => attack(target).await,
            Run::Say(words) => {
                let Ok(mut peer) = target.connect().await else {
                    return Heard::not_connected();
                };
                peer.say(&words(target.listener)).await;
                let verdict = self.verdict;
                let limit = match verdict {
                    Verdict::Swallowed => TIMEOUT / 5,
                    _ => TIMEOUT,
                };
                peer.hear(limit, move |bytes| match verdict {
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
    /// Why this is not what must come of an attack.
    pub fn judge(self, needs: Protocol, heard: &Heard) -> Result<(), String> {
        if let Some(wrong) = &heard.wrong {
            return Err(wrong.clone());
        }
        let statuses = h1::statuses(heard);
        let good = statuses.iter().any(|status| (200..300).contains(status));
        let request = match needs {
            Protocol::Http2 | Protocol::Grpc => format!(
                "{:?}",
                h2::frames(&heard.bytes).iter().take(8).collect::<Vec<_>>()
            ),
            _ => format!("{statuses:?}"),
        };
        let wrong = match self {
            Self::Bounded => None,
            Self::Swallowed if statuses.len() > 1 => Some("several answers"),
            Self::Swallowed => None,
            Self::Answered if !good => Some("no answer"),
            Self::Answered => None,
            Self::StreamRefused if h2::is_exhausted(&heard.bytes, 1) => None,
            Self::StreamRefused if h2::is_ok(&heard.bytes, 1) => Some("answered with 200"),
            Self::StreamRefused if !heard.closed && !h2::is_over(&heard.bytes, 1) => Some("not answered"),
            Self::StreamRefused => None,
            Self::Ends if needs == Protocol::Http2 && h2::is_closed_with_error(heard) => None,
            _ if !heard.closed => Some("the connection stays open"),
            Self::Ends => None,
            Self::Refused if good => Some("a good answer"),
            Self::Refused | Self::OneAnswer if statuses.len() > 1 => Some("several answers"),
            Self::Refused | Self::OneAnswer => None,
        };
        wrong.map_or(Ok(()), |wrong| Err(format!("{wrong}; heard {request}")))
    }
}
