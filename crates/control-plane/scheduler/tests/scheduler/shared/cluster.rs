//! Schedulers that run the etcd they share.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_components_testing::server::free_port;
use outrigger_wire::scheduler::v1::{GetJobRequest, ListJobsRequest};

use super::group::{App, Hosts};
use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule, until};

/// Whether etcd is installed; prints a notice if not.
pub(super) fn installed() -> bool {
    is_installed("etcd", "etcd-server")
}

/// Like `installed`, for a program of a package.
pub(super) fn is_installed(program: &str, package: &str) -> bool {
    let found = std::process::Command::new(program)
        .arg("--version")
        .output()
        .is_ok();
    if !found {
        outrigger_testing::skip::skip(&format!("{program} is not installed: apt-get install {package}"));
    }
    found
}

/// Flags of the members of a cluster.
pub(super) fn members(folder: &Path) -> [Vec<String>; 3] {
    let [peers, clients] = [(); 2].map(|()| [(); 3].map(|()| free_port()));
    let all: Vec<String> = (0..3)
        .map(|at| format!("dapr-scheduler-server-{at}=http://127.0.0.1:{}", peers[at]))
        .collect();
    std::array::from_fn(|at| {
        let mut flags = arguments(folder);
        flags.push(format!("--id=dapr-scheduler-server-{at}"));
        flags.push(format!("--etcd-initial-cluster={}", all.join(",")));
        flags.push(format!("--etcd-client-port={}", clients[at]));
        flags
    })
}

/// Ids of processes whose command line contains this; that of etcd contains its data path.
pub(super) fn processes(with: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.starts_with("etcd ") && line.contains(with)
    })
    .collect()
}

pub(super) async fn get(address: &str, name: &str) -> Result<(), tonic::Status> {
    let request = GetJobRequest {
        name: name.to_owned(),
        metadata: app("app"),
    };
    client(address).await.get_job(request).await.map(drop)
}

/// Invariant: a killed etcd of three is restarted, and a killed scheduler takes its etcd with it. No stored
/// job is lost, and the others continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_schedulers_survive_one_kill() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let [first, second, third] = flags.clone().map(|flags| Process::start_with(&flags));
    for process in [&first, &second, &third] {
        Hosts::of(&process.address).await.are(3).await;
    }
    assert!(folder.path().join("dapr-scheduler-existing-cluster").exists());
    let served = App::default();
    let mut serving = Vec::new();
    for process in [&first, &second, &third] {
        serving.push(served.serve(&process.address).await);
    }
    let mut client = client(&first.address).await;
    for at in 0..30 {
        let name = format!("job-{at}");
        client
            .schedule_job(schedule(&name, app("app"), due("100ms")))
            .await
            .unwrap();
    }
    served.has((0..30).map(|at| format!("job-{at}"))).await;
    client
        .schedule_job(schedule("kept", app("app"), due("1h")))
        .await
        .unwrap();
    for process in [&first, &second, &third] {
        assert!(get(&process.address, "kept").await.is_ok());
    }

    // A killed etcd is restarted.
    let data = "dapr-scheduler-server-1/dapr-0.1";
    let path = folder
        .path()
        .join(format!("default-{data}"))
        .display()
        .to_string();
    let [before] = processes(&path)[..] else {
        panic!("{:?} are at {path}", processes(&path));
    };
    // Due before, during and after the outage.
    let begun = Timestamp::now() + Duration::from_secs(1);
    let mut dues = Vec::new();
    for at in 0..30_u32 {
        let (name, due_at) = (format!("meanwhile-{at}"), begun + Duration::from_millis(100) * at);
        client
            .schedule_job(schedule(&name, app("app"), due(&due_at.to_string())))
            .await
            .unwrap();
        dues.push((name, due_at));
    }
    kill(before);
    until("etcd is restarted", || async {
        processes(&path).first().is_some_and(|id| *id != before)
    })
    .await;
    until("it answers", || async {
        get(&second.address, "kept").await.is_ok()
    })
    .await;
    served.has(dues.iter().map(|(name, _)| name.clone())).await;
    served.tally(
        dues.iter().map(|(name, due)| (name, due)),
        "the etcd that one of three runs killed",
    );

    // A killed scheduler takes its etcd with it. The others continue, and it returns with its data.
    let path = path.replace("server-1/", "server-2/");
    assert_eq!(processes(&path).len(), 1);
    drop(third);
    until("its etcd ends", || async { processes(&path).is_empty() }).await;
    Hosts::of(&first.address).await.are(2).await;
    for at in 0..10 {
        let name = format!("late-{at}");
        client
            .schedule_job(schedule(&name, app("app"), due("0s")))
            .await
            .unwrap();
    }
    served.has((0..10).map(|at| format!("late-{at}"))).await;
    let third = Process::start_with(&flags[2]);
    Hosts::of(&third.address).await.are(3).await;
    assert!(get(&third.address, "kept").await.is_ok());
}

pub(super) fn kill(id: u32) {
    signal(id, "-KILL");
}

