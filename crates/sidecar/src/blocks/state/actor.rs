//! The store as that of actors: whole keys, and values as they are.

use outrigger_component::Pairs;
use outrigger_component::state::{Consistency, Feature, Get, Item, Operation as Step, Transaction};

use super::Store;
use crate::blocks::outbound::Cause;

impl Store {
    /// What the component can do.
    pub fn features(&self) -> &[Feature] {
        self.component.features()
    }

    /// A value by its whole key; nothing is decrypted.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn get_whole(
        &self,
        key: String,
        consistency: Consistency,
        metadata: Pairs,
    ) -> Result<Option<Item>, Cause> {
        let request = &Get {
            key,
            consistency,
            metadata,
        };
        let attempt = || self.component.get(request);
        self.outbound.run(&self.operations.get, attempt).await
    }

    /// All steps or none, by whole keys; nothing is encrypted.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn transact_whole(&self, operations: Vec<Step>, metadata: Pairs) -> Result<(), Cause> {
        if operations.is_empty() {
            return Ok(());
        }
        if let Some(most) = self.component.max_operations().await
            && operations.len() > most
        {
            return Err(Cause::Own(
                "the transaction contains more operations than supported by the state store".to_owned(),
            ));
        }
        let transaction = &Transaction { operations, metadata };
        let attempt = || self.component.transact(transaction);
        self.outbound.run(&self.operations.transaction, attempt).await
    }
}
