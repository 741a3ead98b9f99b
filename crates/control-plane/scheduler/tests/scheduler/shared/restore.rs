//! Backups of shared stores, restored as in `docs/reference/scheduler.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_components_testing::server::{Postgres, free_port};
use tonic::Code;

use super::cluster::{get, installed, is_installed, members, processes};
use super::etcd_members::endpoint;
use super::group::{App, Hosts};
use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule, start_with, until, until_within};

fn run(command: &mut Command) {
    let output = command.env("ETCDCTL_API", "3").output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The value of a flag; the last one wins.
fn value<'a>(flags: &'a [String], flag: &str) -> &'a str {
    let prefix = format!("--{flag}=");
    let mut given = flags.iter().filter_map(|one| one.strip_prefix(&prefix));
    given.next_back().unwrap()
}

/// The etcd data folder of a scheduler with these flags.
fn data(flags: &[String]) -> PathBuf {
    let below = format!("default-{}/dapr-0.1", value(flags, "id"));
    Path::new(value(flags, "etcd-data-dir")).join(below)
}

async fn keep(address: &str, name: &str) {
    let request = || schedule(name, app("app"), due("1h"));
    until("the scheduler accepts jobs", || async {
        client(address).await.schedule_job(request()).await.is_ok()
    })
    .await;
}

/// Copies the etcd of schedulers with these flags, restores it into new folders, and checks its jobs.
async fn is_put_back(flags: &[Vec<String>]) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("jobs.snap");
    let running: Vec<_> = flags.iter().map(|flags| Process::start_with(flags)).collect();
    keep(&running[0].address, "kept").await;
    run(Command::new("etcdctl")
        .args(["--endpoints", &endpoint(&flags[0]), "snapshot", "save"])
        .arg(&copy));
    keep(&running[0].address, "later").await;
    drop(running);
    for flags in flags {
        let data = data(flags);
        let path = data.display().to_string();
        until("its etcd ends", || async { processes(&path).is_empty() }).await;
        fs::rename(&data, data.with_extension("old")).unwrap();
        let (id, members) = (value(flags, "id"), value(flags, "etcd-initial-cluster"));
        let own = members
            .split(',')
            .find_map(|member| member.strip_prefix(&format!("{id}=")));
        run(Command::new("etcdctl")
            .args(["snapshot", "restore"])
            .arg(&copy)
            .args(["--data-dir", &path, "--name", id])
            .args(["--initial-cluster", members])
            .args(["--initial-advertise-peer-urls", own.unwrap()]));
    }
    let running: Vec<_> = flags.iter().map(|flags| Process::start_with(flags)).collect();
    let served = App::default();
    let mut serving = Vec::new();
    for process in &running {
        // The entries of the schedulers in the backup expire first.
        Hosts::of(&process.address).await.are(flags.len()).await;
        serving.push(served.serve(&process.address).await);
        until("the scheduler has the jobs of the backup", || async {
            get(&process.address, "kept").await.is_ok()
        })
        .await;
        let later = get(&process.address, "later").await.unwrap_err();
        assert_eq!(later.code(), Code::NotFound, "{later}");
    }
    let request = || schedule("now", app("app"), due("0s"));
    let first = &running[0].address;
    until("the scheduler accepts jobs", || async {
        client(first).await.schedule_job(request()).await.is_ok()
    })
    .await;
    served.has(["now".to_owned()].into_iter()).await;
}

fn can_restore() -> bool {
    installed() && is_installed("etcdctl", "etcd-client")
}

/// Invariant: a scheduler with its own etcd continues with the jobs of a backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restores_single_etcd() {
    if !can_restore() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut flags = arguments(folder.path());
    flags.push("--id=dapr-scheduler-server-0".to_owned());
    flags.push(format!("--etcd-client-port={}", free_port()));
    flags.push(format!(
        "--etcd-initial-cluster=dapr-scheduler-server-0=http://127.0.0.1:{}",
        free_port()
    ));
    // Looks like an etcd's folder to the scheduler.
    fs::create_dir_all(data(&flags).join("member")).unwrap();
    is_put_back(&[flags]).await;
}

/// Invariant: so do three schedulers with a common etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restores_etcd_of_three() {
    if !can_restore() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    is_put_back(&members(folder.path())).await;
}

/// Invariant: so do schedulers on PostgreSQL whose tables are restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restores_postgres_tables() {
    let Some(server) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("jobs.dump");
    let flags = [format!("--postgres={}", server.text())];
    let running = start_with(&flags).await;
    keep(&running.addresses.grpc.to_string(), "kept").await;
    run(Command::new("pg_dump")
        .args([
            "--format=custom",
            "--table=scheduler_*",
            "--dbname",
            &server.text(),
            "--file",
        ])
        .arg(&copy));
    keep(&running.addresses.grpc.to_string(), "later").await;
    running.stop().await;
    run(Command::new("pg_restore")
        .args([
            "--clean",
            "--if-exists",
            "--single-transaction",
            "--dbname",
            &server.text(),
        ])
        .arg(&copy));
    let running = start_with(&flags).await;
    let address = running.addresses.grpc.to_string();
    until_within(
        std::time::Duration::from_secs(60),
        "the scheduler has the jobs of the backup",
        || async { get(&address, "kept").await.is_ok() },
    )
    .await;
    let later = get(&address, "later").await.unwrap_err();
    assert_eq!(later.code(), Code::NotFound, "{later}");
    let served = App::default();
    let _serving = served.serve(&address).await;
    let request = schedule("now", app("app"), due("0s"));
    client(&address).await.schedule_job(request).await.unwrap();
    served.has(["now".to_owned()].into_iter()).await;
}
