//! Methods and encodings of workflow actors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use outrigger_workflow::{Arrival, Origin};
use prost_types::{Any, Timestamp};
use tonic::Status;

use crate::actors::ActorCall;

/// Target of the log lines of workflows.
pub(crate) const LOG: &str = "dapr.wfengine";

/// Methods of workflow actors.
pub(crate) mod methods {
    /// Creates an instance: `CreateWorkflowInstanceRequest`.
    pub(crate) const CREATE: &str = "CreateWorkflowInstance";
    /// Adds an event: `HistoryEvent`.
    pub(crate) const ADD_EVENT: &str = "AddWorkflowEvent";
    /// Removes the state of an ended instance.
    pub(crate) const PURGE: &str = "PurgeWorkflowState";
    /// Removes an instance and everything below it; the answer is a `PurgeInstancesResponse`.
    pub(crate) const PURGE_TREE: &str = "RecursivePurgeWorkflowState";
    /// Watches the status of an instance: a stream of `WorkflowMetadata`.
    pub(crate) const WATCH: &str = "WaitForRuntimeStatus";
    /// Reruns from an event of this instance: `RerunWorkflowFromEventRequest`.
    pub(crate) const FORK: &str = "ForkWorkflowHistory";
    /// Creates an instance with a history: `BackendWorkflowState`.
    pub(crate) const RERUN: &str = "RerunWorkflowInstance";
    /// Starts an activity: `HistoryEvent`.
    pub(crate) const EXECUTE: &str = "Execute";
    /// Delivers an answer to an executor: `WorkflowResponse` or `ActivityResponse`.
    pub(crate) const COMPLETE: &str = "Complete";
    /// Cancels the wait of an executor: the worker disconnected.
    pub(crate) const CANCEL: &str = "Cancel";
    /// Waits for the answer at an executor.
    pub(crate) const WATCH_COMPLETE: &str = "WatchComplete";
}

/// Marks a purge by the retention reminder, which ends by itself.
pub(crate) const RETENTION_CALL: &str = "purgeretentioncall";
/// Marks a purge of instances that may not have ended.
pub(crate) const FORCE: &str = "purgeforce";
/// Marks a watch that asks once whether an instance and everything below it have ended.
pub(crate) const CHECK_SUBTREE: &str = "checksubtreeterminal";
/// Marks a watch that ends with the first status.
pub(crate) const FETCH_ONLY: &str = "metadatafetchonly";
/// Due time of an activity, milliseconds since 1970.
pub(crate) const DUE_TIME: &str = "duetime";
/// Pause before watching a moved actor again.
pub(crate) const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Metadata with one entry.
pub(crate) fn metadata(name: &'static str, value: &str) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(value) {
        metadata.insert(name, value);
    }
    metadata
}

/// Whether a call is marked.
pub(crate) fn is_marked(call: &ActorCall, name: &str) -> bool {
    call.metadata.get(name).is_some_and(|value| value == "true")
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}

/// A random part of a reminder's name.
pub(crate) fn random() -> [u8; 6] {
    rand::random()
}

/// A new unique id.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Wraps a message in `Any`.
pub(crate) fn any(name: &str, message: &impl prost::Message) -> Any {
    any_encoded(name, message.encode_to_vec())
}

/// Wraps an encoded message in `Any`.
pub(crate) fn any_encoded(name: &str, value: Vec<u8>) -> Any {
    let type_url = format!("type.googleapis.com/{name}");
    Any { type_url, value }
}

/// Wraps a message in `Any`, with the execution it is meant for.
pub(crate) fn any_for(name: &str, message: &impl prost::Message, origin: &Origin) -> Any {
    let mut any = any(name, message);
    origin.append_to(&mut any.value);
    any
}

/// Decodes an incoming event.
pub(crate) fn arrival(encoded: &[u8]) -> Result<Arrival, Status> {
    let event = decode("the event", encoded)?;
    let origin = Origin::read(encoded);
    Ok(Arrival {
        event,
        origin,
        waited: false,
    })
}

/// Decodes the body of a call.
pub(crate) fn decode<M: prost::Message + Default>(what: &str, body: impl bytes::Buf) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::invalid_argument(format!("cannot decode {what}: {error}")))
}
