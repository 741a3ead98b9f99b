//! On etcd and on PostgreSQL: one scheduler starts alone and performs all writes, another joins and gets a
//! part of the jobs, and the first one stops. The first is killed at each point, and the other takes over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_wire::common::v1::{JobFailurePolicy, JobFailurePolicyConstant, job_failure_policy};
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{
    DeleteByMetadataRequest, DeleteByNamePrefixRequest, DeleteJobRequest, Job,
};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use super::store::Store;
use super::{ETCD, LIST, POSTGRES, Place, Said, VARIABLE, at_each, set};
use crate::crash::Process;
use crate::running::{Running, Sidecar, TIMEOUT, app, arguments, client, due, schedule, start_with, until};
use crate::shared::group::Hosts;
use crate::tally::Tally;

/// Fault points of all shared stores: new ones must be added here and reached.
const PLACES: [&str; 13] = [
    "answered",
    "answers awaited",
    "answers stored",
    "before a caller is told",
    "before a change is told",
    "before the lease is given back",
    "entry written",
    "given to the store",
    "jobs released",
    "lease given back",
    "lease granted",
    "place taken",
    "progress stored",
];
/// Number of parallel stores: etcd processes, and databases of one server.
const ETCDS: usize = 6;
const DATABASES: usize = 8;
/// Ids of the killed scheduler and of the surviving one.
const VICTIM: &str = "a-victim";
const OTHER: &str = "b-other";
/// Due time of jobs whose owner changes in between.
const MOVING: Duration = Duration::from_millis(150);

/// The triggers that an app received from any scheduler.
#[derive(Default)]
struct Served {
    fired: HashMap<String, Vec<Timestamp>>,
    /// Jobs stored as ended.
    over: BTreeSet<String>,
    /// Jobs triggered after their end.
    again: Vec<String>,
}

#[derive(Clone, Default)]
struct App(Arc<Mutex<Served>>);

impl App {
    fn served(&self) -> std::sync::MutexGuard<'_, Served> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a trigger; returns whether the job ends with it.
    fn take(&self, name: &str) -> bool {
        let mut served = self.served();
        if served.over.contains(name) {
            served.again.push(name.to_owned());
        }
        let times = served.fired.entry(name.to_owned()).or_default();
        times.push(Timestamp::now());
        name != "tried" || times.len() > 1
    }

    /// Receives triggers of a scheduler until it stops; `None` once it is gone.
    async fn serve(&self, client: &mut SchedulerClient<Channel>) -> Option<AbortOnDropHandle<()>> {
        let mut sidecar = Sidecar::try_connect(client, "app", &[]).await?;
        let app = self.clone();
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok(Some(trigger)) = sidecar.triggers.message().await {
                match app.take(&trigger.name) {
                    true => sidecar.succeed(trigger.id),
                    false => sidecar.fail(trigger.id),
                }
            }
        })))
    }
}

/// Jobs deleted by one call.
#[derive(Default)]
struct Doomed {
    keys: Vec<String>,
    stored: bool,
    asked: bool,
    answered: bool,
}

/// One life of the victim, and the state known to its clients.
struct Case<'a> {
    store: &'a Store,
    said: &'a Said,
    app: App,
    /// Requested jobs and their due times. A job without an answer may or may not be stored.
    asked: BTreeMap<String, Timestamp>,
    acknowledged: BTreeMap<String, Timestamp>,
    doomed: Vec<Doomed>,
    other: Option<(Running, AbortOnDropHandle<()>)>,
    /// Number of points at the start of each phase.
    phases: Vec<usize>,
}

fn key(folder: &str, app: &str, name: &str) -> String {
    format!("dapr/{folder}/app||ns||{app}||{name}")
}

fn job(name: &str) -> String {
    key("jobs", "app", name)
}

