//! Streams of triggers to sidecars, and of scheduler addresses.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::budget::{HeldPayload, Payloads};
use outrigger_controlplane::grpc::Caller;
use outrigger_schedule::engine::Host as Target;
use outrigger_schedule::job::Outcome;
use outrigger_wire::scheduler::v1::{
    Host, JobTargetType, WatchHostsResponse, WatchJobsRequest, WatchJobsRequestInitial,
    WatchJobsRequestResultStatus, WatchJobsResponse, watch_jobs_request::WatchJobRequestType as Message,
};
use prost_types::Any;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

use super::{Service, check, check_type};
use crate::names;
use crate::storage::{Hosts, JobRef, Storage, StorageError};
use crate::stored;
use crate::triggers::{Connection, Delivery};

const LOG: &str = "dapr.scheduler.triggers";
/// Timeout of the first message of a stream.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of triggers with payload queued per stream; further ones are queued without payload.
const WINDOW: usize = 32;
/// Payload bytes to read from the store at once; the next read takes as many triggers as fit.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of actor types of a sidecar.
const MAX_TYPES: usize = 4096;

/// Connects a sidecar and serves it until either side ends the stream.
pub(super) async fn jobs(
    service: &Service,
    caller: &Caller,
    mut messages: Streaming<WatchJobsRequest>,
) -> Result<impl Stream<Item = Result<WatchJobsResponse, Status>> + use<>, Status> {
    let first = tokio::time::timeout(FIRST_MESSAGE_TIMEOUT, messages.message()).await;
    let first = first.map_err(|_| Status::deadline_exceeded("initial request did not arrive in time"))??;
    let Some(Message::Initial(initial)) = first.and_then(|first| first.watch_job_request_type) else {
        return Err(Status::unknown(
            "initial request is required on stream connection",
        ));
    };
    check(caller, &initial.namespace, &initial.app_id)?;
    let target = target(&initial)?;
    for actor_type in &initial.actor_types {
        check_type(caller, actor_type)?;
    }
    let Some((connection, due)) = service.triggers.connect(target).await else {
        return Err(Status::unavailable("the scheduler is shutting down"));
    };
    tracing::debug!(
        target: "dapr.scheduler.server",
        "sidecar of {}/{} connected for triggers", initial.namespace, initial.app_id
    );
    let (answers, stream) = mpsc::channel(WINDOW);
    service.streams.spawn(serve(
        Arc::clone(&service.storage),
        connection,
        messages,
        due,
        answers,
        service.over.clone(),
        Arc::clone(&service.payloads),
    ));
    // A message taken from the queue is sent, so its payload no longer counts.
    Ok(ReceiverStream::new(stream).map(|(trigger, _)| trigger))
}

/// The target that a sidecar announces in its first message.
fn target(initial: &WatchJobsRequestInitial) -> Result<Target, Status> {
    let mut kinds = HashSet::new();
    for kind in &initial.accept_job_types {
        let known = JobTargetType::try_from(*kind)
            .map_err(|_| Status::unknown(format!("unknown job type {kind} in accept_job_types")))?;
        if !kinds.insert(known) {
            return Err(Status::unknown(format!(
                "duplicate job type {} in accept_job_types",
                known.as_str_name()
            )));
        }
    }
    if initial.actor_types.len() > MAX_TYPES {
        return Err(Status::invalid_argument(format!(
            "more than {MAX_TYPES} actor_types"
        )));
    }
    let takes = |kind| kinds.is_empty() || kinds.contains(&kind);
    let types: Vec<&str> = initial.actor_types.iter().map(String::as_str).collect();
    Ok(Target::new(
        &initial.namespace,
        &initial.app_id,
        takes(JobTargetType::Job),
        &types,
    ))
}

async fn serve(
    storage: Arc<dyn Storage>,
    connection: Connection,
    messages: Streaming<WatchJobsRequest>,
    due: mpsc::UnboundedReceiver<Delivery>,
    answers: mpsc::Sender<Waiting>,
    over: CancellationToken,
    payloads: Arc<Payloads>,
) {
    let ended = tokio::select! {
        () = over.cancelled() => None,
        () = answers.closed() => None,
        ended = listen(&connection, messages) => ended,
        ended = send(&*storage, &connection, due, &answers, &payloads) => ended,
    };
    // Unanswered triggers go to another sidecar.
    drop(connection);
    // At shutdown the engine ends all streams, which is not an error of the sidecar.
    if let Some(status) = ended.filter(|_| !over.is_cancelled()) {
        // Not sent if the queue is full: the sidecar does not read.
        let _ = answers.try_send((Err(status), payloads.hold(0)));
    }
}