fn signal(id: u32, signal: &str) {
    let sent = std::process::Command::new("kill")
        .args([signal, &id.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// Invariant: no job is lost or early while one member of three is partitioned. Its etcd is suspended with
/// its connections open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_partitioned_member() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let [first, second, third] = flags.map(|flags| Process::start_with(&flags));
    Hosts::of(&first.address).await.are(3).await;
    let served = App::default();
    let mut serving = Vec::new();
    for process in [&first, &second, &third] {
        serving.push(served.serve(&process.address).await);
    }
    let mut client = client(&first.address).await;
    let (mut jobs, begun) = (Vec::new(), Timestamp::now());
    for at in 0..30 {
        // Some are due before the takeover, some after.
        let time = begun + Duration::from_secs(2 + at);
        let name = format!("job-{at}");
        let request = schedule(&name, app("app"), due(&time.to_string()));
        client.schedule_job(request).await.unwrap();
        jobs.push((name, time));
    }
    let path = folder.path().join("default-dapr-scheduler-server-2/dapr-0.1");
    let [cut_off] = processes(&path.display().to_string())[..] else {
        panic!("etcd does not run");
    };
    signal(cut_off, "-STOP");
    Hosts::of(&first.address).await.are(2).await;
    let request = schedule("meanwhile", app("app"), due("0s"));
    client.schedule_job(request).await.unwrap();
    let all = (0..30).map(|at| format!("job-{at}"));
    served.has(all.chain(["meanwhile".to_owned()])).await;
    let jobs = jobs.iter().map(|(name, due)| (name, due));
    served.tally(
        jobs,
        "the etcd of one of three stopped in the middle of what it does",
    );
    signal(cut_off, "-CONT");
    Hosts::of(&second.address).await.are(3).await;
    until("it has the jobs stored in between", || async {
        let request = schedule("again", app("app"), due("1h"));
        let mut third = crate::running::client(&third.address).await;
        third.schedule_job(request).await.is_ok()
    })
    .await;
    assert!(get(&first.address, "again").await.is_ok());
}

/// Invariant: if all three are killed at once and restarted, no acknowledged job is lost or early; all are
/// triggered late and end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_kill_of_all_replicas() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = members(folder.path());
    let running = flags.clone().map(|flags| Process::start_with(&flags));
    Hosts::of(&running[0].address).await.are(3).await;
    let mut first = client(&running[0].address).await;
    let mut jobs = Vec::new();
    for at in 0..20 {
        let (name, time) = (format!("job-{at}"), Timestamp::now() + Duration::from_secs(1));
        let request = schedule(&name, app("app"), due(&time.to_string()));
        first.schedule_job(request).await.unwrap();
        jobs.push((name, time));
    }
    drop(running);
    let running = flags.map(|flags| Process::start_with(&flags));
    let served = App::default();
    let mut serving = Vec::new();
    for process in &running {
        serving.push(served.serve(&process.address).await);
    }
    // Their entries last until the leases of the killed processes expire.
    served.has((0..20).map(|at| format!("job-{at}"))).await;
    let metadata = app("app");
    until("all jobs have ended", || async {
        let request = ListJobsRequest {
            metadata: metadata.clone(),
        };
        let listed = client(&running[1].address).await.list_jobs(request).await;
        listed.is_ok_and(|listed| listed.into_inner().jobs.is_empty())
    })
    .await;
    let jobs = jobs.iter().map(|(name, due)| (name, due));
    served.tally(jobs, "all three killed at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopts_etcd_folder() {
    if !installed() {
        return;
    }
    // The files of a scheduler with an etcd: its data and the marker.
    let folder = tempfile::tempdir().unwrap();
    let (peer, port) = (free_port(), free_port());
    let data = folder.path().join("default-dapr-scheduler-server-0/dapr-0.1");
    let mut etcd = std::process::Command::new("etcd")
        .args(["--name=dapr-scheduler-server-0".to_owned()])
        .arg(format!("--data-dir={}", data.display()))
        .arg(format!("--listen-client-urls=http://127.0.0.1:{port}"))
        .arg(format!("--advertise-client-urls=http://127.0.0.1:{port}"))
        .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
        .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"))
        .arg(format!(
            "--initial-cluster=dapr-scheduler-server-0=http://127.0.0.1:{peer}"
        ))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let external = [
        arguments(folder.path()),
        vec![
            "--etcd-embed=false".to_owned(),
            format!("--etcd-client-endpoints=127.0.0.1:{port}"),
        ],
    ]
    .concat();
    let before = Process::start_with(&external);
    client(&before.address)
        .await
        .schedule_job(schedule("kept", app("app"), due("1h")))
        .await
        .unwrap();
    drop(before);
    kill(etcd.id());
    etcd.wait().unwrap();

    let mut flags = arguments(folder.path());
    flags.push(format!("--etcd-client-port={port}"));
    flags.push(format!(
        "--etcd-initial-cluster=dapr-scheduler-server-0=http://127.0.0.1:{peer}"
    ));
    let running = Process::start_with(&flags);
    until("the job is there", || async {
        get(&running.address, "kept").await.is_ok()
    })
    .await;
    assert!(folder.path().join("dapr-scheduler-existing-cluster").exists());
}
