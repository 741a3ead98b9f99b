//! Attestations: the sidecar that ran an activity or child signs its parent, input and output.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use outrigger_identity::{SignatureError, SignerChain, Svid};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ActivityCompletionAttestation, ActivityCompletionAttestationPayload, ActivityTerminalStatus,
    ChildCompletionAttestation, ChildCompletionAttestationPayload, ExecutionStartedEvent, HistoryEvent,
    TaskFailureDetails, TerminalStatus,
};
use prost::Message as _;
use unicode_normalization::{UnicodeNormalization as _, is_nfc_stream_safe};

use super::digest::{Digest, of_parts, sha256};
use super::{Trust, TrustedChains};
use crate::facts::Started;
use crate::step::Step;

/// Version of the digests below.
const VERSION: u32 = 1;
/// Maximum failures inside one another that a digest covers.
const MAX_DEPTH: usize = 32;

/// The kind of an attestation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The result of an activity.
    Activity,
    /// The result of a child workflow.
    Child,
}

/// Why an attestation was rejected.
#[derive(Debug, thiserror::Error)]
pub enum AttestationError {
    /// The result has no attestation, or an incomplete one.
    #[error("it has no attestation; enable the feature WorkflowHistorySigning in the app that sent it")]
    Missing,
    /// The statement cannot be decoded.
    #[error("its attestation cannot be read: {0}")]
    Malformed(prost::DecodeError),
    /// The statement is of an unknown version.
    #[error("its attestation has version {0}, this sidecar reads {VERSION}")]
    Version(u32),
    /// The chain is not the one that the statement names.
    #[error("its certificate is not the one that the attestation names")]
    OtherCertificate,
    /// The certificate or the signature is invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A part of the statement differs from the workflow's history.
    #[error("its attestation is for another {0}")]
    Differs(&'static str),
    /// The signer is not the app that the task was sent to.
    #[error(
        "its attestation is by {signer}, but the task was sent to app '{app}' in namespace '{namespace}'"
    )]
    Signer {
        /// SPIFFE ID of the signer.
        signer: String,
        /// The app that the task was sent to.
        app: String,
        /// The workflow's namespace.
        namespace: String,
    },
}

impl AttestationError {
    /// Whether only a trust anchor is missing.
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, Self::Signature(SignatureError::Untrusted { .. }))
    }
}

/// A verified attestation.
#[derive(Debug)]
pub struct Attested {
    /// The signer's certificates, DER, leaf first.
    pub(crate) chain: Bytes,
    /// Whether the chain was verified before.
    pub was_known: bool,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Output<'a> {
    Completed(Option<&'a str>),
    Failed(Option<&'a TaskFailureDetails>),
}

impl Output<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Completed(result) => normalized(result.unwrap_or_default()).into_owned().into_bytes(),
            Self::Failed(failure) => {
                let mut bytes = Vec::new();
                append_failure(*failure, &mut bytes, MAX_DEPTH);
                bytes
            }
        }
    }
}

/// NFC, and at most 30 combining characters in a row, as Go's normalization does it.
fn normalized(text: &str) -> Cow<'_, str> {
    match is_nfc_stream_safe(text) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(text.stream_safe().nfc().collect()),
    }
}

fn append_failure(failure: Option<&TaskFailureDetails>, bytes: &mut Vec<u8>, depth: usize) {
    let stack = failure.and_then(|failure| failure.stack_trace.as_deref());
    let [kind, message] = [
        failure.map(|failure| failure.error_type.as_str()),
        failure.map(|failure| failure.error_message.as_str()),
    ];
    for text in [kind, message, stack] {
        let text = normalized(text.unwrap_or_default());
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    let inner = failure.and_then(|failure| failure.inner_failure.as_deref());
    match inner.filter(|_| depth > 1) {
        Some(inner) => {
            bytes.push(1);
            append_failure(Some(inner), bytes, depth - 1);
        }
        None => bytes.push(0),
    }
}

/// Drops failures below [`MAX_DEPTH`]: other implementations reject their digests.
fn bound(failure: &mut TaskFailureDetails) {
    let mut last = failure;
    for _ in 1..MAX_DEPTH {
        match &mut last.inner_failure {
            Some(inner) => last = inner,
            None => return,
        }
    }
    last.inner_failure = None;
}

fn is_deep(failure: &TaskFailureDetails) -> bool {
    let mut inner = Some(failure);
    let depth = std::iter::from_fn(|| {
        let this = inner?;
        inner = this.inner_failure.as_deref();
        Some(())
    });
    depth.count() > MAX_DEPTH
}

fn io_digest(input: Option<&str>, output: &[u8]) -> Digest {
    let input = normalized(input.unwrap_or_default());
    of_parts([input.as_bytes(), output])
}

/// The result in an event.
struct Ended<'a> {
    kind: Kind,
    task: i32,
    output: Output<'a>,
    /// Statement and signature.
    signed: Option<(&'a Bytes, &'a Bytes)>,
    chain: Option<&'a Bytes>,
}