impl Case<'_> {
    fn phase(&mut self) {
        self.phases.push(self.said.places().len());
    }

    /// Waits for a stored state; `None` once the victim is gone.
    async fn stored(
        &self,
        victim: &mut Process,
        what: &str,
        holds: impl Fn(&BTreeMap<String, Vec<u8>>) -> bool,
    ) -> Option<()> {
        let begun = Instant::now();
        while !holds(&self.store.pairs().await) {
            if victim.has_ended() {
                return None;
            }
            assert!(begun.elapsed() < TIMEOUT, "{what}: not in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Some(())
    }

    async fn schedule(
        &mut self,
        client: &mut SchedulerClient<Channel>,
        name: &str,
        after: Duration,
        again: Option<&str>,
    ) -> Option<()> {
        let time = Timestamp::now() + after;
        let at_once = job_failure_policy::Policy::Constant(JobFailurePolicyConstant {
            interval: None,
            max_retries: None,
        });
        let job = Job {
            schedule: again.map(str::to_owned),
            failure_policy: Some(JobFailurePolicy {
                policy: Some(at_once),
            }),
            ..due(&time.to_string())
        };
        self.asked.insert(name.to_owned(), time);
        client.schedule_job(schedule(name, app("app"), job)).await.ok()?;
        self.acknowledged.insert(name.to_owned(), time);
        Some(())
    }

    /// Stores jobs that will be deleted.
    async fn doom(&mut self, client: &mut SchedulerClient<Channel>, of: &str, names: &[&str]) -> Option<()> {
        let keys = names.iter().map(|name| key("jobs", of, name)).collect();
        self.doomed.push(Doomed {
            keys,
            ..Doomed::default()
        });
        for name in names {
            let request = schedule(name, app(of), due("1h"));
            client.schedule_job(request).await.ok()?;
        }
        self.doomed.last_mut().unwrap().stored = true;
        Some(())
    }

    fn over(&self, names: &[&str]) {
        let names = names.iter().map(|&name| name.to_owned());
        self.app.served().over.extend(names);
    }

    /// All kinds of writes and takeovers. `None` once the victim is gone.
    async fn live(&mut self, victim: &mut Process) -> Option<()> {
        let entry = format!("dapr/leadership/{VICTIM}");
        self.stored(victim, "it joins", |pairs| pairs.contains_key(&entry))
            .await?;
        let endpoint = Channel::from_shared(format!("http://{}", victim.address)).unwrap();
        let mut client = SchedulerClient::new(endpoint.connect().await.ok()?);

        self.phase();
        for (name, again) in [("now", None), ("tried", None), ("again", Some("@every 1h"))] {
            self.schedule(&mut client, name, Duration::ZERO, again).await?;
        }
        self.doom(&mut client, "app", &["deleted"]).await?;
        self.doom(&mut client, "app", &["prefix-1", "prefix-2"]).await?;
        self.doom(&mut client, "gone", &["all-1", "all-2"]).await?;

        self.phase();
        let _serving = self.app.serve(&mut client).await?;
        let counter = key("counters", "app", "again");
        self.stored(victim, "the answers are stored", |pairs| {
            let done = ["now", "tried"]
                .iter()
                .all(|name| !pairs.contains_key(&job(name)));
            done && pairs.contains_key(&counter)
        })
        .await?;
        self.over(&["now", "tried", "again"]);

        self.phase();
        self.doomed[0].asked = true;
        let request = DeleteJobRequest {
            name: "deleted".to_owned(),
            metadata: app("app"),
        };
        client.delete_job(request).await.ok()?;
        self.doomed[0].answered = true;

        // The store treats the next two alike.
        self.phase();
        self.doomed[1].asked = true;
        let request = DeleteByNamePrefixRequest {
            name_prefix: "prefix-".to_owned(),
            metadata: app("app"),
        };
        client.delete_by_name_prefix(request).await.ok()?;
        self.doomed[1].answered = true;
        self.doomed[2].asked = true;
        let request = DeleteByMetadataRequest {
            metadata: app("gone"),
            id_prefix_match: None,
        };
        client.delete_by_metadata(request).await.ok()?;
        self.doomed[2].answered = true;

        self.phase();
        let moved = ["moved-1", "moved-2", "moved-3", "moved-4"];
        for name in moved {
            self.schedule(&mut client, name, MOVING, None).await?;
        }
        let address = self.other().await;
        let mut hosts = Hosts::of(address).await;
        tokio::select! {
            _ = hosts.are(2) => {}
            () = gone(victim) => return None,
        }
        self.stored(victim, "moved jobs are triggered", |pairs| {
            moved.iter().all(|name| !pairs.contains_key(&job(name)))
        })
        .await?;
        self.over(&moved);

        self.phase();
        victim.terminate();
        gone(victim).await;
        Some(())
    }

    /// Starts the other scheduler; returns its address.
    async fn other(&mut self) -> std::net::SocketAddr {
        if self.other.is_none() {
            let running = start_with(&self.store.flags(OTHER)).await;
            let serving = self.app.serve(&mut running.client().await).await.unwrap();
            self.other = Some((running, serving));
        }
        self.other.as_ref().unwrap().0.addresses.grpc
    }

    /// Checks that the other scheduler has all acknowledged jobs and nothing else.
    async fn go_on(mut self) -> Tally {
        let store = self.store;
        let address = self.other().await;
        until("the other scheduler owns all jobs", || async {
            store.lease_ends(VICTIM).await;
            store.members().await == [OTHER]
        })
        .await;
        for doomed in &self.doomed {
            let pairs = store.pairs().await;
            let left = doomed.keys.iter().filter(|key| pairs.contains_key(*key)).count();
            let all = doomed.keys.len();
            assert!(left == 0 || !doomed.answered, "a deleted job exists again");
            assert!(left == all || !doomed.stored || doomed.asked, "jobs are lost");
            let is_whole = left == 0 || left == all || !doomed.stored;
            assert!(is_whole, "{left} of {all} were deleted");
        }
        let (asked, counter) = (self.asked.clone(), key("counters", "app", "again"));
        until("all jobs are triggered and end", || async {
            let pairs = store.pairs().await;
            asked.keys().all(|name| {
                !pairs.contains_key(&job(name)) || name == "again" && pairs.contains_key(&counter)
            })
        })
        .await;
        let mut client = client(address).await;
        for of in ["app", "gone"] {
            let request = DeleteByMetadataRequest {
                metadata: app(of),
                id_prefix_match: None,
            };
            client.delete_by_metadata(request).await.unwrap();
        }
        let left = store.pairs().await;
        let entry = format!("dapr/leadership/{OTHER}");
        assert_eq!(
            left.keys().collect::<Vec<_>>(),
            [&entry],
            "entries are left in the store"
        );
        store.no_lease_stays().await;
        let (running, serving) = self.other.take().unwrap();
        running.stop().await;
        drop(serving);
        assert_eq!(store.pairs().await, BTreeMap::new());
        let served = self.app.served();
        assert_eq!(
            served.again,
            Vec::<String>::new(),
            "triggered after the end was stored"
        );
        Tally::of(&self.acknowledged, |name| {
            served.fired.get(name).cloned().unwrap_or_default()
        })
    }
}

async fn gone(process: &mut Process) {
    let begun = Instant::now();
    while !process.has_ended() {
        assert!(begun.elapsed() < TIMEOUT, "the process does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a scheduler with this point, and the other one; returns the printed points, the starts of phases, and
/// the fate of jobs.
async fn life(store: &Store, point: &str) -> (Said, Vec<usize>, Tally) {
    let (folder, said) = (tempfile::tempdir().unwrap(), Said::new());
    let flags = [arguments(folder.path()), store.flags(VICTIM)].concat();
    let mut victim = Process::try_start(&flags, &[(VARIABLE, point)], said.file());
    let mut case = Case {
        store,
        said: &said,
        app: App::default(),
        asked: BTreeMap::new(),
        acknowledged: BTreeMap::new(),
        doomed: Vec::new(),
        other: None,
        phases: vec![0],
    };
    let lived = match &mut victim {
        Some(victim) => case.live(victim).await,
        None => None,
    };
    let has_died = !said.places().is_empty();
    assert!(
        lived.is_some() || has_died,
        "the process was not killed: {}",
        said.text()
    );
    drop(victim);
    let phases = case.phases.clone();
    let tally = case.go_on().await;
    store.clear().await;
    (said, phases, tally)
}

async fn dies(store: Store, place: Place) -> (Store, bool, Tally) {
    let (said, _, tally) = life(&store, &place.variable()).await;
    (store, !said.places().is_empty(), tally)
}

/// Invariants, wherever the scheduler is killed, once its lease has expired and the other one owns all jobs:
/// no acknowledged job is lost, none fires early, none fires after its stored end. Unanswered writes are
/// complete or absent, deleted jobs stay deleted, and nothing of the scheduler is left in the store.
async fn a_scheduler_dies_at_each_place(stores: Vec<Store>, places: &[&str], fault: &str) {
    let (said, phases, _) = life(&stores[0], LIST).await;
    let cases = Place::of_phases(&said.places(), &phases);
    let (died, total) = at_each(cases, stores, dies).await;
    assert_eq!(died, set(&[&PLACES, places]));
    total.report(fault);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_survives_kill_at_every_point() {
    let Some(stores) = Store::etcds(ETCDS).await else {
        return;
    };
    let fault = "kill -9 between every two steps on an etcd";
    a_scheduler_dies_at_each_place(stores, &ETCD, fault).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_survives_kill_at_every_point() {
    let Some(stores) = Store::databases(DATABASES).await else {
        return;
    };
    let fault = "kill -9 between every two steps on PostgreSQL";
    a_scheduler_dies_at_each_place(stores, &POSTGRES, fault).await;
}
