//! Calls of the scheduler API, spread over all schedulers.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_backoff::Backoff;
use outrigger_transport::conn::{Channel, SendError};
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{
    DeleteByMetadataRequest, DeleteByNamePrefixRequest, DeleteJobRequest, GetJobRequest, Job, JobMetadata,
    ListJobsRequest, NamedJob, ScheduleJobRequest,
};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Response, Status};

use super::Scheduler;
use super::hosts::Host;

/// How long a call may wait for a connection to a scheduler.
const REACH_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit of a call, including [`REACH_TIMEOUT`]: a scheduler may itself wait for its store.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The features that need a scheduler, and the remedy.
pub const WITHOUT: &str =
    "jobs, actor reminders and workflows need a scheduler (give its address with --scheduler-host-address)";
/// Backoff between attempts. The deadline bounds them, not a resiliency policy: no policy target covers the
/// scheduler.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Why a scheduler call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SchedulerError {
    /// No scheduler is configured.
    // The contract's prefix.
    #[error("scheduler clients are disabled: {WITHOUT}")]
    Disabled,
    /// The scheduler rejected the call or was unreachable.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), described(.0))]
    Status(Status),
}

impl SchedulerError {
    /// The scheduler's code.
    pub fn code(&self) -> Code {
        match self {
            Self::Disabled => Code::Unknown,
            Self::Status(status) => status.code(),
        }
    }
}

/// The message of a status, or the local error that prevented an answer.
pub(super) fn described(status: &Status) -> String {
    match unsent(status) {
        Some(error) => outrigger_transport::error::chain(error),
        None => status.message().to_owned(),
    }
}

/// The local error of a call without an answer.
fn unsent(status: &Status) -> Option<&SendError> {
    std::error::Error::source(status)?.downcast_ref()
}

/// Whether to retry a failed call on another scheduler.
fn should_retry(status: &Status, idempotent: bool) -> bool {
    match unsent(status) {
        Some(error) => error.is_repeatable() || (idempotent && error.is_unavailable()),
        // The scheduler is shutting down, or its leader changes.
        None => status.code() == Code::Cancelled,
    }
}

impl Scheduler {
    /// Stores a job or a reminder; `overwrite`: replaces one of the same name.
    ///
    /// # Errors
    /// [`SchedulerError`] with the code `AlreadyExists` if the name exists and `overwrite` is false.
    pub async fn schedule(
        &self,
        name: &str,
        metadata: JobMetadata,
        job: Job,
        overwrite: bool,
    ) -> Result<(), SchedulerError> {
        let request = ScheduleJobRequest {
            name: name.to_owned(),
            job: Some(job),
            metadata: Some(metadata),
            overwrite,
        };
        let call = self.call(overwrite, |mut client| {
            let request = request.clone();
            async move { client.schedule_job(request).await }
        });
        call.await.map(|_| ())
    }

    /// Reads a job or a reminder.
    ///
    /// # Errors
    /// [`SchedulerError`] with the code `NotFound` if it does not exist.
    pub async fn get(&self, name: &str, metadata: JobMetadata) -> Result<Job, SchedulerError> {
        let request = GetJobRequest {
            name: name.to_owned(),
            metadata: Some(metadata),
        };
        let call = self.call(true, |mut client| {
            let request = request.clone();
            async move { client.get_job(request).await }
        });
        Ok(call.await?.job.unwrap_or_default())
    }