impl<'a> Ended<'a> {
    fn of(event: &'a HistoryEvent) -> Option<Self> {
        let activity = |of: &'a Option<ActivityCompletionAttestation>| {
            of.as_ref().map(|signed| (&signed.payload, &signed.signature))
        };
        let child = |of: &'a Option<ChildCompletionAttestation>| {
            of.as_ref().map(|signed| (&signed.payload, &signed.signature))
        };
        Some(match event.event_type.as_ref()? {
            EventType::TaskCompleted(e) => Self {
                kind: Kind::Activity,
                task: e.task_scheduled_id,
                output: Output::Completed(e.result.as_deref()),
                signed: activity(&e.attestation),
                chain: e.signer_certificate.as_ref(),
            },
            EventType::TaskFailed(e) => Self {
                kind: Kind::Activity,
                task: e.task_scheduled_id,
                output: Output::Failed(e.failure_details.as_ref()),
                signed: activity(&e.attestation),
                chain: e.signer_certificate.as_ref(),
            },
            EventType::ChildWorkflowInstanceCompleted(e) => Self {
                kind: Kind::Child,
                task: e.task_scheduled_id,
                output: Output::Completed(e.result.as_deref()),
                signed: child(&e.attestation),
                chain: e.signer_certificate.as_ref(),
            },
            EventType::ChildWorkflowInstanceFailed(e) => Self {
                kind: Kind::Child,
                task: e.task_scheduled_id,
                output: Output::Failed(e.failure_details.as_ref()),
                signed: child(&e.attestation),
                chain: e.signer_certificate.as_ref(),
            },
            _ => return None,
        })
    }
}

/// The kind of attestation that a result needs; `None` for other events.
#[must_use]
pub fn kind(event: &HistoryEvent) -> Option<Kind> {
    Ended::of(event).map(|ended| ended.kind)
}

/// The signed statement of either kind.
struct Statement {
    parent: String,
    task: i32,
    /// `None` for a child.
    activity: Option<String>,
    io: Bytes,
    certificate: Bytes,
    /// `None` if it is not a known status.
    failed: Option<bool>,
    version: u32,
}

impl Statement {
    fn read(kind: Kind, payload: &Bytes) -> Result<Self, AttestationError> {
        match kind {
            Kind::Activity => {
                let read = ActivityCompletionAttestationPayload::decode(payload.clone());
                let read = read.map_err(AttestationError::Malformed)?;
                Ok(Self {
                    failed: match read.terminal_status() {
                        ActivityTerminalStatus::Completed => Some(false),
                        ActivityTerminalStatus::Failed => Some(true),
                        ActivityTerminalStatus::Unspecified => None,
                    },
                    parent: read.parent_instance_id,
                    task: read.parent_task_scheduled_id,
                    activity: Some(read.activity_name),
                    io: read.io_digest,
                    certificate: read.signer_cert_digest,
                    version: read.canonical_spec_version,
                })
            }
            Kind::Child => {
                let read = ChildCompletionAttestationPayload::decode(payload.clone());
                let read = read.map_err(AttestationError::Malformed)?;
                Ok(Self {
                    failed: match read.terminal_status() {
                        TerminalStatus::Completed => Some(false),
                        TerminalStatus::Failed => Some(true),
                        TerminalStatus::Unspecified => None,
                    },
                    parent: read.parent_instance_id,
                    task: read.parent_task_scheduled_id,
                    activity: None,
                    io: read.io_digest,
                    certificate: read.signer_cert_digest,
                    version: read.canonical_spec_version,
                })
            }
        }
    }

