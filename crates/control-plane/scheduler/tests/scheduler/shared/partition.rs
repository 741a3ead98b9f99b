//! A group member partitioned from the store. Its connections stay open, and its sidecars reach it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_components_testing::proxy::Proxy;
use outrigger_components_testing::server::{Etcd, Postgres};
use outrigger_wire::scheduler::v1::{Job, ListJobsRequest};
use tokio_util::task::AbortOnDropHandle;

use super::group::{App, Hosts};
use crate::running::{Running, TIMEOUT, app, client, due, schedule, start_with, until, until_within};
use crate::tally::Tally;

const APPS: usize = 10;
/// Jobs per app, spread over the members.
const EACH: usize = 6;
/// Time until the first are due, by when all are loaded.
const LEAD: Duration = Duration::from_secs(4);
/// Time between the jobs of one app and the next. All together exceed the time for which a member keeps its
/// jobs without the store.
const APART: Duration = Duration::from_secs(2);

/// Two members, with a sidecar of each app at each of them.
struct Group {
    staying: Running,
    cut_off: Running,
    at_staying: App,
    at_cut_off: App,
    _serving: Vec<AbortOnDropHandle<()>>,
}

impl Group {
    async fn start(staying: &[String], cut_off: &[String]) -> Self {
        let (staying, cut_off) = (start_with(staying).await, start_with(cut_off).await);
        let (at_staying, at_cut_off) = (App::default(), App::default());
        let mut serving = Vec::new();
        for number in 0..APPS {
            serving.push(at_staying.serve_as(&id(number), staying.addresses.grpc).await);
            serving.push(at_cut_off.serve_as(&id(number), cut_off.addresses.grpc).await);
        }
        for member in [&staying, &cut_off] {
            Hosts::of(member.addresses.grpc).await.are(2).await;
        }
        Self {
            staying,
            cut_off,
            at_staying,
            at_cut_off,
            _serving: serving,
        }
    }

    /// Schedules a job of app `number`, through the member that reaches the store.
    async fn schedule(&self, number: usize, name: &str, job: Job) {
        let request = schedule(name, app(&id(number)), job);
        self.staying.client().await.schedule_job(request).await.unwrap();
    }

    fn is_triggered(&self, name: &str) -> bool {
        !self.at_staying.times(name).is_empty() || !self.at_cut_off.times(name).is_empty()
    }
}

/// Schedules jobs of the app `load` one by one, until that fails.
async fn load(address: SocketAddr, from: usize, acknowledged: Arc<Mutex<Vec<String>>>) {
    let mut client = client(address).await;
    for number in 0_u64.. {
        let name = format!("load-{from}-{number}");
        let request = schedule(&name, app("load"), due("1h"));
        if client.schedule_job(request).await.is_err() {
            return;
        }
        acknowledged.lock().unwrap().push(name);
    }
}

fn id(number: usize) -> String {
    format!("app-{number}")
}

/// Invariants for any store: no job is lost or early, and none is repeated after its end was stored. The
/// partitioned member triggers nothing that others take over, not even when the store is reachable again.
async fn a_member_is_cut_off(staying: &[String], cut_off: &[String], link: &Proxy) {
    let group = Group::start(staying, cut_off).await;
    let mut hosts = Hosts::of(group.staying.addresses.grpc).await;
    hosts.are(2).await;
    let first = Timestamp::now() + LEAD;
    let mut jobs = Vec::new();
    for number in 0..APPS {
        for at in 0..EACH {
            let due_at = first + APART * u32::try_from(number).unwrap();
            let name = format!("job-{number}-{at}");
            // Half of them continue after their first trigger and stay in the store.
            let job = Job {
                schedule: (at % 2 == 0).then(|| "@every 1h".to_owned()),
                ..due(&due_at.to_string())
            };
            group.schedule(number, &name, job).await;
            jobs.push((name, due_at));
        }
    }
    // It is partitioned while it writes.
    let acknowledged = Arc::<Mutex<Vec<String>>>::default();
    let address = group.cut_off.addresses.grpc;
    let loads = [0, 1, 2, 3].map(|from| tokio::spawn(load(address, from, Arc::clone(&acknowledged))));
    until("it writes", || {
        std::future::ready(acknowledged.lock().unwrap().len() > 20)
    })
    .await;
    link.hold();
    let cut_at = Timestamp::now();
    hosts.are(1).await;
    until_within(TIMEOUT * 2, "no job is lost", || {
        std::future::ready(jobs.iter().all(|(name, _)| group.is_triggered(name)))
    })
    .await;

    for load in loads {
        load.await.unwrap();
    }
    link.go_on();
    hosts.are(2).await;
    // These arrive on the same streams, after any late ones.
    let mut later = Vec::new();
    for number in 0..APPS {
        for at in 0..EACH {
            let name = format!("later-{number}-{at}");
            group.schedule(number, &name, due("0s")).await;
            later.push(name);
        }
    }
    until("the group continues", || {
        std::future::ready(later.iter().all(|name| group.is_triggered(name)))
    })
    .await;
    let is_back = later.iter().any(|name| !group.at_cut_off.times(name).is_empty());
    assert!(is_back, "the partitioned member owns no jobs");

    let metadata = app("load");
    let listed = group
        .staying
        .client()
        .await
        .list_jobs(ListJobsRequest { metadata })
        .await;
    let listed: HashSet<String> = listed
        .unwrap()
        .into_inner()
        .jobs
        .into_iter()
        .map(|job| job.name)
        .collect();
    let kept = acknowledged
        .lock()
        .unwrap()
        .iter()
        .all(|name| listed.contains(name));
    assert!(kept, "an acknowledged job is not stored");

    let mut taken_over = 0;
    for (name, due_at) in &jobs {
        let (here, there) = (group.at_staying.times(name), group.at_cut_off.times(name));
        let all: Vec<_> = here.iter().chain(&there).collect();
        assert!(
            all.iter().all(|time| *time >= due_at),
            "{name} was due at {due_at}: {all:?}"
        );
        // Triggers due before the partition may have been in flight.
        if *due_at > cut_at {
            assert!(
                there.is_empty(),
                "{name}: partitioned at {cut_at}, but triggered at {there:?}"
            );
            assert_eq!(here.len(), 1, "{name} was triggered more than once: {here:?}");
            taken_over += usize::from(here[0] > *due_at + APART);
        }
    }
    Tally::of(jobs.iter().map(|(name, due)| (name, due)), |name| {
        [group.at_staying.times(name), group.at_cut_off.times(name)].concat()
    })
    .report("one of two cut off from their store");
    assert!(taken_over > 0, "no job was taken over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_partition_stops_triggers() {
    let Some(server) = Postgres::start() else { return };
    let link = Proxy::start(server.port).await;
    let flags = |id: &str, port: u16| {
        let text = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
        [format!("--postgres={text}"), format!("--id={id}")]
    };
    a_member_is_cut_off(&flags("a", server.port), &flags("b", link.port), &link).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_partition_stops_triggers() {
    let Some(server) = Etcd::start() else { return };
    let endpoint = server.endpoint();
    let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    let link = Proxy::start(port).await;
    let flags = |id: &str, port: u16| {
        [
            "--etcd-embed=false".to_owned(),
            format!("--etcd-client-endpoints=http://127.0.0.1:{port}"),
            format!("--id={id}"),
            format!("--etcd-initial-cluster={id}=http://localhost:1"),
        ]
    };
    a_member_is_cut_off(&flags("a", port), &flags("b", link.port), &link).await;
}
