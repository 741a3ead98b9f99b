//! State transactions, with or without an outbox.

use outrigger_component::state::{Feature, Operation as Step, Transaction};
use outrigger_component::{Kind, Pairs};
use outrigger_telemetry::trace::Parent;

use super::outbox::{Outbox, Prepared};
use super::{StateError, Store};
use crate::outbound::Cause;

/// The operation types of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Writes a value.
    Upsert,
    /// Deletes a value.
    Delete,
}

impl StepKind {
    /// Parses the operation type.
    ///
    /// # Errors
    /// [`StateError::UnknownOperation`].
    pub fn named(name: &str) -> Result<Self, StateError> {
        match name {
            "upsert" => Ok(Self::Upsert),
            "delete" => Ok(Self::Delete),
            _ => Err(StateError::UnknownOperation(name.to_owned())),
        }
    }
}

impl Store {
    /// Whether the store supports transactions; checked before the body is parsed.
    ///
    /// # Errors
    /// [`StateError::NoTransactions`].
    pub fn check_transactional(&self) -> Result<(), StateError> {
        if self.component.features().contains(&Feature::Transactional) {
            return Ok(());
        }
        Err(StateError::NoTransactions {
            store: self.name.clone(),
        })
    }

    /// Executes all operations or none, by the app's keys. An empty list does not call the store. With an
    /// outbox, the writes are published; `trace`: the span of the request.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn transact(
        &self,
        mut operations: Vec<Step>,
        metadata: Pairs,
        trace: &Parent,
    ) -> Result<(), StateError> {
        self.check_transactional()?;
        if operations.is_empty() {
            return Ok(());
        }
        for operation in &mut operations {
            match operation {
                Step::Set(set) => set.key = self.stored(&set.key)?,
                Step::Delete(delete) => delete.key = self.stored(&delete.key)?,
            }
        }
        self.check_count(operations.len()).await?;
        let value = |operation: &Step| match operation {
            Step::Set(set) => set.value.size(),
            Step::Delete(_) => 0,
        };
        let size = operations.iter().map(value).sum();
        if self.prepares(size) {
            let values = operations.iter_mut().filter_map(|operation| match operation {
                Step::Set(set) => Some(&mut set.value),
                Step::Delete(_) => None,
            });
            let values = values.collect();
            self.prepare(values, size)
                .await
                .map_err(StateError::Transaction)?;
        }
        let done = match &self.outbox {
            None => self.execute(operations, metadata).await,
            Some(outbox) => {
                let prepared = outbox.prepare(operations, size, trace).await;
                return self.publish_and_execute(outbox, prepared, metadata).await;
            }
        };
        done.map_err(StateError::Transaction)
    }

    async fn check_count(&self, count: usize) -> Result<(), StateError> {
        match self.component.max_operations().await {
            Some(most) if count > most => Err(StateError::TooManyOperations {
                store: self.name.clone(),
                count,
                most,
            }),
            _ => Ok(()),
        }
    }

    async fn execute(&self, operations: Vec<Step>, metadata: Pairs) -> Result<(), Cause> {
        let transaction = &Transaction { operations, metadata };
        let component = &self.component;
        let attempt = || component.transact(transaction);
        self.outbound.run(&self.operations.transaction, attempt).await
    }

    /// Publishes first: an event without a transaction is detected, a transaction without its event is not.
    async fn publish_and_execute(
        &self,
        outbox: &Outbox,
        prepared: Prepared,
        metadata: Pairs,
    ) -> Result<(), StateError> {
        let Prepared { operations, events } = prepared;
        if operations.is_empty() {
            return Ok(());
        }
        self.check_count(operations.len()).await?;
        if outbox.is_in_doubt()
            && let Some(event) = events.first()
        {
            let reached = self.has_marker(&event.id).await;
            reached.map_err(StateError::Transaction)?;
        }
        let running = outbox.begin(&events);
        if let Err(cause) = outbox.publish(events).await {
            running.failed();
            return Err(StateError::Outbox {
                app_id: outbox.app_id().to_owned(),
                cause,
            });
        }
        // The transaction may have committed even if this attempt failed or the caller is cancelled.
        let outcome = outbox.begin_unresolved();
        let done = self.execute(operations, metadata).await;
        match &done {
            Ok(()) => outcome.resolved(),
            Err(Cause::Component(error)) if error.is_etag() || error.kind() == Kind::InvalidRequest => {
                outcome.resolved();
                running.failed();
            }
            Err(_) => {}
        }
        done.map_err(StateError::Transaction)
    }
}
