//! The time for which this replica leads: what it knows of hosts begins and ends with it.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::namespaces::{Namespaces, Rules};

/// The term, while this replica leads.
pub(crate) type Terms = watch::Receiver<Option<Arc<Term>>>;

/// One term of leadership.
#[derive(Debug)]
pub(crate) struct Term {
    /// Who hosts what.
    pub(crate) namespaces: Arc<Namespaces>,
    /// Cancelled when another leads, or may lead.
    pub(crate) ended: CancellationToken,
}

/// Begins a term whenever this replica is elected, and ends it as soon as it is not.
pub(crate) struct Keeper {
    pub(crate) id: Arc<str>,
    pub(crate) rules: Rules,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) terms: watch::Sender<Option<Arc<Term>>>,
}

impl Keeper {
    /// Follows the election until `stop`.
    pub(crate) async fn run(self, mut elected: watch::Receiver<bool>, stop: CancellationToken) {
        loop {
            let leads = *elected.borrow_and_update();
            if leads != self.terms.borrow().is_some() {
                self.turn(leads);
            }
            self.metrics.leads(leads);
            match stop.run_until_cancelled(elected.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => break,
            }
        }
        self.turn(false);
        self.metrics.leads(false);
    }

    fn turn(&self, leads: bool) {
        let term = leads.then(|| {
            tracing::info!(target: "dapr.placement", "Replica {} is the leader", self.id);
            Arc::new(Term {
                namespaces: Arc::new(Namespaces::new(self.rules, Arc::clone(&self.metrics))),
                ended: CancellationToken::new(),
            })
        });
        if let Some(before) = self.terms.send_replace(term) {
            before.ended.cancel();
            if !leads {
                tracing::info!(target: "dapr.placement", "Replica {} is no longer the leader", self.id);
            }
        }
    }
}