    fn encode(self) -> Vec<u8> {
        let failed = self.failed == Some(true);
        match self.activity {
            Some(activity_name) => ActivityCompletionAttestationPayload {
                parent_instance_id: self.parent,
                parent_task_scheduled_id: self.task,
                activity_name,
                io_digest: self.io,
                signer_cert_digest: self.certificate,
                terminal_status: match failed {
                    true => ActivityTerminalStatus::Failed.into(),
                    false => ActivityTerminalStatus::Completed.into(),
                },
                canonical_spec_version: self.version,
            }
            .encode_to_vec(),
            None => ChildCompletionAttestationPayload {
                parent_instance_id: self.parent,
                parent_task_scheduled_id: self.task,
                io_digest: self.io,
                signer_cert_digest: self.certificate,
                terminal_status: match failed {
                    true => TerminalStatus::Failed.into(),
                    false => TerminalStatus::Completed.into(),
                },
                canonical_spec_version: self.version,
            }
            .encode_to_vec(),
        }
    }
}

/// Attaches an attestation to the result of an activity or child of the instance `parent`. `activity`: the
/// activity's name, for a child ignored. Other events stay as they are.
///
/// # Errors
/// [`SignatureError`].
pub fn attest(
    svid: &Svid,
    parent: &str,
    activity: &str,
    input: Option<&str>,
    event: &mut HistoryEvent,
) -> Result<(), SignatureError> {
    if let Some(EventType::TaskFailed(failed)) = &mut event.event_type {
        failed.failure_details.iter_mut().for_each(bound);
    } else if let Some(EventType::ChildWorkflowInstanceFailed(failed)) = &mut event.event_type {
        failed.failure_details.iter_mut().for_each(bound);
    }
    let Some(ended) = Ended::of(event) else {
        return Ok(());
    };
    let chain = Bytes::from(svid.chain_der());
    let statement = Statement {
        parent: parent.to_owned(),
        task: ended.task,
        activity: (ended.kind == Kind::Activity).then(|| activity.to_owned()),
        io: Bytes::copy_from_slice(&io_digest(input, &ended.output.bytes())),
        certificate: Bytes::copy_from_slice(&sha256(&chain)),
        failed: Some(matches!(ended.output, Output::Failed(_))),
        version: VERSION,
    };
    let payload = Bytes::from(statement.encode());
    let signature = Bytes::from(svid.sign(&payload)?);
    let activity = |payload, signature| Some(ActivityCompletionAttestation { payload, signature });
    let child = |payload, signature| Some(ChildCompletionAttestation { payload, signature });
    match &mut event.event_type {
        Some(EventType::TaskCompleted(e)) => {
            (e.attestation, e.signer_certificate) = (activity(payload, signature), Some(chain));
        }
        Some(EventType::TaskFailed(e)) => {
            (e.attestation, e.signer_certificate) = (activity(payload, signature), Some(chain));
        }
        Some(EventType::ChildWorkflowInstanceCompleted(e)) => {
            (e.attestation, e.signer_certificate) = (child(payload, signature), Some(chain));
        }
        Some(EventType::ChildWorkflowInstanceFailed(e)) => {
            (e.attestation, e.signer_certificate) = (child(payload, signature), Some(chain));
        }
        _ => {}
    }
    Ok(())
}

/// Tag of the start event of a child that continued as new: the input that its parent scheduled, which the
/// parent expects to be attested.
const SCHEDULED_INPUT: &str = "outrigger-scheduled-input";

/// The input that the parent of this execution scheduled.
#[must_use]
pub fn scheduled_input(started: &ExecutionStartedEvent) -> Option<&str> {
    let kept = started.tags.get(SCHEDULED_INPUT);
    kept.or(started.input.as_ref()).map(String::as_str)
}

impl Step {
    /// Keeps the input that the parent scheduled in the start event of a child that continued as new. `last`:
    /// the start of the execution before.
    pub fn keep_scheduled_input(&mut self, last: Option<&Started>) {
        let Some(last) = last.filter(|last| last.event.parent_instance.is_some()) else {
            return;
        };
        let input = scheduled_input(&last.event).unwrap_or_default();
        let tag = (SCHEDULED_INPUT.to_owned(), input.to_owned());
        let fresh = self
            .fresh
            .iter_mut()
            .find_map(|event| match &mut event.event_type {
                Some(EventType::ExecutionStarted(started)) => Some(started),
                _ => None,
            });
        let known = self.facts.started.as_mut();
        let known = known.map(|started| &mut Arc::make_mut(started).event);
        for started in fresh.into_iter().chain(known) {
            started.tags.extend([tag.clone()]);
        }
    }
}

/// Removes the signer's certificates from a result: the instance stores each chain once.
pub(crate) fn strip(event: &mut HistoryEvent) {
    match &mut event.event_type {
        Some(EventType::TaskCompleted(e)) => e.signer_certificate = None,
        Some(EventType::TaskFailed(e)) => e.signer_certificate = None,
        Some(EventType::ChildWorkflowInstanceCompleted(e)) => e.signer_certificate = None,
        Some(EventType::ChildWorkflowInstanceFailed(e)) => e.signer_certificate = None,
        _ => {}
    }
}

