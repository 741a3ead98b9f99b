//! The gRPC service, `dapr.proto.scheduler.v1.Scheduler`.

pub(crate) mod size;
mod watch;

use std::sync::Arc;

use jiff::Timestamp;
use outrigger_accept::budget::Payloads;
use outrigger_controlplane::actor_types::is_of_another_app;
use outrigger_controlplane::grpc::Caller;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::scheduler::v1::{
    DeleteByMetadataRequest, DeleteByMetadataResponse, DeleteByNamePrefixRequest, DeleteByNamePrefixResponse,
    DeleteJobRequest, DeleteJobResponse, GetJobRequest, GetJobResponse, Job as AskedJob, JobMetadata,
    ListJobsRequest, ListJobsResponse, NamedJob, ScheduleJobRequest, ScheduleJobResponse, WatchHostsRequest,
    WatchHostsResponse, WatchJobsRequest, WatchJobsResponse, job_target_metadata::Type,
    scheduler_server::Scheduler,
};
use prost::Message;
use prost_types::Any;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::metrics::{Metrics, SidecarError};
use crate::names::{self, Kind, NameError};
use crate::proto::stored::Job;
use crate::storage::{Hosts, JobRef, Scheduled, Storage, StorageError};
use crate::stored;
use crate::triggers::Triggers;

/// Name prefix of the reminders with which a sidecar hands an activity's result to a workflow of another app
/// (Dapr's feature `WorkflowsRemoteActivityReminder`).
const ACTIVITY_RESULT: &str = "activity-result-";
/// Suffix of the actor types of workflows.
const WORKFLOW: &str = ".workflow";

/// Maximum size of a list of jobs in bytes.
const MAX_LIST: usize = 1 << 30;

/// Serves the gRPC calls.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) triggers: Triggers,
    pub(crate) metrics: Arc<Metrics>,
    /// The schedulers to announce to sidecars.
    pub(crate) hosts: Receiver<Hosts>,
    /// Cancelled when answers to triggers are no longer accepted, a while after shutdown begins.
    pub(crate) over: CancellationToken,
    /// Tasks of the streams; they end with `over`.
    pub(crate) streams: TaskTracker,
    /// Budget of the payloads that sidecars have not read.
    pub(crate) payloads: Arc<Payloads>,
}

/// Divisor of the memory budget: payloads that sidecars have not read may use one part of this many.
pub(crate) const PAYLOADS_PART: usize = 2;

#[tonic::async_trait]
impl Scheduler for Service {
    async fn schedule_job(
        &self,
        request: Request<ScheduleJobRequest>,
    ) -> Result<Response<ScheduleJobResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = request.metadata.unwrap_or_default();
        self.counted(check(&caller, &metadata.namespace, &metadata.app_id))?;
        if !hands_over_result(&request.name, &metadata, request.job.as_ref()) {
            self.counted(check_target(&caller, &metadata))?;
        }
        let name = names::compose(&metadata, &request.name)?;
        let kind = Kind::of(&name);
        let asked = request.job.unwrap_or_default();
        let created = self.create(name, asked, &metadata, request.overwrite).await;
        self.metrics.created(kind, created.is_ok());
        created.map(|()| Response::new(ScheduleJobResponse {}))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<GetJobResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = self.counted(allowed(&caller, request.metadata))?;
        let name = names::compose(&metadata, &request.name)?;
        let found = self
            .storage
            .get(vec![JobRef {
                name: name.into(),
                revision: None,
            }])
            .await?
            .into_iter()
            .flatten()
            .next();
        let Some(job) = found else {
            return Err(Status::not_found(format!("job not found: {}", request.name)));
        };
        let job = decode(&job)?;
        Ok(Response::new(GetJobResponse {
            job: stored::asked(job),
        }))
    }

    async fn delete_job(
        &self,
        request: Request<DeleteJobRequest>,
    ) -> Result<Response<DeleteJobResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = self.counted(allowed(&caller, request.metadata))?;
        let name = names::compose(&metadata, &request.name)?;
        let kind = Kind::of(&name);
        self.storage.delete(name).await?;
        self.metrics.deleted(kind);
        Ok(Response::new(DeleteJobResponse {}))
    }

    async fn watch_jobs(
        &self,
        request: Request<Streaming<WatchJobsRequest>>,
    ) -> Result<Response<BoxStream<WatchJobsResponse>>, Status> {
        let (caller, messages) = called(request)?;
        let answers = watch::jobs(self, &caller, messages).await?;
        Ok(Response::new(Box::pin(answers)))
    }

    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = self.counted(allowed(&caller, request.metadata))?;
        let prefix = names::prefix(&metadata)?;
        let listed = self.storage.list(prefix, MAX_LIST).await?;
        let mut jobs = Vec::with_capacity(listed.len());
        for (name, job) in listed {
            let job = decode(&job)?;
            let of = stored::metadata(&job).ok();
            jobs.push(NamedJob {
                name: names::own(&name, of.as_ref().unwrap_or(&metadata)).to_owned(),
                metadata: of,
                job: stored::asked(job),
            });
        }
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn watch_hosts(
        &self,
        _: Request<WatchHostsRequest>,
    ) -> Result<Response<BoxStream<WatchHostsResponse>>, Status> {
        let hosts = watch::hosts(&self.streams, self.hosts.clone(), self.over.clone());
        Ok(Response::new(Box::pin(hosts)))
    }

    async fn delete_by_metadata(
        &self,
        request: Request<DeleteByMetadataRequest>,
    ) -> Result<Response<DeleteByMetadataResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = self.counted(allowed(&caller, request.metadata))?;
        let prefix = match request.id_prefix_match {
            Some(true) if may_leave_target(&caller, &metadata) => names::open_prefix(&metadata)?,
            _ => names::prefix(&metadata)?,
        };
        self.storage.delete_prefix(prefix).await?;
        self.metrics.bulk_deleted();
        Ok(Response::new(DeleteByMetadataResponse {}))
    }

    async fn delete_by_name_prefix(
        &self,
        request: Request<DeleteByNamePrefixRequest>,
    ) -> Result<Response<DeleteByNamePrefixResponse>, Status> {
        let (caller, request) = called(request)?;
        let metadata = self.counted(allowed(&caller, request.metadata))?;
        let prefix = format!("{}{}", names::prefix(&metadata)?, request.name_prefix);
        self.storage.delete_prefix(prefix).await?;
        self.metrics.bulk_deleted();
        Ok(Response::new(DeleteByNamePrefixResponse {}))
    }
}

