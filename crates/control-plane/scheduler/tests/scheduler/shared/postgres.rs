//! Schedulers on PostgreSQL.

use std::time::Duration;

use jiff::Timestamp;
use outrigger_components_testing::server::Postgres;
use outrigger_wire::scheduler::v1::{DeleteByNamePrefixRequest, Job, ListJobsRequest};
use tokio_postgres::{Client, NoTls};

use super::group::{App, Hosts, schedule_in_turn};
use crate::crash::Process;
use crate::running::{Running, app, arguments, due, schedule, start_with, until};

/// Flags of a scheduler on a server.
fn flags(server: &Postgres, id: &str) -> Vec<String> {
    vec![format!("--postgres={}", server.text()), format!("--id={id}")]
}

async fn sql(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.text(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn keys(client: &Client) -> Vec<String> {
    let sql = "SELECT convert_from(key, 'UTF8') FROM scheduler_pairs ORDER BY key";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn names(prefix: &str, count: usize) -> impl Iterator<Item = String> + Clone {
    let prefix = prefix.to_owned();
    (0..count).map(move |at| format!("{prefix}{at}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_scheduler_triggers_its_jobs() {
    let Some(server) = Postgres::start() else { return };
    let running = start_with(&flags(&server, "scheduler-0")).await;
    let mut client = running.client().await;
    let served = App::default();
    let _serving = served.serve(running.addresses.grpc).await;
    let twice = Job {
        schedule: Some("@every 1h".to_owned()),
        ..due("0s")
    };
    for (name, job) in [("later", due("1h")), ("now", twice.clone()), ("once", due("0s"))] {
        client
            .schedule_job(schedule(name, app("app"), job))
            .await
            .unwrap();
    }
    let error = client
        .schedule_job(schedule("now", app("app"), due("0s")))
        .await
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::AlreadyExists);
    served
        .has(["now".to_owned(), "once".to_owned()].into_iter())
        .await;
    let database = sql(&server).await;
    until("the counter is stored, and the ended job is deleted", || async {
        keys(&database).await
            == [
                "dapr/counters/app||ns||app||now",
                "dapr/jobs/app||ns||app||later",
                "dapr/jobs/app||ns||app||now",
                "dapr/leadership/scheduler-0",
            ]
    })
    .await;
    // A replaced job starts over.
    let mut again = schedule("now", app("app"), twice);
    again.overwrite = true;
    client.schedule_job(again).await.unwrap();
    until("the job is triggered again", || async {
        served.times("now").len() == 2
    })
    .await;
    let request = ListJobsRequest { metadata: app("app") };
    let listed = client.list_jobs(request).await.unwrap().into_inner();
    let listed: Vec<String> = listed.jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(listed, ["later", "now"]);
    let delete = DeleteByNamePrefixRequest {
        name_prefix: "n".to_owned(),
        metadata: app("app"),
    };
    client.delete_by_name_prefix(delete).await.unwrap();
    until("the scheduler is healthy", || async {
        Running::http(running.addresses.healthz, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    })
    .await;
    running.stop().await;
    assert_eq!(keys(&database).await, ["dapr/jobs/app||ns||app||later"]);
}

/// Invariant: each job is triggered once, by one member; when a member stops, the other triggers its jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_and_take_over_jobs() {
    let Some(server) = Postgres::start() else { return };
    let served = App::default();
    let first = start_with(&flags(&server, "a")).await;
    let mut hosts = Hosts::of(first.addresses.grpc).await;
    hosts.are(1).await;
    let second = start_with(&flags(&server, "b")).await;
    hosts.are(2).await;
    Hosts::of(second.addresses.grpc).await.are(2).await;
    let _at_first = served.serve(first.addresses.grpc).await;
    let at_second = App::default();
    let serving = at_second.serve(second.addresses.grpc).await;
    let mut client = first.client().await;
    let calls: Vec<_> = names("shared-", 60)
        .map(|name| {
            let mut client = client.clone();
            tokio::spawn(async move { client.schedule_job(schedule(&name, app("app"), due("0s"))).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    until("each job is triggered by one of them", || async {
        names("shared-", 60).all(|name| served.times(&name).len() + at_second.times(&name).len() == 1)
    })
    .await;
    for app in [&served, &at_second] {
        assert!(
            names("shared-", 60).any(|name| !app.times(&name).is_empty()),
            "one member triggered none"
        );
    }
    for name in names("later-", 20) {
        client
            .schedule_job(schedule(&name, app("app"), due("2s")))
            .await
            .unwrap();
    }
    second.stop().await;
    drop(serving);
    hosts.are(1).await;
    served.has(names("later-", 20)).await;
}

/// Invariant: no acknowledged job is lost or early when a member is killed and the server crashes. Answered
/// triggers are not repeated, except those in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_member_kill_and_postgres_crash() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let with = |id: &str| [arguments(folder.path()), flags(&server, id)].concat();
    let [first, killed] = ["a", "b"].map(|id| Process::start_with(&with(id)));
    let mut hosts = Hosts::of(&first.address).await;
    hosts.are(2).await;
    let served = App::default();
    let mut serving = Vec::new();
    for process in [&first, &killed] {
        serving.push(served.serve(&process.address).await);
    }
    let mut client = crate::running::client(&first.address).await;
    let dues = schedule_in_turn(&mut client, 100).await;
    drop(killed);
    server.kill();
    served.misses(&dues, 4).await;
    server.start_again();
    hosts.are(1).await;
    served.has(dues.iter().map(|(name, _)| name.clone())).await;
    served.tally(
        dues.iter().map(|(name, due)| (name, due)),
        "one of two killed, and their PostgreSQL crashed",
    );
    let twice = dues
        .iter()
        .filter(|(name, _)| served.times(name).len() > 1)
        .count();
    assert!(twice <= 20, "{twice} jobs were triggered twice");
    let database = sql(&server).await;
    until("all jobs have ended", || async {
        keys(&database).await == ["dapr/leadership/a"]
    })
    .await;
}

/// Invariant: a server clock set back does not delay a takeover until it shows the old time again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_ignores_clock_set_back() {
    let Some(server) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let with = |id: &str| [arguments(folder.path()), flags(&server, id)].concat();
    let [first, killed] = ["a", "b"].map(|id| Process::start_with(&with(id)));
    Hosts::of(&first.address).await.are(2).await;
    let served = App::default();
    let mut serving = Vec::new();
    for process in [&first, &killed] {
        serving.push(served.serve(&process.address).await);
    }
    let mut client = crate::running::client(&first.address).await;
    let mut dues = Vec::new();
    for at in 0..20 {
        let due_at = Timestamp::now() + Duration::from_secs(3);
        let name = format!("job-{at}");
        client
            .schedule_job(schedule(&name, app("app"), due(&due_at.to_string())))
            .await
            .unwrap();
        dues.push((name, due_at));
    }
    drop(killed);
    // The effect of setting the clock back by an hour.
    let database = sql(&server).await;
    database
        .batch_execute("UPDATE scheduler_leases SET ends = ends + interval '1 hour'")
        .await
        .unwrap();
    served.has(dues.iter().map(|(name, _)| name.clone())).await;
    served.tally(
        dues.iter().map(|(name, due)| (name, due)),
        "one of two killed, and PostgreSQL's clock set back an hour",
    );
}

/// Invariant: members keep their shards when the server's clock is set ahead: no job is lost, early or
/// triggered twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_once_with_clock_set_ahead() {
    let Some(server) = Postgres::start() else { return };
    let database = sql(&server).await;
    database.batch_execute(Postgres::SETTABLE_CLOCK).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let with = |id: &str| [arguments(folder.path()), flags(&server, id)].concat();
    let members = ["a", "b"].map(|id| Process::start_with(&with(id)));
    Hosts::of(&members[0].address).await.are(2).await;
    let served = App::default();
    let mut serving = Vec::new();
    for process in &members {
        serving.push(served.serve(&process.address).await);
    }
    let entries = async || {
        let sql = "SELECT created FROM fake.scheduler_pairs WHERE lease IS NOT NULL ORDER BY key";
        let rows = database.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>()
    };
    let before = entries().await;
    assert_eq!(before.len(), 2);
    let mut client = crate::running::client(&members[0].address).await;
    let dues = schedule_in_turn(&mut client, 40).await;
    database
        .batch_execute("UPDATE fake.clock SET shift = '1 hour'")
        .await
        .unwrap();
    served.has(dues.iter().map(|(name, _)| name.clone())).await;
    assert_eq!(entries().await, before, "members have lost their shards");
    for (name, _) in &dues {
        assert_eq!(served.times(name).len(), 1, "{name}");
    }
    served.tally(
        dues.iter().map(|(name, due)| (name, due)),
        "two, and PostgreSQL's clock set an hour ahead",
    );
}

/// Invariant: jobs stored after a failover to a server that lacks the latest changes are triggered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn triggers_after_revision_went_back() {
    let Some(server) = Postgres::start() else { return };
    let running = start_with(&flags(&server, "a")).await;
    let served = App::default();
    let _serving = served.serve(running.addresses.grpc).await;
    let mut client = running.client().await;
    let database = sql(&server).await;
    let ahead = "UPDATE scheduler_meta SET value = value + 1000 WHERE name = 'revision'";
    let behind = "UPDATE scheduler_meta SET value = value - 500 WHERE name = 'revision'";
    for (step, prefix) in [(ahead, "before-"), (behind, "after-"), (behind, "again-")] {
        Hosts::of(running.addresses.grpc).await.are(1).await;
        database.batch_execute(step).await.unwrap();
        for name in self::names(prefix, 3) {
            client
                .schedule_job(schedule(&name, app("app"), due("0s")))
                .await
                .unwrap();
        }
        served.has(self::names(prefix, 3)).await;
    }
}

#[tokio::test]
async fn refuses_newer_table_format() {
    let Some(server) = Postgres::start() else { return };
    let running = start_with(&flags(&server, "a")).await;
    Hosts::of(running.addresses.grpc).await.are(1).await;
    running.stop().await;
    let database = sql(&server).await;
    database
        .batch_execute("UPDATE scheduler_meta SET value = 99 WHERE name = 'format'")
        .await
        .unwrap();
    let running = start_with(&flags(&server, "a")).await;
    let mut client = running.client().await;
    let error = client
        .schedule_job(schedule("job", app("app"), due("1h")))
        .await
        .unwrap_err();
    assert!(error.message().contains("have format 99"), "{error}");
}

/// `docs/reference/scheduler.md` has these statements, instead of the commands for etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_sql_manages_namespace_jobs() {
    let Some(server) = Postgres::start() else { return };
    let page = include_str!("../../../../../../docs/reference/scheduler.md").replace("NAMESPACE", "ns");
    let found = |first: &str| {
        let from = &page[page.find(first).expect("the page has it")..];
        from[..from.find(';').unwrap()].to_owned()
    };
    let (select, delete) = (found("SELECT convert_from"), found("DELETE FROM scheduler_pairs"));

    let running = start_with(&flags(&server, "scheduler-0")).await;
    let mut client = running.client().await;
    let served = App::default();
    let _serving = served.serve(running.addresses.grpc).await;
    let twice = Job {
        schedule: Some("@every 1h".to_owned()),
        ..due("0s")
    };
    let reminder = crate::running::actor("app", "T", "1");
    for (name, metadata, job) in [
        ("later", app("app"), due("1h")),
        ("now", app("app"), twice),
        ("wake", reminder, due("1h")),
    ] {
        client.schedule_job(schedule(name, metadata, job)).await.unwrap();
    }
    let database = sql(&server).await;
    until("the counter is stored", || async {
        keys(&database).await.len() == 5
    })
    .await;
    running.stop().await;
    let rows = database.query(&select, &[]).await.unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(database.execute(&delete, &[]).await.unwrap(), 3);
    assert_eq!(keys(&database).await, ["dapr/jobs/actorreminder||ns||T||1||wake"]);
}
