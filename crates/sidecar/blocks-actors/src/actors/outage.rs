//! Time without a placement leader: which hosts keep their actors, and until when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_transport::conn::{DialErrorKind, SendError};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use super::{Actors, LOG};

/// Pause between searches for a leader during an outage.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit of a search across all replicas.
pub(super) const SEARCH_TIMEOUT: Duration = Duration::from_millis(300);

/// Pause before asking a replica again that closed the connection.
const CLOSED_PAUSE: Duration = Duration::from_millis(20);

/// A lost stream, to be reopened.
pub(super) struct LostStream {
    pub(super) cause: String,
    /// The stream had received an order.
    pub(super) served: bool,
    /// The replica does not lead, or nothing listens at its address.
    pub(super) nobody_leads: bool,
    /// The table of this stream stays valid, and the leader that closed the stream may be gone.
    pub(super) may_outlast: bool,
}

/// A time without a leader, at a host whose table stays valid. While every replica says that it does not
/// lead, or nothing listens at its address, no leader can reassign the actors. A new leader starts with a
/// pause, in which hosts that reach it report. A host that does not reach it has ended its actors by then,
/// because [`SEARCH_INTERVAL`], [`SEARCH_TIMEOUT`] and `REVOKE_TIMEOUT` together are shorter than the pause.
#[derive(Clone, Copy, Default)]
pub(super) struct Outage {
    /// Replicas asked since the last pause.
    pub(super) asked: usize,
    /// All replicas have denied leading: a later leader is a new one.
    pub(super) is_proven: bool,
}

impl Outage {
    /// Another of `all` replicas does not lead.
    fn next(self, all: usize) -> Self {
        let asked = self.asked + 1;
        match asked >= all {
            true => Self {
                asked: 0,
                is_proven: true,
            },
            false => Self { asked, ..self },
        }
    }

    /// Whether all replicas have been asked.
    pub(super) fn is_pausing(self) -> bool {
        self.asked == 0 && self.is_proven
    }
}

/// Asks a replica whether it leads, until it answers or `limit` has passed. A process that is shutting down
/// still accepts connections and closes them, which proves nothing.
pub(super) async fn search<T, F>(limit: Duration, mut open: impl FnMut() -> F) -> Result<T, Unopened>
where
    F: Future<Output = Result<T, Unopened>>,
{
    let mut broken = Unopened::from("no answer".to_owned());
    let looked = timeout(limit, async {
        loop {
            match open().await {
                Err(unopened) if unopened.is_ended && !unopened.nobody_leads => broken = unopened,
                said => return said,
            }
            sleep(CLOSED_PAUSE).await;
        }
    });
    looked.await.unwrap_or(Err(broken))
}

impl Actors {
    /// Handles a lost stream. With handover there may be no leader any longer; otherwise all actors end.
    pub(super) async fn begin_outage(&self, lost: &LostStream) -> Option<Outage> {
        if self.with.handover && lost.may_outlast {
            self.is_connected.store(false, Ordering::Release);
            let _runs_on = self.admission.close();
            return Some(Outage::default());
        }
        self.close().await;
        None
    }

    /// Handles the result of a search for the leader.
    pub(super) async fn after_search(
        &self,
        outage: Outage,
        lost: &LostStream,
        tour: usize,
    ) -> Option<Outage> {
        let next = lost.nobody_leads.then(|| outage.next(tour));
        match &next {
            None => self.close().await,
            Some(next) if next.is_proven && !outage.is_proven => {
                tracing::warn!(target: LOG, "no placement replica is the leader: actors keep their hosts");
                self.admission.reopen();
            }
            Some(_) => {}
        }
        next
    }
}

/// Why a stream could not be opened, or is lost.
pub(super) struct Unopened {
    pub(super) cause: String,
    pub(super) nobody_leads: bool,
    /// The peer or its machine closed the connection, without a timeout or a rejection.
    pub(super) is_ended: bool,
}

impl From<String> for Unopened {
    fn from(cause: String) -> Self {
        Self {
            cause,
            nobody_leads: false,
            is_ended: false,
        }
    }
}

impl From<&Status> for Unopened {
    fn from(status: &Status) -> Self {
        let nobody_leads = status.code() == Code::FailedPrecondition || is_refused(status);
        Self {
            cause: format!("{:?}: {}", status.code(), status.message()),
            nobody_leads,
            is_ended: !matches!(
                status.code(),
                Code::DeadlineExceeded
                    | Code::InvalidArgument
                    | Code::PermissionDenied
                    | Code::Unauthenticated
            ),
        }
    }
}

/// Whether nothing listens at the address.
fn is_refused(status: &Status) -> bool {
    let source = std::error::Error::source(status);
    let Some(SendError::Dial(error)) = source.and_then(|source| source.downcast_ref::<SendError>()) else {
        return false;
    };
    matches!(&error.kind, DialErrorKind::Connect(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    fn unopened(status: &Status) -> Result<(), Unopened> {
        Err(Unopened::from(status))
    }

    #[tokio::test(start_paused = true)]
    async fn asks_stopping_replica_again() {
        let mut asked = 0;
        let looked = search(SEARCH_TIMEOUT, || {
            asked += 1;
            ready(match asked {
                1..5 => unopened(&Status::unavailable("connection reset")),
                _ => unopened(&Status::failed_precondition("not a leader")),
            })
        });
        assert!(looked.await.unwrap_err().nobody_leads);
        assert_eq!(asked, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn reports_unproven_outage_in_time() {
        let began = Instant::now();
        let looked = search(SEARCH_TIMEOUT, || {
            ready(unopened(&Status::unavailable("connection reset")))
        })
        .await;
        let unsure = looked.unwrap_err();
        assert!(!unsure.nobody_leads);
        assert!(unsure.cause.contains("connection reset"), "{}", unsure.cause);
        assert_eq!(began.elapsed(), SEARCH_TIMEOUT);
        let silent = search(SEARCH_TIMEOUT, pending::<Result<(), _>>).await;
        assert!(!silent.unwrap_err().nobody_leads);
        let turned_away = search(SEARCH_TIMEOUT, || {
            ready(unopened(&Status::permission_denied("no")))
        })
        .await;
        assert!(!turned_away.unwrap_err().nobody_leads, "at once");
        assert_eq!(began.elapsed(), 2 * SEARCH_TIMEOUT);
    }
}