impl Service {
    async fn create(
        &self,
        name: String,
        asked: AskedJob,
        metadata: &JobMetadata,
        overwrite: bool,
    ) -> Result<(), Status> {
        let job = stored::create(asked, metadata, rand::random(), Timestamp::now())
            .map_err(|error| Status::unknown(format!("job failed validation: {error}")))?;
        let stored = self
            .storage
            .schedule(name.clone(), job.encode_to_vec(), overwrite);
        match stored.await? {
            Scheduled::Stored => Ok(()),
            Scheduled::Exists => Err(Status::already_exists(format!(
                "job already exists: '{name}'; set overwrite to replace it"
            ))),
        }
    }

    /// Counts a refusal.
    fn counted<T>(&self, allowed: Result<T, Status>) -> Result<T, Status> {
        allowed.inspect_err(|_| self.metrics.sidecar_error(SidecarError::Refused))
    }
}

/// Splits a request into its caller and message.
fn called<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    let caller = caller.ok_or_else(|| {
        Status::unauthenticated("no client identity: call with a certificate issued by sentry")
    })?;
    Ok((caller, request.into_inner()))
}

/// The metadata, if the caller may act for its namespace, app and target.
fn allowed(caller: &Caller, metadata: Option<JobMetadata>) -> Result<JobMetadata, Status> {
    let metadata = metadata.unwrap_or_default();
    check(caller, &metadata.namespace, &metadata.app_id)?;
    check_target(caller, &metadata)?;
    Ok(metadata)
}

