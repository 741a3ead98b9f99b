//! Copies all jobs from one store to the next, and back to the first.

use std::path::Path;
use std::process::Command;

use outrigger_components_testing::server::{Etcd, Postgres};
use outrigger_wire::scheduler::v1::{Job, ListJobsRequest};

use super::group::App;
use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule, until};

/// The output of the command, and whether it succeeded.
fn migrate(folder: &Path, from: &str, to: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_scheduler"))
        .arg(format!("--etcd-data-dir={}", folder.display()))
        .args(["--migrate", from, to])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

async fn jobs(address: &str) -> Vec<String> {
    let request = ListJobsRequest { metadata: app("app") };
    let listed = client(address).await.list_jobs(request).await.unwrap();
    listed.into_inner().jobs.into_iter().map(|job| job.name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrates_jobs_with_progress() {
    let (Some(etcd), Some(postgres)) = (Etcd::start(), Postgres::start()) else {
        return;
    };
    let first = tempfile::tempdir().unwrap();
    let running = Process::start_with(&arguments(first.path()));
    let mut calls = client(&running.address).await;
    let served = App::default();
    let serving = served.serve(&running.address).await;
    let twice = Job {
        schedule: Some("@every 1h".to_owned()),
        repeats: Some(2),
        ..due("0s")
    };
    calls
        .schedule_job(schedule("twice", app("app"), twice))
        .await
        .unwrap();
    for at in 0..150 {
        calls
            .schedule_job(schedule(&format!("job-{at:03}"), app("app"), due("1h")))
            .await
            .unwrap();
    }
    served.has(["twice".to_owned()].into_iter()).await;
    let (etcd_name, postgres_name) = (format!("etcd://{}", etcd.endpoint()), postgres.text());
    let (done, text) = migrate(first.path(), "embedded", &etcd_name);
    assert!(!done && text.contains("in use by another process"), "{text}");
    drop((serving, running));

    let (done, text) = migrate(first.path(), "embedded", &etcd_name);
    assert!(
        done && text.contains("151 jobs copied, 0 already present"),
        "{text}"
    );
    let (done, text) = migrate(first.path(), "embedded", &etcd_name);
    assert!(
        done && text.contains("0 jobs copied, 151 already present"),
        "{text}"
    );
    let (done, text) = migrate(first.path(), &etcd_name, &postgres_name);
    assert!(done && text.contains("151 jobs copied"), "{text}");
    let second = tempfile::tempdir().unwrap();
    let (done, text) = migrate(second.path(), &postgres_name, "embedded");
    assert!(done && text.contains("151 jobs copied"), "{text}");
    let (done, text) = migrate(second.path(), &postgres_name, "embedded");
    assert!(!done && text.contains("already exists"), "{text}");

    let running = Process::start_with(&arguments(second.path()));
    let listed = jobs(&running.address).await;
    assert_eq!(
        (listed.len(), listed.last().map(String::as_str)),
        (151, Some("twice"))
    );
    // The first of two triggers was done in the first store; the second is due in an hour.
    let _serving = served.serve(&running.address).await;
    let mut calls = client(&running.address).await;
    calls
        .schedule_job(schedule("last", app("app"), due("0s")))
        .await
        .unwrap();
    served.has(["last".to_owned()].into_iter()).await;
    assert_eq!(served.times("twice").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_overwrites_nothing() {
    let Some(etcd) = Etcd::start() else { return };
    let name = format!("etcd://{}", etcd.endpoint());
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&one, &other] {
        let running = Process::start_with(&arguments(folder.path()));
        let mut calls = client(&running.address).await;
        for job in ["same", folder.path().file_name().unwrap().to_str().unwrap()] {
            calls
                .schedule_job(schedule(job, app("app"), due("1h")))
                .await
                .unwrap();
        }
    }
    assert!(migrate(one.path(), "embedded", &name).0);
    let (done, text) = migrate(other.path(), "embedded", &name);
    assert!(
        !done && text.contains("1 jobs exist at the target") && text.contains("app||ns||app||same"),
        "{text}"
    );

    let external = [
        arguments(one.path()),
        vec![
            "--etcd-embed=false".to_owned(),
            format!("--etcd-client-endpoints={}", etcd.endpoint()),
        ],
    ]
    .concat();
    let running = Process::start_with(&external);
    until("the jobs are loaded", || async {
        jobs(&running.address).await.len() == 2
    })
    .await;
    super::group::Hosts::of(&running.address).await.are(1).await;
    let (done, text) = migrate(one.path(), "embedded", &name);
    assert!(
        !done
            && text.contains("the target is in use by schedulers")
            && text.contains("dapr-scheduler-server-0"),
        "{text}"
    );
    let (done, text) = migrate(tempfile::tempdir().unwrap().path(), "embedded", &name);
    assert!(!done && text.contains("there is no embedded store"), "{text}");
}