    /// Deletes a job or a reminder; succeeds if there is none.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn delete(&self, name: &str, metadata: JobMetadata) -> Result<(), SchedulerError> {
        let request = DeleteJobRequest {
            name: name.to_owned(),
            metadata: Some(metadata),
        };
        let call = self.call(true, |mut client| {
            let request = request.clone();
            async move { client.delete_job(request).await }
        });
        call.await.map(|_| ())
    }

    /// Lists the jobs of an app, or the reminders of an actor or of an actor type.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn list(&self, metadata: JobMetadata) -> Result<Vec<NamedJob>, SchedulerError> {
        let request = ListJobsRequest {
            metadata: Some(metadata),
        };
        let call = self.call(true, |mut client| {
            let request = request.clone();
            async move { client.list_jobs(request).await }
        });
        Ok(call.await?.jobs)
    }

    /// Deletes all jobs of an app or all reminders of actors; `id_prefix`: of all actors whose ids start with
    /// the given one.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn delete_all(&self, metadata: JobMetadata, id_prefix: bool) -> Result<(), SchedulerError> {
        let request = DeleteByMetadataRequest {
            metadata: Some(metadata),
            id_prefix_match: Some(id_prefix),
        };
        let call = self.call(true, |mut client| {
            let request = request.clone();
            async move { client.delete_by_metadata(request).await }
        });
        call.await.map(|_| ())
    }

    /// Deletes jobs of an app or reminders of an actor whose names start with `prefix`.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn delete_prefix(&self, prefix: &str, metadata: JobMetadata) -> Result<(), SchedulerError> {
        let request = DeleteByNamePrefixRequest {
            name_prefix: prefix.to_owned(),
            metadata: Some(metadata),
        };
        let call = self.call(true, |mut client| {
            let request = request.clone();
            async move { client.delete_by_name_prefix(request).await }
        });
        call.await.map(|_| ())
    }

    /// Calls one scheduler after the other, as long as none can have acted on the call. An `idempotent` call
    /// is also retried if one may have.
    async fn call<T, F>(
        &self,
        idempotent: bool,
        call: impl Fn(SchedulerClient<Channel>) -> F,
    ) -> Result<T, SchedulerError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        if !self.is_configured() {
            return Err(SchedulerError::Disabled);
        }
        self.attempt(idempotent, call)
            .await
            .map_err(SchedulerError::Status)
    }

    async fn attempt<T, F>(
        &self,
        idempotent: bool,
        call: impl Fn(SchedulerClient<Channel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let now = Instant::now();
        let (deadline, mut reach_by) = (now + CALL_TIMEOUT, now + REACH_TIMEOUT);
        let (mut pauses, mut last) = (BACKOFF, Cow::Borrowed("no scheduler is known yet"));
        loop {
            let reached = timeout_at(reach_by, self.reached(&mut pauses, &mut last)).await;
            let host = reached.unwrap_or_else(|_| {
                let addresses = self.settings.addresses.join(",");
                Err(Status::deadline_exceeded(format!(
                    "no answer from a scheduler at {addresses} within {REACH_TIMEOUT:?}: {last} (check that it runs, and \
                     --scheduler-host-address)"
                )))
            })?;
            let sent = Instant::now();
            let called = timeout_at(deadline, call(host.client())).await;
            let status = match called {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => {
                    let address = host.address();
                    return Err(Status::deadline_exceeded(format!(
                        "no answer from the scheduler at {address} within {CALL_TIMEOUT:?}"
                    )));
                }
            };
            if !should_retry(&status, idempotent) {
                return Err(status);
            }
            reach_by = deadline.min(reach_by + sent.elapsed());
            last = Cow::Owned(described(&status));
            sleep(pauses.pause()).await;
        }
    }

    /// The first scheduler that accepts a connection; `last` is set to why none has so far.
    async fn reached(&self, pauses: &mut Backoff, last: &mut Cow<'_, str>) -> Result<Arc<Host>, Status> {
        loop {
            let host = self.next().await?;
            *last = Cow::Borrowed("no answer");
            match host.connect().await {
                Ok(()) => return Ok(host),
                Err(error) => *last = Cow::Owned(outrigger_transport::error::chain(&error)),
            }
            sleep(pauses.pause()).await;
        }
    }

    /// The next scheduler in turn, once one is known.
    async fn next(&self) -> Result<Arc<Host>, Status> {
        let mut hosts = self.hosts.subscribe();
        let known = hosts.wait_for(|hosts| hosts.as_ref().is_some_and(|hosts| !hosts.is_empty()));
        // `self` owns the sender, so this fails only during shutdown.
        let known = known
            .await
            .map_err(|_| Status::cancelled("the sidecar is shutting down"))?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let host = known.as_ref().and_then(|hosts| hosts.get(turn % hosts.len()));
        host.map(Arc::clone)
            .ok_or_else(|| Status::unavailable("no scheduler is known"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn scheduler(addresses: &[&str]) -> Arc<Scheduler> {
        Scheduler::new(Settings {
            app_id: "app".into(),
            namespace: "ns".into(),
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            streams: 1,
            identity: None,
            max_message: 0,
            limits: Vec::new(),
        })
    }

    #[tokio::test]
    async fn disabled_error_names_flag_and_features() {
        let scheduler = scheduler(&[]);
        let error = scheduler.list(scheduler.of_app()).await.unwrap_err().to_string();
        let more = error.strip_prefix("scheduler clients are disabled: ").unwrap();
        for part in ["jobs", "reminders", "workflows", "--scheduler-host-address"] {
            assert!(more.contains(part), "{part}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_scheduler_fails_within_five_seconds() {
        // A bound port without a listener refuses connections.
        let closed = tokio::net::TcpSocket::new_v4().unwrap();
        closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = closed.local_addr().unwrap().to_string();
        let scheduler = scheduler(&[&address]);
        for known in [false, true] {
            if known {
                scheduler.know([address.as_str()].into_iter());
            }
            let started = Instant::now();
            let called = scheduler.schedule("job", scheduler.of_app(), Job::default(), false);
            let error = called.await.unwrap_err();
            assert!(started.elapsed() <= Duration::from_secs(5), "known: {known}");
            assert_eq!(error.code(), Code::DeadlineExceeded);
            let text = error.to_string();
            assert!(
                text.contains(&address) && text.contains("--scheduler-host-address"),
                "{text}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reached_scheduler_has_thirty_seconds() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let scheduler = scheduler(&[&address]);
        scheduler.know([address.as_str()].into_iter());
        let slow = scheduler.call(false, |_| async {
            sleep(Duration::from_secs(29)).await;
            Ok(Response::new(()))
        });
        slow.await.unwrap();

        let started = Instant::now();
        let silent = scheduler.call(false, |_| std::future::pending::<Result<Response<()>, Status>>());
        let error = silent.await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert_eq!(started.elapsed().as_secs(), 30);
        let text = error.to_string();
        assert!(
            text.contains(&address) && !text.contains("check that it runs"),
            "{text}"
        );
    }
}
