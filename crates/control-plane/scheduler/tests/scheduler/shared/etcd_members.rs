//! Faults of members of the schedulers' etcd: the leader is killed, and a member loses its disk.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_wire::scheduler::v1::Job;
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::cluster::{get, installed, kill, members, processes};
use super::etcd::etcd_call;
use super::group::{App, Hosts};
use crate::crash::Process;
use crate::running::{Sidecar, app, client, due, schedule, until};

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member: u64,
}

#[derive(Clone, PartialEq, Message)]
struct MemberStatus {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Member {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    urls: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct MemberList {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
struct RemoveMember {
    #[prost(uint64, tag = "1")]
    id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct AddMember {
    #[prost(string, repeated, tag = "1")]
    urls: Vec<String>,
}

/// Client address of the etcd of a scheduler with these flags.
pub(super) fn endpoint(flags: &[String]) -> String {
    let mut ports = flags
        .iter()
        .filter_map(|flag| flag.strip_prefix("--etcd-client-port="));
    format!("127.0.0.1:{}", ports.next_back().unwrap())
}

/// The etcd process of scheduler `at`; `None` while it does not run.
fn process(folder: &Path, at: usize) -> Option<u32> {
    let data = folder.join(format!("default-dapr-scheduler-server-{at}/dapr-0.1"));
    processes(&data.display().to_string()).first().copied()
}

/// Whether that etcd reports to be the leader.
async fn leads(endpoint: &str) -> bool {
    let path = "/etcdserverpb.Maintenance/Status";
    let status: Result<MemberStatus, _> = etcd_call(endpoint, path, Empty {}).await;
    status.is_ok_and(|status| status.header.is_some_and(|header| header.member == status.leader))
}

/// Waits for a leader among these; returns its index.
pub(super) async fn leader(endpoints: &[String]) -> usize {
    let found = Cell::new(None);
    until("one leads", || async {
        for (at, endpoint) in endpoints.iter().enumerate() {
            if leads(endpoint).await {
                found.set(Some(at));
            }
        }
        found.get().is_some()
    })
    .await;
    found.get().expect("it was found")
}

/// Acknowledged jobs with their due times.
type Acknowledged = Arc<Mutex<Vec<(String, Timestamp)>>>;

/// Schedules jobs at a scheduler one by one until stopped.
async fn schedule_until(stop: CancellationToken, address: String, at: usize, acknowledged: Acknowledged) {
    let mut client = client(&address).await;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for number in 0_u64.. {
        pace.tick().await;
        let name = format!("load-{at}-{number}");
        let time = Timestamp::now() + Duration::from_millis(number % 7 * 100);
        let request = schedule(&name, app("app"), due(&time.to_string()));
        let Some(answer) = stop.run_until_cancelled(client.schedule_job(request)).await else {
            return;
        };
        if answer.is_ok() {
            acknowledged.lock().unwrap().push((name, time));
        }
    }
}

/// Invariant: no acknowledged job is lost or early while the etcd leader is killed repeatedly under load, and
/// calls recover each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_etcd_leader_kill() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let running = flags.clone().map(|flags| Process::start_with(&flags));
    for process in &running {
        Hosts::of(&process.address).await.are(3).await;
    }
    let served = App::default();
    let (mut serving, mut calls) = (Vec::new(), Vec::new());
    let (stop, acknowledged) = (CancellationToken::new(), Acknowledged::default());
    for (at, process) in running.iter().enumerate() {
        serving.push(served.serve(&process.address).await);
        let address = process.address.clone();
        let call = schedule_until(stop.clone(), address, at, Arc::clone(&acknowledged));
        calls.push(tokio::spawn(call));
    }
    let endpoints = flags.each_ref().map(|flags| endpoint(flags));
    for _ in 0..3 {
        let before = acknowledged.lock().unwrap().len();
        until("calls succeed", || {
            std::future::ready(acknowledged.lock().unwrap().len() > before + 50)
        })
        .await;
        let leader = leader(&endpoints).await;
        let id = process(folder.path(), leader).expect("it runs");
        kill(id);
        until("etcd is restarted", || {
            std::future::ready(process(folder.path(), leader).is_some_and(|now| now != id))
        })
        .await;
        until("the member takes part again", || async {
            get(&running[leader].address, "none")
                .await
                .is_err_and(|status| status.code() == tonic::Code::NotFound)
        })
        .await;
    }
    let before = acknowledged.lock().unwrap().len();
    until("calls succeed", || {
        std::future::ready(acknowledged.lock().unwrap().len() > before + 50)
    })
    .await;
    stop.cancel();
    for call in calls {
        call.await.unwrap();
    }
    let acknowledged = acknowledged.lock().unwrap().clone();
    served
        .has(acknowledged.iter().map(|(name, _)| name.clone()))
        .await;
    served.tally(
        acknowledged.iter().map(|(name, due)| (name, due)),
        "the etcd that leads killed under load, three times",
    );
}

/// Regression: a member killed with pending triggers was not ready within 20 seconds of its restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_member_restarts_quickly() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let [first, second, third] = flags.clone().map(|flags| Process::start_with(&flags));
    let mut streams = Vec::new();
    for process in [&first, &second, &third] {
        Hosts::of(&process.address).await.are(3).await;
        let mut client = client(&process.address).await;
        streams.push(Sidecar::connect(&mut client, "app", &[]).await);
    }
    let mut calls = client(&first.address).await;
    for at in 0..30 {
        let job = Job {
            schedule: Some("@every 1s".to_owned()),
            ..Job::default()
        };
        let request = schedule(&format!("job-{at}"), app("app"), job);
        calls.schedule_job(request).await.unwrap();
    }
    // They stay pending, because nothing answers them.
    for stream in &mut streams[..2] {
        stream.next().await;
    }
    drop(third);
    let begun = Instant::now();
    let third = Process::start_with(&flags[2]);
    Hosts::of(&third.address).await.are(3).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for stream in &mut streams[..2] {
        stream.next().await;
    }
}

/// Invariant: the loss of one member's disk loses no jobs. With an empty disk the member cannot rejoin and
/// does not disturb others; it rejoins with all data once the cluster knows it as a new member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_rejoins_after_disk_loss() {
    const JOBS: usize = 30;
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let [first, second, third] = flags.clone().map(|flags| Process::start_with(&flags));
    for process in [&first, &second, &third] {
        Hosts::of(&process.address).await.are(3).await;
    }
    let names = || (0..JOBS).map(|at| format!("job-{at}"));
    let mut calls = client(&third.address).await;
    let mut jobs = Vec::new();
    for name in names() {
        // Without a sidecar they are late: the member that owned some of them is gone.
        let time = Timestamp::now() + Duration::from_secs(1);
        let request = schedule(&name, app("app"), due(&time.to_string()));
        calls.schedule_job(request).await.unwrap();
        jobs.push((name, time));
    }
    calls
        .schedule_job(schedule("kept", app("app"), due("1h")))
        .await
        .unwrap();
    drop(third);
    until("its etcd ends", || {
        std::future::ready(process(folder.path(), 2).is_none())
    })
    .await;
    fs::remove_dir_all(folder.path().join("default-dapr-scheduler-server-2")).unwrap();

