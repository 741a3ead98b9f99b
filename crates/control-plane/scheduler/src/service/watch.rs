//! Streams of triggers to sidecars, and of scheduler addresses.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::budget::{HeldPayload, Payloads};
use outrigger_controlplane::grpc::Caller;
use outrigger_schedule::engine::{Host as Target, Limit, LimitScope, Target as Recipient, TriggerId};
use outrigger_schedule::job::Outcome;
use outrigger_wire::scheduler::v1::{
    ConcurrencyLimit, Host, JobTargetType, WatchHostsResponse, WatchJobsRequest, WatchJobsRequestInitial,
    WatchJobsRequestResultStatus, WatchJobsResponse, concurrency_limit,
    watch_jobs_request::WatchJobRequestType as Message,
};
use prost_types::Any;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Status, Streaming};

use super::{Service, check, check_type};
use crate::metrics::{Metrics, SidecarError};
use crate::names;
use crate::storage::{Hosts, JobRef, Storage, StorageError, changed};
use crate::stored;
use crate::triggers::{Connection, Delivery};

const LOG: &str = "dapr.scheduler.triggers";
/// Timeout of the first message of a stream.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of triggers with payload queued per stream; further ones are queued without payload.
const WINDOW: usize = 32;
/// Payload bytes to read from the store at once; the next read takes as many triggers as fit.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of actor types of a sidecar, and of its limits on triggers in flight.
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
    service.counted(check(caller, &initial.namespace, &initial.app_id))?;
    let limits = limits(&initial)?;
    let target = target(&initial)?.limited(limits);
    for actor_type in types(&initial) {
        service.counted(check_type(caller, actor_type))?;
    }
    let Some((connection, due)) = service.triggers.connect(target).await else {
        return Err(Status::unavailable("the scheduler is shutting down"));
    };
    tracing::debug!(
        target: "dapr.scheduler.server",
        "sidecar of {}/{} connected for triggers", initial.namespace, initial.app_id
    );
    let (answers, stream) = mpsc::channel(WINDOW);
    service
        .streams
        .spawn(serve(connection, messages, due, answers, service.clone()));
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

/// The actor types that a sidecar names.
fn types(initial: &WatchJobsRequestInitial) -> impl Iterator<Item = &str> {
    let limited = initial.concurrency_limits.iter().filter_map(limited_type);
    initial.actor_types.iter().map(String::as_str).chain(limited)
}

fn limited_type(limit: &ConcurrencyLimit) -> Option<&str> {
    let concurrency_limit::Target::Actor(actor) = limit.target.as_ref()?;
    Some(&actor.r#type)
}

/// The limits on triggers in flight that a sidecar announces. Those without a type or a maximum do not count.
fn limits(initial: &WatchJobsRequestInitial) -> Result<Vec<Limit>, Status> {
    let announced = &initial.concurrency_limits;
    if announced.len() > MAX_TYPES {
        return Err(Status::invalid_argument(format!(
            "more than {MAX_TYPES} concurrency_limits"
        )));
    }
    let is_long = |name: &&str| name.len() > names::MAX_NAME;
    if let Some(name) = announced
        .iter()
        .filter_map(|limit| limit.name.as_deref())
        .find(is_long)
    {
        return Err(Status::invalid_argument(format!(
            "the name of a limit has {} bytes; the maximum is {}",
            name.len(),
            names::MAX_NAME
        )));
    }
    let namespace: Arc<str> = initial.namespace.as_str().into();
    let limits = announced.iter().filter_map(|limit| {
        let target = Recipient::ActorType {
            namespace: Arc::clone(&namespace),
            name: limited_type(limit)?.into(),
        };
        Some(Limit {
            scope: LimitScope {
                target: Arc::new(target),
                key: limit.name.clone().map(Arc::new),
            },
            most: usize::try_from(limit.max_concurrent)
                .ok()
                .filter(|most| *most > 0)?,
        })
    });
    Ok(limits.collect())
}

async fn serve(
    connection: Connection,
    messages: Streaming<WatchJobsRequest>,
    due: mpsc::UnboundedReceiver<Delivery>,
    answers: mpsc::Sender<Waiting>,
    service: Service,
) {
    let Service {
        storage,
        metrics,
        over,
        payloads,
        ..
    } = service;
    let ended = tokio::select! {
        () = over.cancelled() => None,
        () = answers.closed() => None,
        ended = listen(&connection, messages, &metrics) => ended,
        ended = send(&*storage, &connection, due, &answers, &payloads, &metrics) => ended,
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
async fn listen(
    connection: &Connection,
    mut messages: Streaming<WatchJobsRequest>,
    metrics: &Metrics,
) -> Option<Status> {
    loop {
        let message = match messages.message().await {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return None,
        };
        match outcome(message) {
            Ok((trigger, outcome)) => connection.answer(trigger, outcome),
            Err(text) => {
                metrics.sidecar_error(SidecarError::Received);
                return Some(Status::unknown(text));
            }
        }
    }
}

/// The answer to a trigger.
fn outcome(message: WatchJobsRequest) -> Result<(TriggerId, Outcome), String> {
    let Some(Message::Result(result)) = message.watch_job_request_type else {
        return Err("received a message without a result: answer triggers on this stream".to_owned());
    };
    match WatchJobsRequestResultStatus::try_from(result.status) {
        Ok(WatchJobsRequestResultStatus::Success) => Ok((result.id, Outcome::Success)),
        Ok(WatchJobsRequestResultStatus::Failed) => Ok((result.id, Outcome::Failed)),
        Err(_) => Err(format!("unknown result status {}", result.status)),
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
    metrics: &Metrics,
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
                metrics.sidecar_error(SidecarError::Sent);
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

fn response(addresses: &[String]) -> WatchHostsResponse {
    let hosts = addresses.iter().map(|address| Host {
        address: address.clone(),
    });
    WatchHostsResponse {
        hosts: hosts.collect(),
    }
}
