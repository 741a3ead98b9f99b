use outrigger_components_testing::server::Etcd;
use tonic::transport::Channel;

use super::*;
use crate::proto::etcd::alarm_request::AlarmAction;
use crate::proto::etcd::{
    AlarmMember, CompactionRequest, DeleteRangeRequest, PutRequest, StatusResponse, kv_client::KvClient,
};
use crate::storage::Full;

/// Small, so that etcd is full soon.
const QUOTA: u64 = 16 << 20;
/// Short intervals.
const PACE: Pace = Pace {
    every: Duration::from_millis(50),
    alarm: Duration::from_millis(50),
};

async fn channel(etcd: &Etcd) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", etcd.endpoint())).unwrap();
    endpoint.connect().await.unwrap()
}

fn defragment(etcd: &Etcd, quota: u64) -> Defragment {
    Defragment::new(Client::of_child(etcd.endpoint()).unwrap(), quota)
}

async fn status(of: &Defragment) -> StatusResponse {
    of.status().await.unwrap()
}

#[tokio::test]
async fn defragments_after_deletions() {
    let Some(etcd) = Etcd::start() else { return };
    let client = defragment(&etcd, u64::MAX);
    let mut kv = KvClient::new(channel(&etcd).await);
    for at in 0_u8..64 {
        let put = PutRequest {
            key: format!("dapr/jobs/{at}").into(),
            value: vec![at; 256 << 10].into(),
            ..PutRequest::default()
        };
        kv.put(put).await.unwrap();
    }
    // etcd reports the size shortly after the write.
    let mut full = status(&client).await;
    while full.db_size < 16 << 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        full = status(&client).await;
    }
    // All of it is in use, so it is not defragmented.
    client.defragment_unused(&full).await.unwrap();
    assert!(status(&client).await.db_size >= full.db_size, "{full:?}");

    let all = DeleteRangeRequest {
        key: "dapr/jobs/".into(),
        range_end: "dapr/jobs0".into(),
        prev_kv: false,
    };
    let deleted = kv.delete_range(all).await.unwrap().into_inner();
    let request = CompactionRequest {
        revision: deleted.header.unwrap().revision,
        physical: true,
    };
    kv.compact(request).await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(defragment(&etcd, u64::MAX).run(PACE, stop.clone()));
    let smaller = async {
        while status(&client).await.db_size > 1 << 20 {
            // etcd updates its count of free pages on the next write.
            let put = PutRequest {
                key: "dapr/jobs/other".into(),
                ..PutRequest::default()
            };
            kv.put(put).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(60), smaller).await;
    let left = status(&client).await;
    assert!(within.is_ok(), "{left:?}");
    stop.cancel();
    running.await.unwrap();
}

/// Puts jobs of 256 KiB, numbered from `first`, until etcd refuses one; returns the number of the refused
/// job.
async fn fill(kv: &mut KvClient<Channel>, first: usize) -> usize {
    for at in first.. {
        let put = PutRequest {
            key: format!("dapr/jobs/{at}").into(),
            value: vec![7; 256 << 10].into(),
            ..PutRequest::default()
        };
        if kv.put(put).await.is_err() {
            return at;
        }
        assert!(at < 1000, "it has no end");
    }
    0
}

/// Whether etcd accepts a job, as the scheduler sees it.
async fn takes(of: &Defragment) -> Result<(), StorageError> {
    let put = PutRequest {
        key: "dapr/jobs/another".into(),
        ..PutRequest::default()
    };
    let putting = of.client.call(
        put,
        |mut stubs, request| async move { stubs.kv.put(request).await },
    );
    putting.await.map(drop)
}

/// Invariant: the alarm is disarmed once there is space, not before, and no other alarm is disarmed.
#[tokio::test]
async fn full_etcd_recovers_after_deletions() {
    let Some(etcd) = Etcd::start_with_quota(QUOTA) else {
        return;
    };
    let asked = defragment(&etcd, QUOTA);
    let mut kv = KvClient::new(channel(&etcd).await);
    let mut jobs = fill(&mut kv, 0).await;
    assert!(jobs > 20);
    assert_eq!(takes(&asked).await, Err(StorageError::Full(Full::Child)));
    let stop = CancellationToken::new();
    let running = tokio::spawn(defragment(&etcd, QUOTA).run(PACE, stop.clone()));

    // No recovery without space. A file written in many small steps has space to reclaim, so that is filled
    // too.
    let mut is_raised = false;
    for _ in 0..10 {
        tokio::time::sleep(PACE.alarm * 20).await;
        is_raised = !asked.alarms(AlarmAction::Get, None).await.unwrap().is_empty();
        if is_raised {
            break;
        }
        jobs = fill(&mut kv, jobs).await;
    }
    assert!(is_raised, "{:?}", status(&asked).await);
    assert_eq!(takes(&asked).await, Err(StorageError::Full(Full::Child)));

    let other = AlarmMember {
        member_id: 42,
        alarm: AlarmType::Nospace.into(),
    };
    asked.alarms(AlarmAction::Activate, Some(other)).await.unwrap();
    let all = DeleteRangeRequest {
        key: "dapr/jobs/".into(),
        range_end: "dapr/jobs0".into(),
        prev_kv: false,
    };
    kv.delete_range(all).await.unwrap();
    let freed = async {
        while asked.alarms(AlarmAction::Get, None).await.unwrap() != [other] {
            tokio::time::sleep(PACE.alarm).await;
        }
    };
    let within = tokio::time::timeout(Duration::from_secs(60), freed).await;
    assert!(within.is_ok(), "{:?}", asked.alarms(AlarmAction::Get, None).await);
    asked.alarms(AlarmAction::Deactivate, Some(other)).await.unwrap();
    assert_eq!(takes(&asked).await, Ok(()));
    stop.cancel();
    running.await.unwrap();
}

/// Invariant: a raised quota also ends the alarm.
#[tokio::test]
async fn full_etcd_recovers_with_raised_quota() {
    let Some(etcd) = Etcd::start_with_quota(QUOTA) else {
        return;
    };
    let asked = defragment(&etcd, QUOTA * 2);
    let mut kv = KvClient::new(channel(&etcd).await);
    assert!(fill(&mut kv, 0).await > 20);
    let mut room = full::SpaceRecovery::new(QUOTA * 2, PACE.every);
    let full = status(&asked).await;
    assert!(
        full.errors.iter().any(|error| error.contains("NOSPACE")),
        "{full:?}"
    );
    room.recover(&asked, &full).await.unwrap();
    // Another refused write may raise the alarm once more.
    for _ in 0..20 {
        if asked.alarms(AlarmAction::Get, None).await.unwrap().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        room.recover(&asked, &status(&asked).await).await.unwrap();
    }
    panic!("the alarm stays");
}