    let empty = flags[2].clone();
    let refused = tokio::task::spawn_blocking(move || {
        let program = env!("CARGO_BIN_EXE_scheduler");
        Command::new(program).args(&empty).output().unwrap()
    });
    let refused = refused.await.unwrap();
    let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
    assert!(
        !refused.status.success() && said.contains("has already been bootstrapped"),
        "{said}"
    );
    let served = App::default();
    let serving = [
        served.serve(&first.address).await,
        served.serve(&second.address).await,
    ];
    served.has(names()).await;
    let jobs = jobs.iter().map(|(name, due)| (name, due));
    served.tally(jobs, "one of three lost with its disk");

    let at = endpoint(&flags[0]);
    let list: MemberList = etcd_call(&at, "/etcdserverpb.Cluster/MemberList", Empty {})
        .await
        .unwrap();
    let lost = list
        .members
        .into_iter()
        .find(|member| member.name == "dapr-scheduler-server-2");
    let lost = lost.unwrap();
    let remove = RemoveMember { id: lost.id };
    let _: Empty = etcd_call(&at, "/etcdserverpb.Cluster/MemberRemove", remove)
        .await
        .unwrap();
    until("the cluster accepts a new member", || async {
        let add = AddMember {
            urls: lost.urls.clone(),
        };
        let added: Result<Empty, _> = etcd_call(&at, "/etcdserverpb.Cluster/MemberAdd", add).await;
        added.is_ok()
    })
    .await;
    let third = Process::start_in(&flags[2], &[("ETCD_INITIAL_CLUSTER_STATE", "existing")]);
    Hosts::of(&third.address).await.are(3).await;
    for process in [&first, &second, &third] {
        assert!(get(&process.address, "kept").await.is_ok());
    }
    drop(serving);
}
