//! Restarts the etcd when the root certificates change that it trusts: it reads them at its start alone, and a member that
//! still has the old ones refuses every other member once their certificates are of the new CA.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_identity::TrustBundle;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LOG, Order, POLL_INTERVAL, Supervised};

/// How the restarts of the members of a cluster are kept apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// A member waits a random part of this before its restart, so that they do not go together. Between the
    /// announcement of a CA and its first certificate there are at least two lifetimes of certificates.
    pub(crate) spread: Duration,
    /// Between two looks at the file, and at members that do not answer.
    pub(crate) look: Duration,
    /// How long members that do not answer are waited for. One that is gone for good must not keep the others from
    /// trusting the new CA.
    pub(crate) give_up_after: Duration,
}

impl Pace {
    /// Of a real cluster.
    pub(crate) const USUAL: Self = Self {
        spread: Duration::from_secs(10 * 60),
        look: Duration::from_secs(30),
        give_up_after: Duration::from_secs(60 * 60),
    };
}

/// Time for another member to accept a connection.
const ANSWER: Duration = Duration::from_secs(3);

/// Watches the certificates that one etcd trusts.
pub(crate) struct Trust {
    pub(super) supervised: Arc<Supervised>,
    /// `host:port` of the other members.
    pub(super) others: Vec<String>,
    pub(super) orders: std::sync::mpsc::Sender<Order>,
}

impl Trust {
    /// Restarts the etcd whenever its file has other certificates than it read, until `stop`. `anchors` tells when to
    /// look; the file is written a little later, and may have been missed: it is looked at now and then too.
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
                    () = sleep(pace.look) => {}
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
            "the root certificates of etcd's members changed, and etcd reads them only at its start: it is \
             restarted in {} seconds",
            delay.as_secs()
        );
        sleep(delay).await;
        let begun = Instant::now();
        while let Some(silent) = self.silent().await {
            if begun.elapsed() >= pace.give_up_after {
                tracing::warn!(
                    target: LOG,
                    "etcd's member at {silent} still does not answer: etcd is restarted all the same, to trust the new root \
                     certificates"
                );
                break;
            }
            tracing::info!(target: LOG, "etcd's member at {silent} does not answer: etcd is restarted when it does");
            sleep(pace.look).await;
        }
        // It may have ended meanwhile, and read them as it was started again.
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
            sleep(pace.look.min(POLL_INTERVAL)).await;
        }
    }

    /// A member that accepts no connection.
    async fn silent(&self) -> Option<&str> {
        for other in &self.others {
            if !matches!(timeout(ANSWER, TcpStream::connect(other)).await, Ok(Ok(_))) {
                return Some(other);
            }
        }
        None
    }
}

/// `host:port` of the members in `id=url,...` but `own`, each once.
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