/// Only the app itself may read, receive or delete the reminders of its workflows.
fn check_target(caller: &Caller, metadata: &JobMetadata) -> Result<(), Status> {
    let target = metadata.target.as_ref().and_then(|target| target.r#type.as_ref());
    match target {
        Some(Type::Actor(actor)) => check_type(caller, &actor.r#type),
        _ => Ok(()),
    }
}

/// Whether a job hands the result of an activity to a workflow, possibly of another app. The name must not
/// contain a separator, so that the delivered name is the one checked here.
fn hands_over_result(name: &str, metadata: &JobMetadata, job: Option<&AskedJob>) -> bool {
    let target = metadata.target.as_ref().and_then(|target| target.r#type.as_ref());
    let to_workflow = matches!(target, Some(Type::Actor(actor)) if actor.r#type.ends_with(WORKFLOW));
    to_workflow
        && name.starts_with(ACTIVITY_RESULT)
        && !name.contains('|')
        && job.and_then(|job| job.data.as_ref()).is_some_and(is_result)
}

/// Whether the event is the completion or the failure of an activity.
fn is_result(data: &Any) -> bool {
    let event = HistoryEvent::decode(data.value.as_slice()).ok();
    matches!(
        event.and_then(|event| event.event_type),
        Some(EventType::TaskCompleted(_) | EventType::TaskFailed(_))
    )
}

/// Whether a prefix may match beyond its target. It must not match longer actor types, or other apps whose id
/// begins with the caller's.
fn may_leave_target(caller: &Caller, metadata: &JobMetadata) -> bool {
    let target = metadata.target.as_ref().and_then(|target| target.r#type.as_ref());
    match target {
        Some(Type::Actor(actor)) => !actor.id.is_empty(),
        _ => !matches!(caller, Caller::Workload(_)),
    }
}

fn check_type(caller: &Caller, actor_type: &str) -> Result<(), Status> {
    match caller {
        Caller::Workload(id) if is_of_another_app(actor_type, id.namespace(), id.app_id()) => {
            Err(Status::permission_denied(format!(
                "actor type {actor_type:?} does not belong to the caller, app {:?} in namespace {:?}",
                id.app_id(),
                id.namespace()
            )))
        }
        _ => Ok(()),
    }
}

fn check(caller: &Caller, namespace: &str, app_id: &str) -> Result<(), Status> {
    if namespace.is_empty() || app_id.is_empty() {
        return Err(Status::invalid_argument(
            "missing namespace or appID in request: set both in its metadata",
        ));
    }
    match caller {
        Caller::Workload(id) if id.namespace() != namespace || id.app_id() != app_id => {
            Err(Status::permission_denied(format!(
                "identity does not match request: the caller is app {:?} in namespace {:?}, not {app_id:?} in {namespace:?}",
                id.app_id(),
                id.namespace()
            )))
        }
        _ => Ok(()),
    }
}

fn decode(job: &[u8]) -> Result<Job, Status> {
    Job::decode(job).map_err(|error| Status::internal(format!("the stored job cannot be decoded: {error}")))
}

impl From<NameError> for Status {
    fn from(error: NameError) -> Self {
        Self::unknown(format!("job failed validation: {error}"))
    }
}

impl From<StorageError> for Status {
    fn from(error: StorageError) -> Self {
        let text = error.to_string();
        match error {
            StorageError::Full(_)
            | StorageError::TooMuch(_)
            | StorageError::AnswerTooLarge(_)
            | StorageError::TooLarge(_) => Self::resource_exhausted(text),
            StorageError::Closed | StorageError::Unavailable(_) | StorageError::Unanswered(_) => {
                Self::unavailable(text)
            }
            StorageError::Unknown(_) => Self::unknown(text),
            StorageError::Damaged(_) => Self::data_loss(text),
            StorageError::Failed(_) => Self::internal(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{TaskCompletedEvent, TaskFailedEvent, TaskScheduledEvent};
    use outrigger_wire::scheduler::v1::{JobTargetMetadata, TargetActorReminder, TargetJob};

    use super::*;
    use crate::storage::embedded::{Embedded, Location};
    use crate::triggers;

    #[test]
    fn refuses_requests_for_other_apps() {
        let id = "spiffe://localhost/ns/ns/app".parse().unwrap();
        let caller = Caller::Workload(id);
        assert!(check(&caller, "ns", "app").is_ok());
        for (namespace, app_id) in [("other", "app"), ("ns", "other"), ("ns", "App")] {
            let error = check(&caller, namespace, app_id).unwrap_err();
            assert_eq!(error.code(), tonic::Code::PermissionDenied);
            assert!(
                error.message().starts_with("identity does not match request"),
                "{error}"
            );
        }
        assert!(check(&Caller::Anyone, "any", "app").is_ok());
        for caller in [caller, Caller::Anyone] {
            let error = check(&caller, "", "app").unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
        }
    }

    #[test]
    fn protects_workflow_reminders_of_apps() {
        let caller = Caller::Workload("spiffe://localhost/ns/ns/app".parse().unwrap());
        let metadata = |actor_type: &str| {
            let actor = TargetActorReminder {
                r#type: actor_type.to_owned(),
                id: "a".to_owned(),
            };
            Some(JobMetadata {
                app_id: "app".to_owned(),
                namespace: "ns".to_owned(),
                target: Some(JobTargetMetadata {
                    r#type: Some(Type::Actor(actor)),
                }),
                concurrency_key: None,
            })
        };
        for own in ["counter", "dapr.internal.ns.app.workflow"] {
            assert!(allowed(&caller, metadata(own)).is_ok(), "{own}");
        }
        for other in ["dapr.internal.ns.b.workflow", "dapr.internal.other.app.activity"] {
            let error = allowed(&caller, metadata(other)).unwrap_err();
            assert_eq!(error.code(), tonic::Code::PermissionDenied, "{error}");
            assert!(allowed(&Caller::Anyone, metadata(other)).is_ok());
        }
    }

    /// A request of app `a` for an actor of an app in its namespace.
    fn scheduled_by_a(
        name: &str,
        actor_type: &str,
        id: &str,
        event: EventType,
    ) -> Request<ScheduleJobRequest> {
        let event = HistoryEvent {
            event_type: Some(event),
            ..HistoryEvent::default()
        };
        let mut value = event.encode_to_vec();
        // An unknown field, like the one with which sidecars name the execution of a result.
        value.extend([0xd2, 0x3e, 0x01, b'x']);
        let target = Type::Actor(TargetActorReminder {
            r#type: actor_type.to_owned(),
            id: id.to_owned(),
        });
        let mut request = Request::new(ScheduleJobRequest {
            name: name.to_owned(),
            job: Some(AskedJob {
                due_time: Some("0s".to_owned()),
                data: Some(Any {
                    type_url: "type.googleapis.com/HistoryEvent".to_owned(),
                    value,
                }),
                ..AskedJob::default()
            }),
            metadata: Some(JobMetadata {
                app_id: "a".to_owned(),
                namespace: "ns".to_owned(),
                target: Some(JobTargetMetadata { r#type: Some(target) }),
                concurrency_key: None,
            }),
            overwrite: true,
        });
        let caller = "spiffe://localhost/ns/ns/a".parse().unwrap();
        request.extensions_mut().insert(Caller::Workload(caller));
        request
    }

    #[tokio::test]
    async fn accepts_only_results_across_apps() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location {
            folder: folder.path().to_owned(),
            id: "s".to_owned(),
            quota: i64::MAX,
        };
        let (storage, changes) = Embedded::open(&location).unwrap();
        let storage: Arc<dyn Storage> = storage;
        let metrics = Arc::new(Metrics::default());
        // The driver does not run, so nothing is triggered.
        let (_known, hosts) = tokio::sync::watch::channel(Hosts::from([]));
        let group = triggers::Group {
            own: String::new(),
            hosts: hosts.clone(),
        };
        let (triggers, _driver) = Triggers::new(
            Arc::clone(&storage),
            changes,
            group,
            Arc::clone(&metrics),
            triggers::limits(1),
        );
        let service = Service {
            storage: Arc::clone(&storage),
            triggers,
            metrics,
            hosts,
            over: CancellationToken::new(),
            streams: TaskTracker::new(),
            payloads: Payloads::part(PAYLOADS_PART),
        };
        let completed = || EventType::TaskCompleted(TaskCompletedEvent::default());
        let begins = || EventType::TaskScheduled(TaskScheduledEvent::default());
        let (workflow, result) = ("dapr.internal.ns.b.workflow", "activity-result-x");
        for (name, actor_type, id, event) in [
            (result, "dapr.internal.ns.b.activity", "i::0::0", begins()),
            (result, "dapr.internal.ns.b.activity", "i::0::0", completed()),
            (result, "dapr.internal.ns.b.retentioner", "i", completed()),
            ("activity-result-||rerun-x", workflow, "i", completed()),
            (result, workflow, "i", begins()),
            ("new-event-x", workflow, "i", completed()),
        ] {
            let refused = service
                .schedule_job(scheduled_by_a(name, actor_type, id, event))
                .await;
            let code = refused.map(drop).unwrap_err().code();
            assert_eq!(code, tonic::Code::PermissionDenied, "{name} {actor_type}");
        }
        let failed = EventType::TaskFailed(TaskFailedEvent::default());
        for (name, event) in [(result, completed()), ("activity-result-y_-Z", failed)] {
            let real = scheduled_by_a(name, workflow, "i", event);
            service.schedule_job(real).await.unwrap();
        }
        let own = scheduled_by_a("run-activity", "dapr.internal.ns.a.activity", "i::0::0", begins());
        service.schedule_job(own).await.unwrap();
        storage.close().await;
    }

    #[test]
    fn prefix_stays_within_target() {
        let caller = Caller::Workload("spiffe://localhost/ns/ns/app".parse().unwrap());
        let of = |target: Type| JobMetadata {
            app_id: "app".to_owned(),
            namespace: "ns".to_owned(),
            target: Some(JobTargetMetadata { r#type: Some(target) }),
            concurrency_key: None,
        };
        let actor = |actor_type: &str, id: &str| {
            of(Type::Actor(TargetActorReminder {
                r#type: actor_type.to_owned(),
                id: id.to_owned(),
            }))
        };
        for every_id in [actor("dapr", ""), actor("", "")] {
            assert!(!may_leave_target(&caller, &every_id));
            assert!(!may_leave_target(&Caller::Anyone, &every_id));
        }
        assert!(may_leave_target(&caller, &actor("counter", "a")));
        let job = of(Type::Job(TargetJob {}));
        assert!(!may_leave_target(&caller, &job));
        assert!(may_leave_target(&Caller::Anyone, &job));
    }

    #[test]
    fn refuses_calls_without_identity() {
        let error = called(Request::new(())).unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unauthenticated);
    }
}