/// The digest of the chain that signed a result, if it names one.
pub(crate) fn signer_digest(event: &HistoryEvent) -> Option<Bytes> {
    let ended = Ended::of(event)?;
    let statement = Statement::read(ended.kind, ended.signed?.0).ok()?;
    Some(statement.certificate)
}

/// A task as the workflow scheduled it.
pub(crate) struct Scheduled {
    pub(crate) name: String,
    pub(crate) input: Option<String>,
    /// The app that it was sent to.
    pub(crate) app: String,
}

/// When the anchors must vouch for the signer.
#[derive(Clone, Copy)]
pub(crate) enum Moment {
    /// In this second since 1970.
    At(i64),
    /// In this second, or in the nearest one of the leaf's validity: the result was verified when it arrived.
    Near(i64),
}

/// Verifies the result of a task of the instance `parent`. `scheduled`: `None` if no stored step has
/// scheduled it yet. `stored`: the signer's chain if the event no longer has it.
pub(crate) fn verify(
    event: &HistoryEvent,
    stored: Option<Bytes>,
    parent: &str,
    scheduled: Option<&Scheduled>,
    trust: Trust<'_>,
    trusted: &mut TrustedChains,
    moment: Moment,
) -> Result<Attested, AttestationError> {
    let ended = Ended::of(event).ok_or(AttestationError::Missing)?;
    let chain = stored.or_else(|| ended.chain.cloned());
    let signed = ended
        .signed
        .filter(|(payload, signature)| !payload.is_empty() && !signature.is_empty());
    let (Some((payload, signature)), Some(chain)) = (signed, chain) else {
        return Err(AttestationError::Missing);
    };
    let statement = Statement::read(ended.kind, payload)?;
    if statement.version != VERSION {
        return Err(AttestationError::Version(statement.version));
    }
    let digest = sha256(&chain);
    if statement.certificate != digest.as_slice() {
        return Err(AttestationError::OtherCertificate);
    }
    let signer = SignerChain::parse(&chain)?;
    signer.verify(payload, signature)?;
    let second = match moment {
        Moment::At(second) => second,
        Moment::Near(second) => {
            let (from, until) = signer.validity();
            second.min(until).max(from)
        }
    };
    let was_known = trusted.check(digest, &signer, trust.anchors, second)?;
    check_statement(&statement, &ended, parent, scheduled)?;
    check_signer(&signer, &ended, scheduled, trust)?;
    Ok(Attested { chain, was_known })
}

fn check_statement(
    statement: &Statement,
    ended: &Ended<'_>,
    parent: &str,
    scheduled: Option<&Scheduled>,
) -> Result<(), AttestationError> {
    let differs = |what| Err(AttestationError::Differs(what));
    if statement.parent != parent {
        return differs("workflow instance");
    }
    if statement.task != ended.task {
        return differs("task");
    }
    if statement.failed != Some(matches!(ended.output, Output::Failed(_))) {
        return differs("kind of result");
    }
    let Some(scheduled) = scheduled else { return Ok(()) };
    if statement
        .activity
        .as_ref()
        .is_some_and(|name| *name != scheduled.name)
    {
        return differs("activity");
    }
    if matches!(ended.output, Output::Failed(Some(failure)) if is_deep(failure)) {
        return differs("result");
    }
    match statement.io == io_digest(scheduled.input.as_deref(), &ended.output.bytes()).as_slice() {
        true => Ok(()),
        false => differs("input or result"),
    }
}

/// The signer is the app that the task was sent to. A failure may also be by the workflow's own sidecar,
/// which reports that the task could not be sent.
fn check_signer(
    signer: &SignerChain,
    ended: &Ended<'_>,
    scheduled: Option<&Scheduled>,
    trust: Trust<'_>,
) -> Result<(), AttestationError> {
    let id = signer.id();
    let app = scheduled.map_or_else(|| id.app_id(), |scheduled| &scheduled.app);
    let is_own_failure = matches!(ended.output, Output::Failed(_)) && id.app_id() == trust.app_id;
    if id.namespace() == trust.namespace && (id.app_id() == app || is_own_failure) {
        return Ok(());
    }
    Err(AttestationError::Signer {
        signer: id.to_string(),
        app: app.to_owned(),
        namespace: trust.namespace.to_owned(),
    })
}

#[cfg(test)]
mod tests;