/// Receives answers until the sidecar ends the stream or violates the protocol.
async fn listen(connection: &Connection, mut messages: Streaming<WatchJobsRequest>) -> Option<Status> {
    loop {
        let message = match messages.message().await {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return None,
        };
        let Some(Message::Result(result)) = message.watch_job_request_type else {
            return Some(Status::unknown(
                "received a message without a result: answer triggers on this stream",
            ));
        };
        let outcome = match WatchJobsRequestResultStatus::try_from(result.status) {
            Ok(WatchJobsRequestResultStatus::Success) => Outcome::Success,
            Ok(WatchJobsRequestResultStatus::Failed) => Outcome::Failed,
            Err(_) => {
                return Some(Status::unknown(format!(
                    "unknown result status {}",
                    result.status
                )));
            }
        };
        connection.answer(result.id, outcome);
    }
}

/// A trigger queued for the sidecar.
type Waiting = (Result<WatchJobsResponse, Status>, HeldPayload);

/// Sends due triggers with their payloads.
async fn send(
    storage: &dyn Storage,
    connection: &Connection,
    mut due: mpsc::UnboundedReceiver<Delivery>,
    answers: &mpsc::Sender<Waiting>,
    payloads: &Arc<Payloads>,
) -> Option<Status> {
    let mut batch = Vec::with_capacity(WINDOW);
    let mut at_once = 1;
    loop {
        tokio::select! {
            biased;
            () = payloads.room() => {}
            // Sidecars that do not read must not delay one whose queue is empty.
            read = answers.reserve_many(WINDOW) => {
                if read.is_err() {
                    return None;
                }
                at_once = 1;
            }
        }
        if due.recv_many(&mut batch, at_once).await == 0 {
            return Some(Status::unknown("unknown trigger in an answer on this stream"));
        }
        let wanted = batch.iter().map(|delivery| JobRef {
            name: Arc::clone(&delivery.name),
            revision: Some(delivery.revision),
        });
        let jobs = match due_jobs(storage, wanted.collect()).await {
            Ok(jobs) => jobs,
            Err(error) => return Some(error.into()),
        };
        let sizes: Vec<usize> = jobs.iter().map(|job| job.as_ref().map_or(0, Vec::len)).collect();
        at_once = match sizes.iter().sum::<usize>() > READ_BYTES {
            true => 1,
            false => WINDOW.min(2 * at_once),
        };
        // All are counted before other streams check the budget.
        let held: Vec<_> = sizes.into_iter().map(|bytes| payloads.hold(bytes)).collect();
        for ((delivery, job), held) in batch.drain(..).zip(jobs).zip(held) {
            // By the time a slow store answers, another scheduler may have triggered the job.
            let job =
                job.filter(|_| !delivery.revoked.is_cancelled() && storage.may_trigger(delivery.tenure));
            let Some((data, metadata)) = job.as_deref().and_then(payload) else {
                connection.discard(delivery.trigger);
                continue;
            };
            let trigger = WatchJobsResponse {
                name: names::own(&delivery.name, &metadata).to_owned(),
                id: delivery.trigger,
                data,
                metadata: Some(metadata),
            };
            if answers.send((Ok(trigger), held)).await.is_err() {
                return None;
            }
        }
    }
}

/// Like [`Storage::get`], but a damaged job does not fail the others.
async fn due_jobs(storage: &dyn Storage, wanted: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
    match storage.get(wanted.clone()).await {
        Err(StorageError::Damaged(_)) => {}
        got => return got,
    }
    let mut jobs = Vec::with_capacity(wanted.len());
    for one in wanted {
        let name = Arc::clone(&one.name);
        match storage.get(vec![one]).await {
            Ok(got) => jobs.extend(got),
            Err(error @ StorageError::Damaged(_)) => {
                tracing::error!(target: LOG, "the job {name:?} will not be triggered: {error}");
                jobs.push(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(jobs)
}

fn payload(job: &[u8]) -> Option<(Option<Any>, outrigger_wire::scheduler::v1::JobMetadata)> {
    use prost::Message as _;
    let job = crate::proto::stored::Job::decode(job).ok()?;
    let metadata = stored::metadata(&job).ok()?;
    Some((job.job?.payload, metadata))
}

/// Streams the addresses of all schedulers: at once, and after each change.
pub(super) fn hosts(
    streams: &TaskTracker,
    mut hosts: watch::Receiver<Hosts>,
    over: CancellationToken,
) -> impl Stream<Item = Result<WatchHostsResponse, Status>> + use<> {
    let (send, stream) = mpsc::channel(1);
    streams.spawn(async move {
        loop {
            let list = Arc::clone(&hosts.borrow_and_update());
            // The list is empty until the schedulers agree.
            if !list.is_empty() && send.send(Ok(response(&list))).await.is_err() {
                return;
            }
            tokio::select! {
                () = over.cancelled() => return,
                () = send.closed() => return,
                () = changed(&mut hosts) => {}
            }
        }
    });
    ReceiverStream::new(stream)
}

/// Waits for a change of the schedulers; a single scheduler never changes.
async fn changed(hosts: &mut watch::Receiver<Hosts>) {
    if hosts.changed().await.is_err() {
        std::future::pending().await
    }
}

fn response(addresses: &[String]) -> WatchHostsResponse {
    let hosts = addresses.iter().map(|address| Host {
        address: address.clone(),
    });
    WatchHostsResponse {
        hosts: hosts.collect(),
    }
}
