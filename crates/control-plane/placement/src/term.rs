//! Terms of leadership: all knowledge about hosts starts and ends with a term.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dissemination::Rules;
use crate::election::Leads;
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;

/// The current term, while this replica leads.
pub(crate) type Terms = watch::Receiver<Option<Arc<Term>>>;

#[derive(Debug)]
pub(crate) struct Term {
    /// The namespaces of the term.
    pub(crate) namespaces: Arc<Namespaces>,
    /// Cancelled when another replica leads or may lead.
    pub(crate) ended: CancellationToken,
}

/// Starts a term when this replica is elected and ends it when it steps down.
pub(crate) struct TermRunner {
    pub(crate) id: Arc<str>,
    pub(crate) rules: Rules,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) terms: watch::Sender<Option<Arc<Term>>>,
    /// Tasks of all terms.
    pub(crate) tasks: TaskTracker,
}

impl TermRunner {
    /// Follows the election until `stop`; returns after all streams and namespaces have ended.
    pub(crate) async fn run(self, mut elected: watch::Receiver<Leads>, stop: CancellationToken) {
        loop {
            let leads = *elected.borrow_and_update();
            if (leads != Leads::No) != self.terms.borrow().is_some() {
                self.turn(leads);
            }
            self.metrics.leads(leads != Leads::No);
            match stop.run_until_cancelled(elected.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => break,
            }
        }
        self.turn(Leads::No);
        self.metrics.leads(false);
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn turn(&self, leads: Leads) {
        let term = (leads != Leads::No).then(|| {
            tracing::info!(target: "dapr.placement", "replica {} is the leader", self.id);
            let (metrics, follows) = (Arc::clone(&self.metrics), leads == Leads::Next);
            let tasks = self.tasks.clone();
            Arc::new(Term {
                namespaces: Arc::new(Namespaces::new(self.rules, metrics, follows, tasks)),
                ended: CancellationToken::new(),
            })
        });
        if let Some(before) = self.terms.send_replace(term) {
            before.ended.cancel();
            if leads == Leads::No {
                tracing::info!(target: "dapr.placement", "replica {} is no longer the leader", self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_wire::placement::v1::Host;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::dissemination::SETTLE;
    use crate::namespaces::{MAX_ORDERS, Membership};

    fn keeper(handover: bool) -> (TermRunner, Terms) {
        let (sender, terms) = watch::channel(None);
        let keeper = TermRunner {
            id: "a".into(),
            rules: Rules {
                timeout: Duration::from_secs(8),
                window: Duration::ZERO,
                replication_factor: 100,
                handover,
            },
            metrics: Arc::default(),
            terms: sender,
            tasks: TaskTracker::new(),
        };
        (keeper, terms)
    }

    /// The first host joins and gets its first order.
    async fn join(terms: &mut Terms) -> Membership {
        let term = terms.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        let host = Host {
            name: "h1:1".to_owned(),
            entities: vec!["t".to_owned()],
            ..Host::default()
        };
        let (orders, mut received) = mpsc::channel(MAX_ORDERS);
        let membership = term.namespaces.join(Arc::new(host), orders).unwrap();
        received.recv().await.unwrap().unwrap();
        membership
    }

    /// Invariant: a leader that follows another starts no dissemination until hosts known only to the other
    /// have stopped their actors.
    #[tokio::test(start_paused = true)]
    async fn successor_waits_before_first_dissemination() {
        for (handover, leads, expected) in [
            (false, Leads::First, Duration::ZERO),
            (false, Leads::Next, SETTLE),
            (true, Leads::First, SETTLE),
            (true, Leads::Next, SETTLE),
        ] {
            let (keeper, mut terms) = keeper(handover);
            let (elected, leading) = watch::channel(Leads::No);
            let stop = CancellationToken::new();
            let kept = tokio::spawn(keeper.run(leading, stop.clone()));
            elected.send_replace(leads);
            terms.wait_for(Option::is_some).await.unwrap();
            let began = Instant::now();
            let membership = join(&mut terms).await;
            assert_eq!(began.elapsed(), expected, "{handover} {leads:?}");
            drop(membership);
            stop.cancel();
            kept.await.unwrap();
        }
    }

    /// Invariant: the process ends after the tasks that serve streams.
    #[tokio::test(start_paused = true)]
    async fn term_end_waits_for_open_streams() {
        let (keeper, mut terms) = keeper(false);
        let (_elected, leading) = watch::channel(Leads::First);
        let stop = CancellationToken::new();
        let mut kept = tokio::spawn(keeper.run(leading, stop.clone()));
        let membership = join(&mut terms).await;
        stop.cancel();
        let early = tokio::time::timeout(Duration::from_secs(1), &mut kept).await;
        assert!(early.is_err(), "a stream is open");
        drop(membership);
        kept.await.unwrap();
    }
}
