//! Schedulers on etcd.

use std::time::Duration;

use jiff::Timestamp;
use outrigger_component_conformance::Link;
use outrigger_components_testing::{server::Etcd, tls::Certificates};
use outrigger_wire::scheduler::v1::{DeleteJobRequest, GetJobRequest, Job, ListJobsRequest};
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::Channel;

use super::group::{App, Hosts, schedule_in_turn};
use crate::crash::Process;
use crate::running::{Running, TIMEOUT, app, arguments, due, schedule, start_with, until};

/// Flags of a scheduler on an etcd.
pub(crate) fn flags(etcd: &Etcd, id: &str) -> Vec<String> {
    vec![
        "--etcd-embed=false".to_owned(),
        format!("--etcd-client-endpoints=http://{}", etcd.endpoint()),
        format!("--id={id}"),
        format!("--etcd-initial-cluster={id}=http://localhost:1"),
    ]
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pair {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

impl Range {
    /// All keys below `dapr/`.
    pub(crate) fn all() -> Self {
        Self {
            key: b"dapr/".to_vec(),
            end: b"dapr0".to_vec(),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct Pairs {
    #[prost(message, repeated, tag = "2")]
    pairs: Vec<Pair>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// An etcd call of another client.
pub(super) async fn etcd_call<Q, A>(
    endpoint: &str,
    path: &'static str,
    request: Q,
) -> Result<A, tonic::Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let failed = |error: tonic::transport::Error| tonic::Status::unavailable(error.to_string());
    let channel = Channel::from_shared(format!("http://{endpoint}")).unwrap();
    call_on(channel.connect().await.map_err(failed)?, path, request).await
}

/// Like `etcd_call`, on a connection.
pub(crate) async fn call_on<Q, A>(
    channel: Channel,
    path: &'static str,
    request: Q,
) -> Result<A, tonic::Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let failed = |error: tonic::transport::Error| tonic::Status::unavailable(error.to_string());
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(failed)?;
    let codec: tonic_prost::ProstCodec<Q, A> = tonic_prost::ProstCodec::default();
    let path = path.parse().unwrap();
    let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
    answer.map(tonic::Response::into_inner)
}

/// All pairs in etcd below `dapr/`.
async fn stored(etcd: &Etcd) -> Vec<(String, Pair)> {
    let channel = Channel::from_shared(format!("http://{}", etcd.endpoint())).unwrap();
    stored_on(channel.connect().await.unwrap()).await
}

/// Like `stored`, on a connection.
pub(crate) async fn stored_on(channel: Channel) -> Vec<(String, Pair)> {
    let pairs: Pairs = call_on(channel, "/etcdserverpb.KV/Range", Range::all())
        .await
        .unwrap();
    let named = pairs.pairs.into_iter();
    named
        .map(|pair| (String::from_utf8(pair.key.clone()).unwrap(), pair))
        .collect()
}

async fn keys(etcd: &Etcd) -> Vec<String> {
    stored(etcd).await.into_iter().map(|(key, _)| key).collect()
}

fn names(prefix: &str, count: usize) -> impl Iterator<Item = String> + Clone {
    let prefix = prefix.to_owned();
    (0..count).map(move |at| format!("{prefix}{at}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_keys_like_dapr() {
    let Some(etcd) = Etcd::start() else { return };
    let running = start_with(&flags(&etcd, "scheduler-0")).await;
    let mut client = running.client().await;
    let served = App::default();
    let _serving = served.serve(running.addresses.grpc).await;
    client
        .schedule_job(schedule("later", app("app"), due("1h")))
        .await
        .unwrap();
    let twice = Job {
        schedule: Some("@every 1h".to_owned()),
        ..due("0s")
    };
    client
        .schedule_job(schedule("now", app("app"), twice))
        .await
        .unwrap();
    let error = client
        .schedule_job(schedule("now", app("app"), due("0s")))
        .await
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::AlreadyExists);
    served.has(["now".to_owned()].into_iter()).await;
    until("the counter is stored", || async {
        keys(&etcd).await
            == [
                "dapr/counters/app||ns||app||now",
                "dapr/jobs/app||ns||app||later",
                "dapr/jobs/app||ns||app||now",
                "dapr/leadership/scheduler-0",
            ]
    })
    .await;
    let leadership = stored(&etcd).await.pop().unwrap().1;
    assert_ne!(leadership.lease, 0, "the entry ends with its scheduler");

    let metadata = app("app");
    let name = "now".to_owned();
    let request = GetJobRequest {
        name: name.clone(),
        metadata: metadata.clone(),
    };
    let got = client.get_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!(got.schedule.as_deref(), Some("@every 1h"));
    let delete = DeleteJobRequest {
        name,
        metadata: metadata.clone(),
    };
    client.delete_job(delete).await.unwrap();
    let listed = client.list_jobs(ListJobsRequest { metadata }).await.unwrap();
    let listed: Vec<String> = listed.into_inner().jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(listed, ["later"]);
    until("the scheduler is healthy", || async {
        Running::http(running.addresses.healthz, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    })
    .await;
    assert_eq!(running.addresses.etcd_api, None);
    running.stop().await;
    assert_eq!(
        keys(&etcd).await,
        ["dapr/jobs/app||ns||app||later"],
        "the entry and the counter are deleted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continues_jobs_of_dapr() {
    let Some(etcd) = Etcd::start() else { return };
    // The bytes that Dapr's scheduler 1.17 writes for a job with two hourly triggers, the first of which is
    // done.
    let metadata = app("app").unwrap().encode_to_vec();
    let any = |of: &str, value: Vec<u8>| prost_types::Any {
        type_url: format!("type.googleapis.com/{of}"),
        value,
    };
    let definition = Definition {
        schedule: Some("@every 1s".to_owned()),
        repeats: Some(2),
        metadata: Some(any("dapr.proto.scheduler.v1.JobMetadata", metadata)),
        payload: Some(any("google.protobuf.BytesValue", b"payload".to_vec())),
    };
    let an_hour_ago = Timestamp::now().as_second() - 3600;
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let job = StoredJob {
        partition_id: 0xfeed_f00d_dead_beef,
        start: at(an_hour_ago),
        job: Some(definition),
    };
    let counter = StoredCounter {
        job_partition_id: job.partition_id,
        count: 1,
        last_trigger: at(an_hour_ago + 1),
    };
    for (folder, value) in [
        ("jobs", job.encode_to_vec()),
        ("counters", counter.encode_to_vec()),
    ] {
        let put = Put {
            key: format!("dapr/{folder}/app||ns||app||old").into_bytes(),
            value,
        };
        let () = etcd_call(&etcd.endpoint(), "/etcdserverpb.KV/Put", put)
            .await
            .unwrap();
    }
    let running = start_with(&flags(&etcd, "scheduler-0")).await;
    let served = App::default();
    let _serving = served.serve(running.addresses.grpc).await;
    served.has(["old".to_owned()].into_iter()).await;
    until("the job ends after its second trigger", || async {
        keys(&etcd).await == ["dapr/leadership/scheduler-0"]
    })
    .await;
    assert_eq!(served.times("old").len(), 1);
}

#[derive(Clone, PartialEq, Message)]
struct StoredJob {
    #[prost(uint64, tag = "1")]
    partition_id: u64,
    #[prost(message, optional, tag = "2")]
    start: Option<prost_types::Timestamp>,
    #[prost(message, optional, tag = "5")]
    job: Option<Definition>,
}

#[derive(Clone, PartialEq, Message)]
struct Definition {
    #[prost(string, optional, tag = "1")]
    schedule: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    repeats: Option<u32>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<prost_types::Any>,
    #[prost(message, optional, tag = "6")]
    payload: Option<prost_types::Any>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredCounter {
    #[prost(uint64, tag = "1")]
    job_partition_id: u64,
    #[prost(uint32, tag = "2")]
    count: u32,
    #[prost(message, optional, tag = "3")]
    last_trigger: Option<prost_types::Timestamp>,
}

/// Invariant: each job is triggered once, by one member; when a member stops, the other triggers its jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_and_take_over_jobs() {
    let Some(etcd) = Etcd::start() else { return };
    let served = App::default();
    let first = start_with(&flags(&etcd, "scheduler-0")).await;
    let mut hosts = Hosts::of(first.addresses.grpc).await;
    assert_eq!(
        hosts.are(1).await,
        std::slice::from_ref(&first.addresses.broadcast)
    );
    let second = start_with(&flags(&etcd, "scheduler-1")).await;
    let mut both = [&first, &second].map(|running| running.addresses.broadcast.clone());
    both.sort_unstable();
    assert_eq!(hosts.are(2).await, both);
    assert_eq!(Hosts::of(second.addresses.grpc).await.are(2).await, both);

    // A sidecar at each: triggers come from the job's owner, whichever member took the call.
    let at_first = served.serve(first.addresses.grpc).await;
    let at_second = App::default();
    let serving = at_second.serve(second.addresses.grpc).await;
    let mut client = first.client().await;
    for name in names("shared-", 40) {
        client
            .schedule_job(schedule(&name, app("app"), due("0s")))
            .await
            .unwrap();
    }
    until("each job is triggered by one of them", || async {
        names("shared-", 40).all(|name| served.times(&name).len() + at_second.times(&name).len() == 1)
    })
    .await;
    for app in [&served, &at_second] {
        assert!(
            names("shared-", 40).any(|name| !app.times(&name).is_empty()),
            "one member triggered none"
        );
    }

    // The second member's jobs pass to the first.
    for name in names("later-", 20) {
        client
            .schedule_job(schedule(&name, app("app"), due("2s")))
            .await
            .unwrap();
    }
    second.stop().await;
    drop(serving);
    assert_eq!(
        hosts.are(1).await,
        std::slice::from_ref(&first.addresses.broadcast)
    );
    served.has(names("later-", 20)).await;
    drop(at_first);
}

/// Invariant: no acknowledged job is lost or early when a member is killed and etcd is unavailable for a
/// while. Answered triggers are not repeated, except those in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_member_kill_and_etcd_outage() {
    let Some(mut etcd) = Etcd::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let with = |id: &str| [arguments(folder.path()), flags(&etcd, id)].concat();
    let processes = ["a", "b", "c"].map(|id| Process::start_with(&with(id)));
    let mut hosts = Hosts::of(&processes[0].address).await;
    hosts.are(3).await;
    let served = App::default();
    let mut serving = Vec::new();
    for process in &processes {
        serving.push(served.serve(&process.address).await);
    }
    let mut client = crate::running::client(&processes[0].address).await;
    // Due before the kill, between it and the expiry of the lease, and after.
    let dues = schedule_in_turn(&mut client, 120).await;
    let [first, killed, third] = processes;
    drop(killed);
    // etcd is unavailable for a while, with jobs due.
    etcd.cut();
    served.misses(&dues, 8).await;
    etcd.restore();
    hosts.are(2).await;
    served.has(dues.iter().map(|(name, _)| name.clone())).await;
    served.tally(
        dues.iter().map(|(name, due)| (name, due)),
        "one of three killed, and their etcd away",
    );
    // An answered trigger is not repeated once the answer is stored: at most those in flight at the kill or
    // during the outage arrive twice.
    let twice = dues
        .iter()
        .filter(|(name, _)| served.times(name).len() > 1)
        .count();
    assert!(twice <= 20, "{twice} jobs were triggered twice");
    until("all jobs have ended", || async {
        keys(&etcd)
            .await
            .iter()
            .all(|key| key.starts_with("dapr/leadership/"))
    })
    .await;
    drop((first, third));
}

/// An external etcd with TLS, verified by the system's CAs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verifies_etcd_tls() {
    let certificates = Certificates::new();
    let Some(etcd) = Etcd::start_https(&certificates) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut arguments = arguments(folder.path());
    arguments.extend([
        "--etcd-embed=false".to_owned(),
        format!("--etcd-client-endpoints=https://{}", etcd.endpoint()),
    ]);
    let roots = certificates.path("root.pem");
    let known = [("SSL_CERT_FILE", roots.to_str().unwrap())];
    let process = Process::start_in(&arguments, &known);
    let mut client = crate::running::client(&process.address).await;
    let request = schedule("kept", app("app"), due("1h"));
    client.schedule_job(request).await.unwrap();
    drop(process);
    // A scheduler that does not trust the CA cannot join: it loads and stores no jobs.
    let output = tempfile::NamedTempFile::new().unwrap();
    let mut stranger = std::process::Command::new(env!("CARGO_BIN_EXE_scheduler"))
        .args(&arguments)
        .env("SSL_CERT_FILE", certificates.path("client.pem"))
        .stdout(output.as_file().try_clone().unwrap())
        .stderr(output.as_file().try_clone().unwrap())
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(output.path()).unwrap();
    let refused = tokio::time::timeout(TIMEOUT, async {
        while !said().contains("invalid peer certificate") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert!(refused.is_ok(), "{}", said());
    assert!(
        said().contains("cannot join the group of schedulers"),
        "{}",
        said()
    );
}
