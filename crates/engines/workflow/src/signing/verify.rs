//! Verification of a stored instance, and the end of one that was tampered with.

use bytes::Bytes;
use outrigger_identity::{SignatureError, Svid};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionCompletedEvent, HistoryEvent, OrchestrationStatus, TaskFailureDetails,
};
use prost::Message as _;
use prost_types::Timestamp;

use super::attestation::{self, AttestationError, Attested, Moment, Scheduled};
use super::chain::Chain;
use super::propagated::verify_propagated;
use super::{Owner, Trust, TrustedChains};
use crate::event::{NO_ID, ends, event};
use crate::instance::Instance;
use crate::stored::Change;

/// Error type of an instance whose state was tampered with.
pub const TAMPERED: &str = "DAPR_WORKFLOW_HISTORY_TAMPERED";

/// Why a stored instance is not continued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// It is signed, and this sidecar does not sign. Its id.
    #[error(
        "workflow '{0}' has signed history but no signer is configured: signing cannot be disabled for workflows that \
         were created with signing enabled; enable the feature WorkflowHistorySigning, or purge the workflow by force"
    )]
    NoSigner(String),
    /// It is not signed, and this sidecar signs.
    #[error(
        "workflow '{id}' has {events} unsigned history events but signing is enabled: signing cannot be enabled for \
         workflows that were created without signing; disable the feature WorkflowHistorySigning until they have ended, \
         or purge the workflow by force"
    )]
    Unsigned {
        /// Id of the instance.
        id: String,
        /// Number of events.
        events: usize,
    },
    /// No trust anchor vouches for a signer: its root was removed, or is not there yet.
    #[error(
        "{0}: the workflow is not continued until the trust anchors include the root of its signer; restore that root, \
         or purge the workflow by force"
    )]
    Untrusted(String),
    /// Its state is not what was signed: the cause.
    #[error("{0}")]
    Tampered(String),
}

impl HistoryError {
    /// A missing trust anchor is no tampering.
    fn or_untrusted(self, is_untrusted: bool) -> Self {
        match self {
            Self::Tampered(cause) if is_untrusted => Self::Untrusted(cause),
            error => error,
        }
    }
}

