//! Restarts etcd when the trusted root certificates change. etcd reads them only at its start. A member with
//! the old roots would refuse all peers once their certificates come from the new CA.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_identity::TrustBundle;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LOG, Order, POLL_INTERVAL, Supervised};

/// Timing of the restarts of the members of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Each member waits a random part of this before its restart, so that members do not restart together. A
    /// new CA is announced at least two certificate lifetimes before it issues its first certificate.
    pub(crate) spread: Duration,
    /// Interval of checks of the file, and of members that do not answer.
    pub(crate) poll: Duration,
    /// How long to wait for members that do not answer. A lost member must not stop the others from trusting
    /// the new CA.
    pub(crate) give_up_after: Duration,
}

impl Pace {
    /// Values for production.
    pub(crate) const USUAL: Self = Self {
        spread: Duration::from_secs(10 * 60),
        poll: Duration::from_secs(30),
        give_up_after: Duration::from_secs(60 * 60),
    };
}

/// Timeout for connections to other members.
const ANSWER: Duration = Duration::from_secs(3);

/// Watches the certificates that one etcd trusts.
pub(crate) struct Trust {
    pub(super) supervised: Arc<Supervised>,
    /// `host:port` of the other members.
    pub(super) others: Vec<String>,
    pub(super) orders: std::sync::mpsc::Sender<Order>,
}

impl Trust {
    /// Restarts etcd whenever its file has changed, until `stop`. `anchors` signals a change; the file is
    /// written slightly later and a signal may be missed, so the file is also polled.
    pub(crate) async fn follow(
        self,
        mut anchors: watch::Receiver<Arc<TrustBundle>>,
        pace: Pace,
        stop: CancellationToken,
    ) {
        let follow = async {
            loop {
                tokio::select! {
                    Ok(()) = anchors.changed() => {}
                    () = sleep(pace.poll) => {}
                }
                if self.supervised.is_outdated() {
                    self.restart(pace).await;
                }
            }
        };
        stop.run_until_cancelled(follow).await;
    }

    async fn restart(&self, pace: Pace) {
        let delay = pace.spread.mul_f64(rand::random_range(0.0..1.0));
        tracing::info!(
            target: LOG,
            "the root certificates of etcd's members changed: restarting etcd in {} seconds, because it reads them \
             only at start",
            delay.as_secs()
        );
        sleep(delay).await;
        let begun = Instant::now();
        while let Some(silent_member) = self.silent_member().await {
            if begun.elapsed() >= pace.give_up_after {
                tracing::warn!(
                    target: LOG,
                    "etcd's member at {silent_member} still does not answer: restarting etcd anyway, to trust the new root \
                     certificates"
                );
                break;
            }
            tracing::info!(
                target: LOG,
                "etcd's member at {silent_member} does not answer: delaying the restart of etcd until it does"
            );
            sleep(pace.poll).await;
        }
        // etcd may have exited and read the file when the supervisor restarted it.
        if !self.supervised.is_outdated() {
            return;
        }
        tracing::info!(target: LOG, "restarting etcd, to trust the root certificates that changed");
        let starts = self.supervised.starts();
        if self.orders.send(Order::Restart).is_err() {
            return;
        }
        // A supervisor that has given up ends the scheduler.
        while self.supervised.starts() == starts {
            sleep(pace.poll.min(POLL_INTERVAL)).await;
        }
    }

    /// The first member that accepts no connection.
    async fn silent_member(&self) -> Option<&str> {
        for other in &self.others {
            if !matches!(timeout(ANSWER, TcpStream::connect(other)).await, Ok(Ok(_))) {
                return Some(other);
            }
        }
        None
    }
}

/// `host:port` of the members in `id=url,...` except `own`, without duplicates.
pub(super) fn others(members: &str, own: &str) -> Vec<String> {
    let addresses = members.split(',').filter_map(|member| {
        let (id, url) = member.split_once('=')?;
        let (_, rest) = url.split_once("://")?;
        let authority = rest.split('/').next()?;
        (id != own).then(|| authority.to_owned())
    });
    addresses.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests;
