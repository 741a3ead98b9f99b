//! Signatures of this app's histories and results, and their verification.

use std::sync::Arc;
use std::time::Instant;

use outrigger_identity::Svid;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_workflow::signing::attestation::{attest, kind, scheduled_input};
use outrigger_workflow::signing::{HistoryError, Trust, TrustedChains};
use outrigger_workflow::{Additions, Arrival, Instance, Outcome};
use tonic::Status;

use super::engine::Engine;
use super::error::{retry_later, unusable};
use super::instance::state::Held;
use super::instance::store::Loaded;
use super::protocol::{LOG, now};

impl Engine {
    /// Whether this sidecar signs histories.
    pub(crate) fn signs(&self) -> bool {
        self.signer.is_some()
    }

    /// The identity that signs; `None` if histories are not signed.
    pub(crate) fn svid(&self) -> Option<Arc<Svid>> {
        self.signer.as_ref().map(|identity| identity.svid())
    }

    /// What verification relies on; `None` if histories are not signed.
    pub(crate) fn trust(&self) -> Option<Trust<'_>> {
        let identity = self.signer.as_ref()?;
        Some(Trust {
            anchors: identity.anchors(),
            namespace: &self.namespace,
            app_id: &self.app_id,
        })
    }

    /// Verifies a stored instance.
    pub(crate) fn verify(
        &self,
        instance: &Instance,
        trusted: &mut TrustedChains,
    ) -> Result<(), HistoryError> {
        instance.verify(self.trust(), trusted)
    }

    /// Adds events; results must be attested if this sidecar signs.
    pub(crate) fn add_to(&self, loaded: &mut Loaded, events: Vec<Arrival>) -> Additions {
        let Some(trust) = self.trust() else {
            return loaded.instance.add(events, self.limit);
        };
        let Loaded {
            instance, trusted, ..
        } = loaded;
        instance.add_verified(events, self.limit, &mut |instance, event, waited| {
            let began = Instant::now();
            let verified = instance.verify_result(event, trust, trusted, (!waited).then(|| now().seconds));
            if let Some(kind) = kind(event) {
                let was_known = verified.as_ref().ok().map(|attested| attested.was_known);
                self.metrics
                    .attestation_verified(kind, was_known, began.elapsed());
            }
            verified
        })
    }

    /// Attaches an attestation to the result of an activity or child of the instance `parent`, if this sidecar
    /// signs.
    pub(crate) fn attest(
        &self,
        parent: &str,
        activity: &str,
        input: Option<&str>,
        event: &mut HistoryEvent,
    ) -> Result<(), Status> {
        let (Some(svid), Some(kind)) = (self.svid(), kind(event)) else {
            return Ok(());
        };
        let attested = attest(&svid, parent, activity, input, event);
        self.metrics.attestation_generated(kind, attested.is_ok());
        attested.map_err(|error| {
            retry_later(format!(
                "failed to attest a result for workflow '{parent}': {error}"
            ))
        })
    }

    /// Attests the results that a step sends to the parent.
    pub(crate) fn attest_results(&self, outcome: &mut Outcome) -> Result<(), Status> {
        if !self.signs()
            || outcome
                .messages
                .iter()
                .all(|message| kind(&message.event).is_none())
        {
            return Ok(());
        }
        let started = outcome.facts().started.clone();
        let input = started
            .as_ref()
            .and_then(|started| scheduled_input(&started.event));
        for message in &mut outcome.messages {
            self.attest(&message.target, "", input, &mut message.event)?;
        }
        Ok(())
    }
}

impl Held<'_> {
    /// Verifies an instance read from the store. One that was tampered with has ended from now on.
    pub(crate) async fn verified(&mut self, mut loaded: Loaded) -> Result<Loaded, Status> {
        match self.all.engine.verify(&loaded.instance, &mut loaded.trusted) {
            Ok(()) => Ok(loaded),
            Err(HistoryError::Tampered(cause)) if !loaded.instance.is_completed() => {
                Box::pin(self.tombstone(loaded, &cause)).await
            }
            Err(error) => Err(unusable(error)),
        }
    }

    /// A result was rejected: ends the instance as it is stored, and adds the events to that.
    pub(crate) async fn reject(&mut self, cause: &str, events: Vec<Arrival>) -> Result<Additions, Status> {
        let Some(mut loaded) = self.take().await? else {
            return Err(unusable(cause));
        };
        if !loaded.instance.is_completed() {
            loaded = Box::pin(self.tombstone(loaded, cause)).await?;
        }
        let additions = loaded.instance.add(events, self.all.engine.limit);
        self.keep(loaded);
        Ok(additions)
    }

    async fn tombstone(&mut self, mut loaded: Loaded, cause: &str) -> Result<Loaded, Status> {
        let (id, engine) = (self.id, Arc::clone(&self.all.engine));
        tracing::error!(target: LOG, "workflow '{id}' was tampered with and has failed: {cause}");
        let change = loaded.instance.tombstone(cause, now());
        engine.save(&mut loaded, change).await?;
        self.entry.awaited.clear();
        self.all.watchers.publish(id, || loaded.instance.metadata());
        let forgotten = engine
            .forget_instance(id, loaded.instance.activities(), false)
            .await;
        if let Err(error) = forgotten {
            tracing::warn!(target: LOG, "workflow '{id}': its reminders were not deleted: {error}");
        }
        Ok(loaded)
    }
}
