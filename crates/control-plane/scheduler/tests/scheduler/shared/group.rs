//! A group of schedulers on one store, and an app with a sidecar at each of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{WatchHostsRequest, WatchHostsResponse};
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::running::{Sidecar, TIMEOUT, app, client, due, schedule, until, until_within};
use crate::tally::Tally;

/// Schedules single-trigger jobs for the app, a quarter of a second apart; returns their names and due times.
pub(crate) async fn schedule_in_turn(
    client: &mut SchedulerClient<Channel>,
    count: u64,
) -> Vec<(String, Timestamp)> {
    let mut dues = Vec::new();
    for at in 0..count {
        let due_at = Timestamp::now() + Duration::from_millis(at * 250);
        let name = format!("job-{at}");
        client
            .schedule_job(schedule(&name, app("app"), due(&due_at.to_string())))
            .await
            .unwrap();
        dues.push((name, due_at));
    }
    dues
}

/// The triggers that an app received, by job name, with their times.
#[derive(Clone, Default)]
pub(crate) struct App(Arc<Mutex<HashMap<String, Vec<Timestamp>>>>);

impl App {
    /// Receives triggers of a scheduler until it stops or the result is dropped. Like a sidecar, it reopens a
    /// stream that ends.
    pub(crate) async fn serve(&self, address: impl std::fmt::Display) -> AbortOnDropHandle<()> {
        self.serve_as("app", address).await
    }

    /// Like `serve`, with another app id.
    pub(crate) async fn serve_as(&self, id: &str, address: impl std::fmt::Display) -> AbortOnDropHandle<()> {
        let mut client = client(address).await;
        let mut sidecar = Sidecar::connect(&mut client, id, &[]).await;
        let (app, id) = (self.clone(), id.to_owned());
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                while let Ok(Some(trigger)) = sidecar.triggers.message().await {
                    app.0
                        .lock()
                        .unwrap()
                        .entry(trigger.name)
                        .or_default()
                        .push(Timestamp::now());
                    sidecar.succeed(trigger.id);
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
                let Some(again) = Sidecar::try_connect(&mut client, &id, &[]).await else {
                    continue;
                };
                sidecar = again;
            }
        }))
    }

    /// The times at which a job was triggered.
    pub(crate) fn times(&self, name: &str) -> Vec<Timestamp> {
        self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
    }

    /// Prints the fate of acknowledged single-trigger jobs, and fails if one is lost or early.
    pub(crate) fn tally<'a>(&self, jobs: impl IntoIterator<Item = (&'a String, &'a Timestamp)>, fault: &str) {
        Tally::of(jobs, |name| self.times(name)).report(fault);
    }

    /// Waits until all of these were triggered, including takeovers.
    pub(crate) async fn has(&self, names: impl Iterator<Item = String> + Clone) {
        let mut missing: Vec<String> = names.collect();
        let waiting = until_within(TIMEOUT * 2, "all jobs are triggered", || {
            missing.retain(|name| self.times(name).is_empty());
            std::future::ready(missing.is_empty())
        });
        waiting.await;
    }

    /// Waits until this many of these became due, from now on, without being triggered.
    pub(crate) async fn misses(&self, jobs: &[(String, Timestamp)], count: usize) {
        let begun = Timestamp::now();
        until("jobs are late", || {
            let now = Timestamp::now();
            let late = jobs
                .iter()
                .filter(|(name, due)| (begun..now).contains(due) && self.times(name).is_empty());
            std::future::ready(late.count() >= count)
        })
        .await;
    }
}

/// The lists of hosts that a scheduler announces.
pub(crate) struct Hosts(Streaming<WatchHostsResponse>);

impl Hosts {
    pub(crate) async fn of(address: impl std::fmt::Display) -> Self {
        let mut client = client(address).await;
        let lists = client.watch_hosts(WatchHostsRequest {}).await.unwrap();
        Self(lists.into_inner())
    }

    /// Waits for a list with this many hosts.
    pub(crate) async fn are(&mut self, count: usize) -> Vec<String> {
        let waiting = async {
            loop {
                let list = self.0.message().await.unwrap().expect("the scheduler runs");
                let mut hosts: Vec<String> = list.hosts.into_iter().map(|host| host.address).collect();
                if hosts.len() == count {
                    hosts.sort_unstable();
                    return hosts;
                }
            }
        };
        tokio::time::timeout(TIMEOUT * 2, waiting)
            .await
            .expect("the list of hosts does not arrive")
    }
}
