//! Queue of due calls, shared by the connections of a load, and their record.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::record::Record;

pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes connections in the order in which they became idle.
    idle: Notify,
}

struct State {
    due: VecDeque<Instant>,
    closed: bool,
    record: Record,
}

impl Queue {
    pub(super) fn new(record: Record) -> Self {
        Self {
            state: Mutex::new(State {
                due: VecDeque::new(),
                closed: false,
                record,
            }),
            idle: Notify::new(),
        }
    }

    pub(super) fn push(&self, due: Instant) {
        self.state().due.push_back(due);
        self.idle.notify_one();
    }

    /// Ends the queue.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.idle.notify_waiters();
    }

    /// Waits for the next due call; `None` at the end.
    pub(super) async fn next(&self) -> Option<Instant> {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            // From here on `close` reaches this connection, whatever the order.
            notified.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(due) = state.due.pop_front() {
                    return Some(due);
                }
                if state.closed {
                    return None;
                }
            }
            notified.await;
        }
    }

    pub(super) fn record(&self, write: impl FnOnce(&mut Record)) {
        write(&mut self.state().record);
    }

    /// Takes the record so far.
    pub(super) fn take_record(&self) -> Record {
        std::mem::replace(&mut self.state().record, Record::new())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent, so poisoning is harmless.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
