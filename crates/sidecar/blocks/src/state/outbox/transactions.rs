//! The transactions of this sidecar, for relays that wait for markers: which are in flight and which have
//! failed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Events of failed transactions that are remembered.
const MAX_FAILED: usize = 4096;

/// Transactions by marker name.
#[derive(Default)]
pub(in super::super) struct Transactions(Mutex<InFlight>);

#[derive(Default)]
struct InFlight {
    /// Cancelled when the transaction has ended.
    running: HashMap<String, CancellationToken>,
    failed: VecDeque<String>,
}

impl Transactions {
    fn known(&self) -> MutexGuard<'_, InFlight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a transaction.
    pub(super) fn begin(self: &Arc<Self>, markers: Vec<String>) -> Running {
        let ended = CancellationToken::new();
        let running = markers.iter().map(|marker| (marker.clone(), ended.clone()));
        self.known().running.extend(running);
        Running {
            transactions: Arc::clone(self),
            markers,
            ended,
        }
    }

    /// A token that is cancelled when the transaction of a marker ends; `None` if it is not in flight in this
    /// sidecar.
    pub(super) fn running(&self, marker: &str) -> Option<CancellationToken> {
        self.known().running.get(marker).cloned()
    }

    /// Whether the transaction of a marker is known to have failed.
    pub(super) fn has_failed(&self, marker: &str) -> bool {
        self.known().failed.iter().any(|failed| failed == marker)
    }
}

/// A transaction in flight. Dropping it ends the transaction with an unknown outcome.
pub(in super::super) struct Running {
    transactions: Arc<Transactions>,
    markers: Vec<String>,
    ended: CancellationToken,
}

impl Running {
    /// The transaction failed without any effect.
    pub(in super::super) fn failed(self) {
        let mut known = self.transactions.known();
        known.failed.extend(self.markers.iter().cloned());
        let surplus = known.failed.len().saturating_sub(MAX_FAILED);
        known.failed.drain(..surplus);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut known = self.transactions.known();
        for marker in &self.markers {
            known.running.remove(marker);
        }
        drop(known);
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_recent_failures() {
        let transactions = Arc::new(Transactions::default());
        let running = transactions.begin(vec!["a".to_owned(), "b".to_owned()]);
        let ended = transactions.running("b").unwrap();
        assert!(transactions.running("c").is_none() && !ended.is_cancelled());
        drop(running);
        assert!(ended.is_cancelled() && transactions.running("a").is_none());
        assert!(!transactions.has_failed("a"), "it may have been committed");
        for number in 0..=MAX_FAILED {
            transactions.begin(vec![number.to_string()]).failed();
        }
        assert!(!transactions.has_failed("0") && transactions.has_failed("1"));
        assert!(transactions.known().running.is_empty());
    }
}
