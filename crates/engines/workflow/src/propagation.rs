//! Histories that workflows pass on to their activities and children. A chunk is the history of one workflow;
//! its events are passed on as they are stored, so that signatures over them stay valid.

use bytes::Bytes;
use outrigger_identity::{SignatureError, Svid};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    HistoryEvent, HistoryPropagationScope as Scope, PropagatedHistory, PropagatedHistoryChunk,
};
use prost::Message as _;

use crate::facts::Facts;
use crate::history::History;
use crate::instance::Instance;
use crate::names::PROPAGATED_HISTORY;
use crate::signing::sign_chunk;
use crate::step::{Outcome, Step};
use crate::stored::Change;

/// The history that an instance can pass on with each task that it starts.
pub struct Propagation<'a> {
    /// The app and the id of the instance.
    app: &'a str,
    instance: &'a str,
    facts: &'a Facts,
    /// The events that were stored before are the first `len` of these.
    past: &'a History,
    len: usize,
    /// Events of the present step.
    fresh: &'a [HistoryEvent],
    /// The history that the instance has received.
    received: Option<&'a Bytes>,
}

/// How much history a scheduling event passes on.
#[must_use]
pub fn scope(scheduled: &HistoryEvent) -> Scope {
    let scope = match &scheduled.event_type {
        Some(EventType::TaskScheduled(task)) => task.history_propagation_scope,
        Some(EventType::ChildWorkflowInstanceCreated(child)) => child.history_propagation_scope,
        _ => None,
    };
    read_scope(scope.unwrap_or_default())
}

/// A scope unknown here passes nothing on.
fn read_scope(scope: i32) -> Scope {
    Scope::try_from(scope).unwrap_or_default()
}

impl Propagation<'_> {
    /// The history for task `id`: events up to its own scheduling; `None` if its scope is empty.
    #[must_use]
    pub fn of(&self, id: i32, scope: Scope) -> Option<PropagatedHistory> {
        if scope == Scope::None {
            return None;
        }
        let is_own = |event: &HistoryEvent| event.event_id == id && self::scope(event) == scope;
        let until = self.fresh.iter().position(is_own);
        self.with_events(scope, until.map_or(self.fresh, |until| &self.fresh[..=until]))
    }

    /// The history for the next execution, if this one has received one.
    fn onward(&self) -> Option<Bytes> {
        let received = self.received?;
        let scope = read_scope(decoded(received).scope);
        match self.with_events(scope, self.fresh) {
            Some(next) => Some(next.encode_to_vec().into()),
            None => Some(received.clone()),
        }
    }

    fn with_events(&self, scope: Scope, fresh: &[HistoryEvent]) -> Option<PropagatedHistory> {
        let mut chunks = match scope {
            Scope::None => return None,
            Scope::OwnHistory => Vec::new(),
            Scope::Lineage => self.received.map(decoded).unwrap_or_default().chunks,
        };
        let started = self.facts.started.as_deref();
        let fresh = fresh.iter().map(|event| event.encode_to_vec().into());
        chunks.push(PropagatedHistoryChunk {
            raw_events: self.past.iter().take(self.len).chain(fresh).collect(),
            app_id: self.app.to_owned(),
            instance_id: self.instance.to_owned(),
            workflow_name: started
                .map(|started| started.event.name.clone())
                .unwrap_or_default(),
            ..PropagatedHistoryChunk::default()
        });
        let scope = scope.into();
        Some(PropagatedHistory { scope, chunks })
    }
}

/// A received history was decoded when it came.
fn decoded(received: &Bytes) -> PropagatedHistory {
    PropagatedHistory::decode(received.clone()).unwrap_or_default()
}

impl Instance {
    /// The received history; `None` if there is none.
    pub(crate) fn decoded_received(&self) -> Option<PropagatedHistory> {
        self.received.as_ref().map(decoded)
    }

    /// Keeps the certificates of the apps that signed the received history.
    pub fn keep_signers(&mut self, signers: impl IntoIterator<Item = Bytes>) {
        let signers = signers.into_iter();
        signers.for_each(|chain| self.signing.add_external(chain));
    }

    /// Signs what the execution before has passed on to this one, which a change stores.
    pub(crate) fn sign_received(&mut self, change: &mut Change, svid: &Svid) -> Result<(), SignatureError> {
        let stored = change
            .upserts
            .iter_mut()
            .find(|(key, _)| key == PROPAGATED_HISTORY);
        let Some((_, stored)) = stored else { return Ok(()) };
        let mut history = decoded(stored);
        for chunk in &mut history.chunks {
            if chunk.raw_signatures.is_empty() && chunk.app_id == svid.id().app_id() {
                sign_chunk(svid, chunk)?;
            }
        }
        *stored = history.encode_to_vec().into();
        self.received = Some(stored.clone());
        Ok(())
    }

    /// The encoded history that the instance has received.
    #[must_use]
    pub fn received(&self) -> Option<&Bytes> {
        self.received.as_ref()
    }

    /// The history for tasks among the first `len` events. `app` hosts the instance.
    #[must_use]
    pub fn propagation<'a>(&'a self, app: &'a str, len: usize) -> Propagation<'a> {
        Propagation {
            app,
            instance: &self.id,
            facts: &self.facts,
            past: &self.history,
            len,
            fresh: &[],
            received: self.received.as_ref(),
        }
    }
}

impl Step {
    /// The histories that the step sends.
    pub(crate) fn propagation<'a>(&'a self, instance: &'a Instance) -> Propagation<'a> {
        let len = if self.is_restart() {
            0
        } else {
            instance.history.len()
        };
        Propagation {
            app: &self.app,
            instance: &self.id,
            facts: &self.facts,
            past: &instance.history,
            len,
            fresh: &self.fresh,
            received: self.received.as_ref(),
        }
    }

    /// The history for the execution after this step.
    pub(crate) fn received_by_next(&self, instance: &Instance) -> Option<Bytes> {
        self.received.as_ref()?;
        self.propagation(instance).onward()
    }
}

impl Outcome {
    /// The histories that the step sends with its tasks. `instance` has not committed it yet; `app` hosts it.
    #[must_use]
    pub fn propagation<'a>(&'a self, app: &'a str, instance: &'a Instance) -> Propagation<'a> {
        let (len, received) = match self.restarted {
            true => (0, &self.received),
            false => (instance.history.len(), &instance.received),
        };
        Propagation {
            app,
            instance: &instance.id,
            facts: &self.facts,
            past: &instance.history,
            len,
            fresh: &self.fresh,
            received: received.as_ref(),
        }
    }
}
