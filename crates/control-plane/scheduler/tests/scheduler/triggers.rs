//! Jobs from scheduling to their triggers and their end.

use outrigger_components_testing::proxy::Proxy;
use std::collections::HashMap;

use jiff::Timestamp;
use outrigger_wire::common::v1::{
    JobFailurePolicy, JobFailurePolicyConstant, JobFailurePolicyDrop, job_failure_policy,
};
use outrigger_wire::scheduler::v1::{
    DeleteByMetadataRequest, DeleteByNamePrefixRequest, DeleteJobRequest, GetJobRequest, Job,
    ListJobsRequest, ScheduleJobRequest, WatchHostsRequest,
};
use tonic::Code;

use crate::running::{
    Running, Sidecar, TIMEOUT, actor, app, client, due, schedule, start, start_with, until,
};
use crate::tally::Tally;

async fn jobs(running: &Running, app_id: &str) -> Vec<String> {
    let request = ListJobsRequest {
        metadata: app(app_id),
    };
    let listed = running
        .client()
        .await
        .list_jobs(request)
        .await
        .unwrap()
        .into_inner();
    listed.jobs.into_iter().map(|job| job.name).collect()
}

#[tokio::test]
async fn delivers_trigger_once_with_payload() {
    let running = start().await;
    let mut client = running.client().await;
    let data = prost_types::Any {
        type_url: "t".to_owned(),
        value: b"payload".to_vec(),
    };
    let job = Job {
        data: Some(data.clone()),
        ..due("0s")
    };
    client
        .schedule_job(schedule("once", app("app"), job))
        .await
        .unwrap();
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    let trigger = sidecar.next().await;
    assert_eq!((trigger.name.as_str(), trigger.data), ("once", Some(data)));
    assert_eq!(trigger.metadata, app("app"));
    sidecar.succeed(trigger.id);
    until("the job is deleted", || async {
        jobs(&running, "app").await.is_empty()
    })
    .await;

    let metrics = Running::http(running.addresses.metrics.unwrap(), "/").await;
    for line in [
        "dapr_scheduler_jobs_triggered_total{type=\"job\"} 1",
        "dapr_scheduler_sidecars_connected 1",
        "process_open_fds ",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    until("the scheduler is healthy", || async {
        Running::http(running.addresses.healthz, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    })
    .await;
}

#[tokio::test]
async fn repeats_in_order_and_ends() {
    let running = start().await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    let job = Job {
        schedule: Some("@every 0s".to_owned()),
        repeats: Some(3),
        ..due("0s")
    };
    client
        .schedule_job(schedule("thrice", app("app"), job))
        .await
        .unwrap();
    for _ in 0..3 {
        let trigger = sidecar.next().await;
        sidecar.succeed(trigger.id);
    }
    until("the job is deleted", || async {
        jobs(&running, "app").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn delivers_names_with_separators() {
    let running = start().await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &["Ferry"]).await;
    for metadata in [app("app"), actor("app", "Ferry", "7||8")] {
        for name in ["a|b", "a||b", "a@b||"] {
            let job = due("1h");
            let kept = schedule(name, metadata.clone(), job);
            client.schedule_job(kept).await.unwrap();
            let request = ListJobsRequest {
                metadata: metadata.clone(),
            };
            let listed = client.list_jobs(request).await.unwrap().into_inner().jobs;
            let names: Vec<_> = listed.iter().map(|job| job.name.as_str()).collect();
            assert_eq!(names, [name]);
            let now = ScheduleJobRequest {
                overwrite: true,
                ..schedule(name, metadata.clone(), due("0s"))
            };
            client.schedule_job(now).await.unwrap();
            let trigger = sidecar.next().await;
            assert_eq!(trigger.name, name);
            sidecar.succeed(trigger.id);
            until("the job is deleted", || async {
                let request = ListJobsRequest {
                    metadata: metadata.clone(),
                };
                let listed = client.clone().list_jobs(request).await.unwrap();
                listed.into_inner().jobs.is_empty()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn applies_failure_policy() {
    let running = start().await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    let with = |policy| Job {
        failure_policy: Some(JobFailurePolicy { policy: Some(policy) }),
        ..due("0s")
    };
    let twice = job_failure_policy::Policy::Constant(JobFailurePolicyConstant {
        interval: None,
        max_retries: Some(2),
    });
    let begun = Timestamp::now();
    client
        .schedule_job(schedule("twice", app("app"), with(twice)))
        .await
        .unwrap();
    let mut times = HashMap::<String, Vec<Timestamp>>::new();
    for _ in 0..3 {
        let trigger = sidecar.next().await;
        sidecar.fail(trigger.id);
        times.entry(trigger.name).or_default().push(Timestamp::now());
    }
    until("the job is dropped after its retries", || async {
        jobs(&running, "app").await.is_empty()
    })
    .await;
    let drop = job_failure_policy::Policy::Drop(JobFailurePolicyDrop {});
    client
        .schedule_job(schedule("dropped", app("app"), with(drop)))
        .await
        .unwrap();
    let trigger = sidecar.next().await;
    sidecar.fail(trigger.id);
    times.entry(trigger.name).or_default().push(Timestamp::now());
    until("the job is dropped", || async {
        jobs(&running, "app").await.is_empty()
    })
    .await;
    let failed = ["twice", "dropped"].map(str::to_owned);
    Tally::of(failed.iter().map(|name| (name, &begun)), |name| {
        times.get(name).cloned().unwrap_or_default()
    })
    .report("an app that answers failure");
}

/// Invariant: the unanswered triggers of a killed sidecar go to another one.
#[tokio::test]
async fn redelivers_after_sidecar_loss() {
    let running = start().await;
    let mut client = running.client().await;
    let mut first = Sidecar::connect(&mut client, "app", &["type"]).await;
    let mut dues = Vec::new();
    for at in 0..20 {
        let (name, now) = (format!("r{at}"), Timestamp::now());
        let job = due(&now.to_string());
        client
            .schedule_job(schedule(&name, actor("other", "type", "1"), job))
            .await
            .unwrap();
        dues.push((name, now));
    }
    let mut times = HashMap::<String, Vec<Timestamp>>::new();
    for _ in &dues {
        let name = first.next().await.name;
        times.entry(name).or_default().push(Timestamp::now());
    }
    let mut second = Sidecar::connect(&mut client, "third", &["type"]).await;
    drop(first);
    for _ in &dues {
        let trigger = second.next().await;
        assert_eq!(trigger.metadata, actor("other", "type", "1"));
        second.succeed(trigger.id);
        times.entry(trigger.name).or_default().push(Timestamp::now());
    }
    assert!(
        times.values().all(|times| times.len() == 2),
        "each is triggered once more"
    );
    let dues = dues.iter().map(|(name, due)| (name, due));
    Tally::of(dues, |name| times.get(name).cloned().unwrap_or_default())
        .report("a sidecar killed over its triggers");
}

#[tokio::test]
async fn unknown_answer_ends_stream() {
    let running = start().await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    sidecar.succeed(77);
    let ended = tokio::time::timeout(TIMEOUT, sidecar.triggers.message())
        .await
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unknown);
}

#[tokio::test]
async fn finds_and_deletes_jobs_by_target() {
    let running = start().await;
    let mut client = running.client().await;
    for name in ["a1", "a2", "b"] {
        client
            .schedule_job(schedule(name, app("app"), due("1h")))
            .await
            .unwrap();
        client
            .schedule_job(schedule(name, app("apple"), due("1h")))
            .await
            .unwrap();
    }
    let prefix = DeleteByNamePrefixRequest {
        name_prefix: "a".to_owned(),
        metadata: app("app"),
    };
    client.delete_by_name_prefix(prefix).await.unwrap();
    assert_eq!(jobs(&running, "app").await, ["b"]);
    let one = DeleteJobRequest {
        name: "b".to_owned(),
        metadata: app("apple"),
    };
    client.delete_job(one.clone()).await.unwrap();
    client.delete_job(one).await.unwrap();
    let all = |id_prefix_match| DeleteByMetadataRequest {
        metadata: app("app"),
        id_prefix_match,
    };
    client.delete_by_metadata(all(None)).await.unwrap();
    assert!(jobs(&running, "app").await.is_empty());
    assert_eq!(jobs(&running, "apple").await, ["a1", "a2"]);
    client.delete_by_metadata(all(Some(true))).await.unwrap();
    assert!(jobs(&running, "apple").await.is_empty());
    let get = GetJobRequest {
        name: "a1".to_owned(),
        metadata: app("apple"),
    };
    let error = client.get_job(get).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::NotFound, "job not found: a1")
    );
}

#[tokio::test]
async fn announces_address_to_sidecars() {
    let running = start().await;
    let mut hosts = running
        .client()
        .await
        .watch_hosts(WatchHostsRequest {})
        .await
        .unwrap()
        .into_inner();
    let list = tokio::time::timeout(TIMEOUT, hosts.message())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let addresses: Vec<_> = list.hosts.into_iter().map(|host| host.address).collect();
    assert_eq!(addresses, [running.addresses.grpc.to_string()]);
    assert_eq!(running.addresses.broadcast, addresses[0]);
}

/// Invariant: a trigger of a partitioned sidecar goes to another one after about 8 seconds.
#[tokio::test]
async fn redelivers_after_sidecar_partition() {
    let running = start().await;
    let way = Proxy::start(running.addresses.grpc.port()).await;
    let mut over = client(format!("127.0.0.1:{}", way.port)).await;
    let mut cut_off = Sidecar::connect(&mut over, "app", &[]).await;
    let mut direct = running.client().await;
    direct
        .schedule_job(schedule("a", app("app"), due("0s")))
        .await
        .unwrap();
    assert_eq!(cut_off.next().await.name, "a");
    way.lose();
    let mut other = Sidecar::connect(&mut direct, "app", &[]).await;
    let next = tokio::time::timeout(TIMEOUT / 2, other.next()).await;
    let trigger = next.expect("the partitioned sidecar still holds it");
    assert_eq!(trigger.name, "a");
    other.succeed(trigger.id);
}

/// Invariant: an answer that arrives soon after the shutdown began is stored, and the trigger is not
/// repeated.
#[tokio::test]
async fn stores_answer_during_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [format!("--etcd-data-dir={}", folder.path().display())];
    let running = start_with(&flags).await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    client
        .schedule_job(schedule("a", app("app"), due("0s")))
        .await
        .unwrap();
    let trigger = sidecar.next().await;
    let stopping = running.stopping();
    sidecar.succeed(trigger.id);
    let ended = tokio::time::timeout(TIMEOUT, sidecar.triggers.message()).await;
    let ended = ended.expect("the stream ends with the scheduler");
    let is_fault = |fault: &tonic::Status| fault.message().contains("unknown trigger");
    assert!(!ended.as_ref().is_err_and(is_fault), "{ended:?}");
    stopping.await;
    let running = start_with(&flags).await;
    assert!(jobs(&running, "app").await.is_empty());
}