impl Instance {
    /// Checks that the signatures vouch for the history and the received one, and attestations for the results in
    /// the inbox. Without `trust` it must not be signed. An instance that ended because of tampering passes.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn verify(&self, trust: Option<Trust<'_>>, trusted: &mut TrustedChains) -> Result<(), HistoryError> {
        if self.is_tombstone() {
            return Ok(());
        }
        let (flaw, events) = (self.signing.flaw(), self.history.len());
        let is_signed = self.signing.counts().is_signed() || self.stored().flaw.is_some();
        match trust {
            None if is_signed => Err(HistoryError::NoSigner(self.id.clone())),
            None => Ok(()),
            Some(_) if !is_signed && flaw.is_none() && events > 0 => Err(HistoryError::Unsigned {
                id: self.id.clone(),
                events,
            }),
            Some(trust) => {
                self.verify_history(trust)?;
                match self.is_completed() {
                    true => Ok(()),
                    false => {
                        self.verify_inbox(trust, trusted)?;
                        self.verify_received(trust)
                    }
                }
            }
        }
    }

    fn verify_history(&self, trust: Trust<'_>) -> Result<(), HistoryError> {
        let failed = |why: &dyn std::fmt::Display| {
            let id = &self.id;
            HistoryError::Tampered(format!(
                "workflow history signature verification failed for '{id}': {why}"
            ))
        };
        if let Some((rows, length)) = self.stored().flaw {
            return Err(failed(&format!(
                "the metadata declare {length} {rows}, which exceeds the maximum"
            )));
        }
        if let Some(flaw) = self.signing.flaw() {
            return Err(failed(&flaw));
        }
        let events: Vec<Bytes> = self.history.iter().collect();
        let chain = Chain {
            signatures: self.signing.signatures(),
            certificates: &self.signing.chains(),
            events: &events,
            context: None,
        };
        let owner = Owner {
            namespace: trust.namespace,
            app_id: trust.app_id,
        };
        chain
            .verify(owner, trust.anchors)
            .map_err(|error| failed(&error).or_untrusted(error.is_untrusted()))?;
        // Signatures do not name the instance, its start does.
        let started = self
            .start_event()
            .and_then(|started| started.workflow_instance.as_ref());
        match started.map(|instance| instance.instance_id.as_str()) {
            Some(id) if !id.is_empty() && id != self.id => {
                Err(failed(&format!("it is the history of '{id}'")))
            }
            _ => Ok(()),
        }
    }

    /// Inbox entries are not signed; results have attestations, and other kinds of events prove nothing.
    fn verify_inbox(&self, trust: Trust<'_>, trusted: &mut TrustedChains) -> Result<(), HistoryError> {
        let unfit = |why: &dyn std::fmt::Display| {
            let id = &self.id;
            HistoryError::Tampered(format!(
                "workflow '{id}': its inbox has an event that does not match the signed history (state store tampering): \
                 {why}"
            ))
        };
        for event in &self.inbox {
            match &event.event_type {
                Some(
                    EventType::EventRaised(_)
                    | EventType::TimerFired(_)
                    | EventType::ExecutionStarted(_)
                    | EventType::ExecutionTerminated(_)
                    | EventType::ExecutionSuspended(_)
                    | EventType::ExecutionResumed(_),
                ) => {}
                _ if attestation::kind(event).is_some() => {
                    let digest = attestation::signer_digest(event);
                    let chain = digest.and_then(|digest| self.signing.external(&digest));
                    self.attested(event, chain, trust, trusted, made(event))
                        .map_err(|error| unfit(&error).or_untrusted(error.is_untrusted()))?;
                }
                _ => return Err(unfit(&"its kind of event is never delivered")),
            }
        }
        Ok(())
    }

    fn verify_received(&self, trust: Trust<'_>) -> Result<(), HistoryError> {
        let Some(received) = self.decoded_received() else {
            return Ok(());
        };
        verify_propagated(&received, trust).map(drop).map_err(|error| {
            let id = &self.id;
            HistoryError::Tampered(format!(
                "workflow actor '{id}': persisted propagated history failed verification (state store tampering): {error}"
            ))
            .or_untrusted(error.is_untrusted())
        })
    }

    /// Verifies the attestation of a result that arrived in this second since 1970. `None`: it arrived in a
    /// reminder, in which it waited since it was made.
    ///
    /// # Errors
    /// [`AttestationError`].
    pub fn verify_result(
        &self,
        event: &HistoryEvent,
        trust: Trust<'_>,
        trusted: &mut TrustedChains,
        second: Option<i64>,
    ) -> Result<Attested, AttestationError> {
        let moment = second.map_or_else(|| made(event), Moment::At);
        self.attested(event, None, trust, trusted, moment)
    }

    fn attested(
        &self,
        event: &HistoryEvent,
        stored: Option<Bytes>,
        trust: Trust<'_>,
        trusted: &mut TrustedChains,
        moment: Moment,
    ) -> Result<Attested, AttestationError> {
        let scheduled = self.scheduled(event, trust.app_id);
        attestation::verify(
            event,
            stored,
            &self.id,
            scheduled.as_ref(),
            trust,
            trusted,
            moment,
        )
    }

    /// The task that a result ends, as the history has it; `None` if it is not in progress.
    fn scheduled(&self, result: &HistoryEvent, own: &str) -> Option<Scheduled> {
        let (awaited, task) = ends(result)?;
        let open = self.facts.opened(awaited, task)?;
        let event = HistoryEvent::decode(self.history.get(open.entry)?).ok()?;
        let (name, input) = match event.event_type? {
            EventType::TaskScheduled(task) => (task.name, task.input),
            EventType::ChildWorkflowInstanceCreated(child) => (child.name, child.input),
            _ => return None,
        };
        let app = open.app.as_deref().unwrap_or(own).to_owned();
        Some(Scheduled { name, input, app })
    }

    /// Adds a verified signature of the events that a change stores. The tombstone is not signed.
    ///
    /// # Errors
    /// [`SignatureError`]; the instance must be read again.
    pub fn sign(&mut self, change: &mut Change, svid: &Svid) -> Result<(), SignatureError> {
        if change.is_empty() || self.is_tombstone() {
            return Ok(());
        }
        self.sign_received(change, svid)?;
        self.signing.sign(&self.history, svid)?;
        self.add_rows(change);
        Ok(())
    }

    /// Ends the instance visibly, because its stored state was tampered with. The history, the inbox and the
    /// signatures stay as they were found.
    pub fn tombstone(&mut self, cause: &str, at: Timestamp) -> Change {
        let completed = ExecutionCompletedEvent {
            workflow_status: OrchestrationStatus::Failed.into(),
            result: None,
            failure_details: Some(TaskFailureDetails {
                error_type: TAMPERED.to_owned(),
                error_message: cause.to_owned(),
                ..TaskFailureDetails::default()
            }),
        };
        self.append(&event(NO_ID, at, EventType::ExecutionCompleted(completed)));
        self.change()
    }

    /// Whether it ended because its stored state was tampered with.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.facts.completed.as_ref().is_some_and(|completed| {
            let failure = completed.event.failure_details.as_ref();
            completed.status() == OrchestrationStatus::Failed
                && failure.is_some_and(|failure| failure.error_type == TAMPERED)
                && completed.entry + 1 == self.history.len()
        })
    }
}

/// The time at which a result was made.
fn made(result: &HistoryEvent) -> Moment {
    Moment::Near(result.timestamp.map_or(0, |at| at.seconds))
}

#[cfg(test)]
mod tests;
