//! Full stores and their error messages.

use std::fs;
use std::time::Duration;

use outrigger_components_testing::server::{Etcd, Postgres, free_port};
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{DeleteByNamePrefixRequest, Job};
use prost_types::Any;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::cluster::installed;
use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule, start_with, until, until_within};

/// Small, so that etcd is full soon.
const QUOTA: u64 = 16 << 20;

fn large() -> Job {
    Job {
        data: Some(Any {
            value: vec![7; 200_000],
            ..Any::default()
        }),
        ..due("1h")
    }
}

/// Schedules jobs until one is refused; returns the error.
async fn fill(client: &mut SchedulerClient<Channel>) -> Status {
    for at in 0..1000 {
        let name = format!("job-{at}");
        if let Err(status) = client.schedule_job(schedule(&name, app("app"), large())).await {
            assert!(at > 20, "{status}");
            return status;
        }
    }
    panic!("the store never became full");
}

async fn delete_all(client: &mut SchedulerClient<Channel>) {
    let request = DeleteByNamePrefixRequest {
        name_prefix: "job-".to_owned(),
        metadata: app("app"),
    };
    client.delete_by_name_prefix(request).await.unwrap();
}

/// Waits until the scheduler accepts jobs; checks the error until then.
async fn until_it_serves(client: &SchedulerClient<Channel>) {
    until("the scheduler accepts jobs", || async {
        let mut client = client.clone();
        client
            .schedule_job(schedule("first", app("app"), due("1h")))
            .await
            .is_ok()
    })
    .await;
}

/// Invariant: deleting jobs is enough for the scheduler's own etcd to accept new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_full_etcd_recovers_after_deletions() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Looks like an etcd's folder to the scheduler.
    fs::create_dir_all(
        folder
            .path()
            .join("default-dapr-scheduler-server-0/dapr-0.1/member"),
    )
    .unwrap();
    let mut flags = arguments(folder.path());
    let (peer, port) = (free_port(), free_port());
    flags.push(format!("--etcd-client-port={port}"));
    flags.push(format!(
        "--etcd-initial-cluster=dapr-scheduler-server-0=http://127.0.0.1:{peer}"
    ));
    flags.push(format!("--etcd-space-quota={QUOTA}"));
    let process = Process::start_with(&flags);
    let mut client = client(&process.address).await;
    until_it_serves(&client).await;
    let refused = fill(&mut client).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("--etcd-space-quota"), "{refused}");
    delete_all(&mut client).await;
    until_within(Duration::from_secs(90), "it accepts jobs again", || async {
        let mut client = client.clone();
        client
            .schedule_job(schedule("after", app("app"), large()))
            .await
            .is_ok()
    })
    .await;
}

/// Invariant: for an external etcd at its quota, the error names the remedy and the alarm is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_etcd_error_names_remedy() {
    let Some(etcd) = Etcd::start_with_quota(QUOTA) else {
        return;
    };
    let running = start_with(&[
        "--etcd-embed=false".to_owned(),
        format!("--etcd-client-endpoints={}", etcd.endpoint()),
    ])
    .await;
    let mut client = running.client().await;
    until_it_serves(&client).await;
    let refused = fill(&mut client).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    for wanted in ["--quota-backend-bytes", "etcdctl alarm disarm"] {
        assert!(refused.message().contains(wanted), "{refused}");
    }
    assert!(!refused.message().contains("--etcd-space-quota"), "{refused}");
    delete_all(&mut client).await;
    let request = schedule("after", app("app"), due("1h"));
    let refused = client.schedule_job(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_postgres_error_names_remedy() {
    let Some(server) = Postgres::start() else { return };
    let running = start_with(&[format!("--postgres={}", server.text())]).await;
    let mut client = running.client().await;
    until_it_serves(&client).await;
    // The server's error for a full disk.
    let full = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$; \
                CREATE TRIGGER full_disk BEFORE INSERT ON scheduler_pairs EXECUTE FUNCTION full_disk()";
    let (session, connection) = tokio_postgres::connect(&server.text(), tokio_postgres::NoTls)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    session.batch_execute(full).await.unwrap();
    let request = schedule("refused", app("app"), due("1h"));
    let refused = client.schedule_job(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("the disk of PostgreSQL"), "{refused}");
    assert!(!refused.message().contains("--etcd-space-quota"), "{refused}");
    session
        .batch_execute("DROP TRIGGER full_disk ON scheduler_pairs")
        .await
        .unwrap();
    let request = schedule("after", app("app"), due("1h"));
    client.schedule_job(request).await.unwrap();
    drop(session);
    connection.await.unwrap().unwrap();
}
