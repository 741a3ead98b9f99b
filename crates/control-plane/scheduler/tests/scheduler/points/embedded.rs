//! On the embedded store: the process is killed at every occurrence of each point.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_wire::common::v1::{JobFailurePolicy, JobFailurePolicyConstant, job_failure_policy};
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{DeleteJobRequest, GetJobRequest, Job};
use tonic::Code;
use tonic::transport::Channel;

use super::{LIST, Place, Said, VARIABLE, at_each, set};
use crate::crash::Process;
use crate::running::{Sidecar, TIMEOUT, app, arguments, client, due, schedule, until};
use crate::tally::Tally;

/// All fault points: new ones must be added here and reached.
const PLACES: [&str; 9] = [
    "answered",
    "before a caller is told",
    "before a change is told",
    "before it is committed",
    "begun",
    "committed",
    "given to the store",
    "part written",
    "progress written",
];
/// Number of parallel processes.
const LANES: usize = 4;

/// The state known to clients of the killed process.
#[derive(Default)]
struct Known {
    /// Requested jobs and their due times. A job without an answer may or may not be stored.
    asked: HashMap<String, Timestamp>,
    acknowledged: BTreeMap<String, Timestamp>,
    /// Jobs reported as ended.
    over: BTreeSet<String>,
    fired: HashMap<String, Vec<Timestamp>>,
    /// Whether the job to delete is stored, may be deleted, is deleted.
    stored: bool,
    may_be_deleted: bool,
    deleted: bool,
}

impl Known {
    fn take(&mut self, name: &str) {
        assert!(!self.over.contains(name), "{name} was triggered after its end");
        let now = Timestamp::now();
        assert!(now >= self.asked[name], "{name} is early");
        self.fired.entry(name.to_owned()).or_default().push(now);
    }

    /// All kinds of writes: jobs of each kind, failed and successful triggers, a deletion. `None` once the
    /// process is gone.
    async fn live(&mut self, address: &str) -> Option<()> {
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        let mut client = SchedulerClient::new(endpoint.connect().await.ok()?);
        let mut sidecar = Sidecar::try_connect(&mut client, "app", &[]).await?;
        for (name, after) in [("now", 0), ("tried", 0), ("soon", 150)] {
            let time = Timestamp::now() + Duration::from_millis(after);
            let at_once = job_failure_policy::Policy::Constant(JobFailurePolicyConstant {
                interval: None,
                max_retries: None,
            });
            let job = Job {
                failure_policy: Some(JobFailurePolicy {
                    policy: Some(at_once),
                }),
                ..due(&time.to_string())
            };
            self.asked.insert(name.to_owned(), time);
            let request = schedule(name, app("app"), job);
            client.schedule_job(request).await.ok()?;
            self.acknowledged.insert(name.to_owned(), time);
        }
        let request = schedule("deleted", app("app"), due("1h"));
        client.schedule_job(request).await.ok()?;
        self.stored = true;
        self.may_be_deleted = true;
        let delete = DeleteJobRequest {
            name: "deleted".to_owned(),
            metadata: app("app"),
        };
        client.delete_job(delete).await.ok()?;
        self.deleted = true;
        while self.over.len() < self.acknowledged.len() {
            let next = tokio::time::timeout(TIMEOUT, sidecar.triggers.message()).await;
            let trigger = next.expect("a job is lost while the process runs").ok()??;
            self.take(&trigger.name);
            if trigger.name == "tried" && self.fired["tried"].len() == 1 {
                sidecar.fail(trigger.id);
                continue;
            }
            sidecar.succeed(trigger.id);
            while exists(&mut client, &trigger.name).await? {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.over.insert(trigger.name);
        }
        Some(())
    }

    /// Checks the next process.
    async fn go_on(&mut self, folder: &Path) {
        let process = Process::start_with(&arguments(folder));
        let mut client = client(&process.address).await;
        let there = exists(&mut client, "deleted").await.unwrap();
        assert!(!(there && self.deleted), "a deleted job exists again");
        assert!(
            there || !self.stored || self.may_be_deleted,
            "an acknowledged job is lost"
        );
        let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
        let all: Vec<String> = self.asked.keys().cloned().collect();
        let over = async {
            for name in &all {
                let client = client.clone();
                until("all jobs are triggered and end", || {
                    let (mut client, name) = (client.clone(), name.clone());
                    async move { !exists(&mut client, &name).await.unwrap() }
                })
                .await;
            }
        };
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                trigger = sidecar.triggers.message() => {
                    let trigger = trigger.unwrap().expect("it runs");
                    self.take(&trigger.name);
                    sidecar.succeed(trigger.id);
                }
            }
        }
    }
}

/// Whether the job exists; `None` once the process is gone.
async fn exists(client: &mut SchedulerClient<Channel>, name: &str) -> Option<bool> {
    let request = GetJobRequest {
        name: name.to_owned(),
        metadata: app("app"),
    };
    match client.get_job(request).await {
        Ok(_) => Some(true),
        Err(status) if status.code() == Code::NotFound => Some(false),
        Err(_) => None,
    }
}

/// Runs a process with this point, and the one after it; returns the printed points and the fate of jobs.
async fn life(point: &str) -> (Said, Tally) {
    let (folder, said) = (tempfile::tempdir().unwrap(), Said::new());
    let process = Process::try_start(&arguments(folder.path()), &[(VARIABLE, point)], said.file());
    let mut known = Known::default();
    let lived = match &process {
        Some(process) => known.live(&process.address).await,
        None => None,
    };
    // Kills it if it still runs.
    drop(process);
    let has_died = !said.places().is_empty();
    assert!(
        lived.is_some() || has_died,
        "the process was not killed: {}",
        said.text()
    );
    known.go_on(folder.path()).await;
    let tally = Tally::of(&known.acknowledged, |name| {
        known.fired.get(name).cloned().unwrap_or_default()
    });
    (said, tally)
}

async fn dies((): (), place: Place) -> ((), bool, Tally) {
    let (said, tally) = life(&place.variable()).await;
    ((), !said.places().is_empty(), tally)
}

/// Invariant: wherever in a write the process is killed, no acknowledged job is lost. None fires early or
/// after its reported end, and deleted jobs stay deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_survives_kill_at_every_point() {
    let listed = life(LIST).await.0.places();
    let places = Place::all(&listed, usize::MAX);
    let (died, total) = at_each(places, vec![(); LANES], dies).await;
    assert_eq!(died, set(&[&PLACES]));
    total.report("kill -9 between every two steps of a write");
}
