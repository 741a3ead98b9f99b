//! A running sidecar: on threads of the test process, or as a separate process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use outrigger_runtime::life::Shutdown;
use outrigger_sidecar::sidecar::SidecarError;
use outrigger_transport::body::Body;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::net::Ports;
use super::{Answer, TIMEOUT, client, eventually, get, within};

/// A sidecar in a separate process, killed on drop.
pub struct Process {
    pub ports: Ports,
    pub(super) child: std::process::Child,
    pub(super) folder: TempDir,
}

impl Process {
    /// Waits until it is ready; false if it has exited, for example because its ports were taken.
    pub(super) async fn is_ready(&mut self) -> bool {
        let mut is_over = false;
        eventually(async || {
            is_over = self.child.try_wait().unwrap().is_some();
            let open = async || TcpStream::connect(("127.0.0.1", self.ports.http)).await.is_ok();
            is_over
                || (open().await
                    && self
                        .try_ask(get("/v1.0/healthz"))
                        .await
                        .is_some_and(|a| a.status == 204))
        })
        .await;
        !is_over
    }

    /// The response to a request to the HTTP API; `None` if the process exits before.
    pub async fn try_ask(&self, request: Request<Body>) -> Option<Answer> {
        let answer = client::try_send(self.ports.http, request).await?;
        Answer::try_read(answer).await
    }

    /// Folder of its resource files.
    pub fn resources(&self) -> PathBuf {
        self.folder.path().join("resources")
    }

    /// Sends it a signal such as `HUP`.
    pub fn signal(&self, name: &str) {
        let mut kill = std::process::Command::new("kill");
        let sent = kill.args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end; returns its exit code.
    pub async fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap().code()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _already_over = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The threads of one sidecar. Dropping this ends everything on them.
pub(super) struct Threads {
    data: Option<Runtime>,
    control: Option<Runtime>,
}

impl Threads {
    pub(super) fn start() -> Self {
        let start = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        };
        Self {
            data: Some(start()),
            control: Some(start()),
        }
    }

    pub(super) fn data(&self) -> &Runtime {
        self.data.as_ref().expect("until the data plane ends")
    }

    pub(super) fn control(&self) -> &Runtime {
        self.control.as_ref().expect("until dropped")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for runtime in [self.data.take(), self.control.take()].into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// A running sidecar. Dropping it is like killing its process.
pub struct Node {
    pub ports: Ports,
    pub shutdown: Shutdown,
    pub(super) task: JoinHandle<Result<(), SidecarError>>,
    pub(super) threads: Threads,
    pub(super) folder: TempDir,
}

impl Node {
    /// Ends its data plane threads, like the process at the end of the grace period.
    pub async fn end_data_plane(&mut self) {
        let data = self.threads.data.take().expect("once");
        let ended = tokio::task::spawn_blocking(move || data.shutdown_timeout(TIMEOUT));
        ended.await.unwrap();
    }

    /// Sends a request to the HTTP API and waits for the response head.
    pub async fn send(&self, request: Request<Body>) -> Response<Incoming> {
        client::send(self.ports.http, request).await.unwrap()
    }

    /// Sends a request to the HTTP API and waits for the whole response.
    pub async fn ask(&self, request: Request<Body>) -> Answer {
        Answer::read(self.send(request).await).await
    }

    /// The value of a metric: the line that starts with its name and has all of these labels
    /// (`name="value"`).
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let answer = client::send(self.ports.metrics, get("/metrics")).await.unwrap();
        let answer = Answer::read(answer).await;
        let wanted = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|r| r.starts_with(['{', ' '])) && labels.iter().all(|l| line.contains(l))
        };
        let line = answer.text().lines().find(wanted)?;
        Some(line.rsplit_once(' ')?.1.parse().unwrap())
    }

    /// Waits until a metric has this value, because a call may be counted after its response.
    pub async fn counts(&self, name: &str, labels: &[&str], value: f64) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let counted = self.metric(name, labels).await;
            if counted == Some(value) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{name} {labels:?}: {counted:?} instead of {value}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it has stopped, by itself or on request.
    pub async fn ended(mut self) -> Result<(), SidecarError> {
        within(&mut self.task).await.unwrap()
    }

    /// A private folder of this sidecar.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Folder of its resource files: `0.yaml` and so on, in order.
    pub fn resources(&self) -> PathBuf {
        self.folder().join("resources")
    }

    /// Whether it has stopped.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Shuts down gracefully.
    pub async fn stop(self) -> Result<(), SidecarError> {
        self.shutdown.begin();
        self.ended().await
    }
}
