//! A scheduler under test, and a sidecar's side of its contract.

use std::time::Duration;

use outrigger_flags::{Parsed, parse};
use outrigger_scheduler::config::FLAGS;
use outrigger_scheduler::{Addresses, Config, Scheduler};
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{
    ConcurrencyLimit, Job, JobMetadata, JobTargetMetadata, ScheduleJobRequest, TargetActorReminder,
    TargetJob, WatchJobsRequest, WatchJobsRequestInitial, WatchJobsRequestResult,
    WatchJobsRequestResultStatus, WatchJobsResponse, job_target_metadata::Type,
    watch_jobs_request::WatchJobRequestType as Message,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;
use tonic::transport::Channel;

/// Deadline for expected events.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Flags for free ports and a folder.
pub(crate) fn arguments(folder: &std::path::Path) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--port=0",
        "--healthz-port=0",
        "--metrics-port=0",
        "--etcd-client-port=0",
    ]
    .map(str::to_owned)
    .into();
    arguments.push("--listen-address=127.0.0.1".to_owned());
    arguments.push("--etcd-client-listen-address=127.0.0.1".to_owned());
    arguments.push(format!("--etcd-data-dir={}", folder.display()));
    arguments
}

/// A running scheduler, stopped on drop.
pub(crate) struct Running {
    pub(crate) addresses: Addresses,
    folder: TempDir,
    stop: DropGuard,
    ended: JoinHandle<()>,
}

pub(crate) async fn start() -> Running {
    start_with(&[]).await
}

/// Starts it with additional flags.
pub(crate) async fn start_with(more: &[String]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [arguments(folder.path()), more.to_vec()].concat();
    let Ok(Parsed::Run(flags)) = parse(FLAGS, arguments) else {
        panic!("the flags are not understood");
    };
    let config = Config::from_flags(&flags, |_| None).unwrap();
    let drain = CancellationToken::new();
    let scheduler = Scheduler::build(config, |_| None, drain.clone()).await.unwrap();
    let addresses = scheduler.addresses();
    let ended = tokio::spawn(async move { scheduler.run().await.unwrap() });
    Running {
        addresses,
        folder,
        stop: drain.drop_guard(),
        ended,
    }
}

pub(crate) async fn client(address: impl std::fmt::Display) -> SchedulerClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    SchedulerClient::new(endpoint.connect().await.unwrap())
}

impl Running {
    /// Stops it like a signal.
    pub(crate) async fn stop(self) {
        self.stopping().await;
    }

    /// Like `stop`; the future only waits for the end.
    pub(crate) fn stopping(self) -> impl Future<Output = ()> {
        let Self {
            folder, stop, ended, ..
        } = self;
        drop(stop);
        async move {
            ended.await.unwrap();
            drop(folder);
        }
    }

    /// The file of its store.
    pub(crate) fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("default-dapr-scheduler-server-0/jobs.db")
    }

    pub(crate) async fn client(&self) -> SchedulerClient<Channel> {
        client(self.addresses.grpc).await
    }

    /// The response of an HTTP server: status line, head and body.
    pub(crate) async fn http(address: std::net::SocketAddr, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// Metadata of jobs of an app in the namespace `ns`.
pub(crate) fn app(app_id: &str) -> Option<JobMetadata> {
    target(app_id, Type::Job(TargetJob {}))
}

/// Metadata of reminders of an actor.
pub(crate) fn actor(app_id: &str, of: &str, id: &str) -> Option<JobMetadata> {
    let reminder = TargetActorReminder {
        id: id.to_owned(),
        r#type: of.to_owned(),
    };
    target(app_id, Type::Actor(reminder))
}

fn target(app_id: &str, of: Type) -> Option<JobMetadata> {
    Some(JobMetadata {
        app_id: app_id.to_owned(),
        namespace: "ns".to_owned(),
        target: Some(JobTargetMetadata { r#type: Some(of) }),
        concurrency_key: None,
    })
}

/// A request that schedules `job`.
pub(crate) fn schedule(name: &str, metadata: Option<JobMetadata>, job: Job) -> ScheduleJobRequest {
    ScheduleJobRequest {
        name: name.to_owned(),
        job: Some(job),
        metadata,
        overwrite: false,
    }
}

/// A job with a single trigger.
pub(crate) fn due(time: &str) -> Job {
    Job {
        due_time: Some(time.to_owned()),
        ..Job::default()
    }
}

/// A sidecar's stream of triggers.
pub(crate) struct Sidecar {
    answers: mpsc::UnboundedSender<WatchJobsRequest>,
    pub(crate) triggers: Streaming<WatchJobsResponse>,
}

impl Sidecar {
    pub(crate) async fn connect(client: &mut SchedulerClient<Channel>, app_id: &str, types: &[&str]) -> Self {
        let sidecar = Self::try_connect(client, app_id, types).await;
        sidecar.expect("the scheduler accepts streams")
    }

    /// `None` if the scheduler refuses it.
    pub(crate) async fn try_connect(
        client: &mut SchedulerClient<Channel>,
        app_id: &str,
        types: &[&str],
    ) -> Option<Self> {
        Self::with_limits(client, app_id, types, Vec::new()).await
    }

    /// Connects with limits on triggers in flight.
    pub(crate) async fn with_limits(
        client: &mut SchedulerClient<Channel>,
        app_id: &str,
        types: &[&str],
        limits: Vec<ConcurrencyLimit>,
    ) -> Option<Self> {
        let initial = WatchJobsRequestInitial {
            app_id: app_id.to_owned(),
            namespace: "ns".to_owned(),
            actor_types: types.iter().map(|&name| name.to_owned()).collect(),
            accept_job_types: Vec::new(),
            concurrency_limits: limits,
        };
        let (answers, messages) = mpsc::unbounded_channel();
        answers.send(message(Message::Initial(initial))).unwrap();
        let stream = UnboundedReceiverStream::new(messages);
        let triggers = client.watch_jobs(stream).await.ok()?.into_inner();
        Some(Self { answers, triggers })
    }

    pub(crate) async fn next(&mut self) -> WatchJobsResponse {
        let next = tokio::time::timeout(TIMEOUT, self.triggers.message()).await;
        next.expect("nothing was triggered")
            .unwrap()
            .expect("the stream ended")
    }

    pub(crate) fn answer(&self, id: u64, status: WatchJobsRequestResultStatus) {
        let result = WatchJobsRequestResult {
            id,
            status: status.into(),
        };
        // A killed scheduler reads nothing.
        let _ = self.answers.send(message(Message::Result(result)));
    }

    pub(crate) fn succeed(&self, id: u64) {
        self.answer(id, WatchJobsRequestResultStatus::Success);
    }

    pub(crate) fn fail(&self, id: u64) {
        self.answer(id, WatchJobsRequestResultStatus::Failed);
    }
}

fn message(message: Message) -> WatchJobsRequest {
    WatchJobsRequest {
        watch_job_request_type: Some(message),
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, holds: impl FnMut() -> F) {
    until_within(TIMEOUT, what, holds).await;
}

/// Like `until`, with another deadline.
pub(crate) async fn until_within<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(limit, waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}: not in time"));
}
