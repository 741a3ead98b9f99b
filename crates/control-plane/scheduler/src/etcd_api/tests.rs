use outrigger_wire::scheduler::v1::{
    Job as Asked, JobMetadata, JobTargetMetadata, TargetJob, job_target_metadata::Type,
};
use tokio::sync::mpsc;
use tonic::Code;

use super::*;
use crate::storage::Change;
use crate::storage::embedded::Location;

struct Opened {
    api: EtcdApi,
    changes: mpsc::Receiver<Change>,
    _folder: tempfile::TempDir,
}

fn open() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let location = Location {
        folder: folder.path().to_owned(),
        id: "scheduler-0".to_owned(),
        quota: i64::MAX,
    };
    let (store, changes) = Embedded::open(&location).unwrap();
    Opened {
        api: EtcdApi::new(store),
        changes,
        _folder: folder,
    }
}

fn job() -> Bytes {
    let metadata = JobMetadata {
        app_id: "app".into(),
        namespace: "ns".into(),
        target: Some(JobTargetMetadata {
            r#type: Some(Type::Job(TargetJob {})),
        }),
        concurrency_key: None,
    };
    let asked = Asked {
        due_time: Some("1h".to_owned()),
        ..Asked::default()
    };
    let job = stored::create(asked, &metadata, 5, jiff::Timestamp::now()).unwrap();
    job.encode_to_vec().into()
}

fn put_of(key: &'static str, value: Bytes) -> PutRequest {
    PutRequest {
        key: key.into(),
        value,
        ..PutRequest::default()
    }
}

fn range_of(key: &'static str, end: &'static str) -> RangeRequest {
    RangeRequest {
        key: key.into(),
        range_end: end.into(),
        ..RangeRequest::default()
    }
}

async fn keys(api: &EtcdApi, request: RangeRequest) -> Vec<Bytes> {
    let answer = api.range(Request::new(request)).await.unwrap().into_inner();
    answer.kvs.into_iter().map(|pair| pair.key).collect()
}

#[tokio::test]
async fn stores_jobs_of_tools() {
    let mut opened = open();
    let api = &opened.api;
    for key in ["dapr/jobs/app||ns||app||a", "dapr/jobs/app||ns||app||b"] {
        api.put(Request::new(put_of(key, job()))).await.unwrap();
    }
    announce(&api.store, "scheduler-0", "host:1").await.unwrap();
    assert_eq!(
        keys(api, range_of("dapr/", "dapr0")).await,
        [
            "dapr/jobs/app||ns||app||a",
            "dapr/jobs/app||ns||app||b",
            "dapr/leadership/scheduler-0"
        ]
    );
    assert_eq!(keys(api, range_of("\0", "\0")).await.len(), 3, "all keys");
    let first = RangeRequest {
        limit: 1,
        ..range_of("dapr/jobs/", "dapr/jobs0")
    };
    let page = api.range(Request::new(first)).await.unwrap().into_inner();
    assert_eq!((page.kvs.len(), page.count, page.more), (1, 2, true));
    assert_eq!(
        (page.kvs[0].version, &page.kvs[0].value),
        (1, &job_like(&page.kvs[0].value))
    );
    let replica = api
        .range(Request::new(range_of("dapr/leadership/scheduler-0", "")))
        .await
        .unwrap();
    let leadership = Leadership::decode(replica.into_inner().kvs[0].value.clone()).unwrap();
    assert_eq!(leadership.total, 1);

    let delete = DeleteRangeRequest {
        key: "dapr/jobs/app||ns||app||a".into(),
        ..DeleteRangeRequest::default()
    };
    let deleted = api.delete_range(Request::new(delete)).await.unwrap().into_inner();
    assert_eq!(deleted.deleted, 1);
    let mut changes = Vec::new();
    while changes.len() < 4 {
        changes.push(match opened.changes.recv().await.unwrap() {
            Change::Put { name, .. } => format!("put {name}"),
            Change::Deleted { name, .. } => format!("deleted {name}"),
            Change::Loaded => "loaded".to_owned(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        changes,
        [
            "loaded",
            "put app||ns||app||a",
            "put app||ns||app||b",
            "deleted app||ns||app||a"
        ]
    );
}

/// A valid stored job.
fn job_like(value: &Bytes) -> Bytes {
    stored::read(value, None).unwrap();
    value.clone()
}

#[tokio::test]
async fn runs_one_transaction_branch() {
    let opened = open();
    let api = &opened.api;
    let key = "dapr/jobs/app||ns||app||a";
    let new = |version| TxnRequest {
        compare: vec![Compare {
            key: key.into(),
            target_union: Some(compare::TargetUnion::Version(version)),
            ..Compare::default()
        }],
        success: vec![RequestOp {
            request: Some(request_op::Request::RequestPut(put_of(key, job()))),
        }],
        failure: vec![RequestOp {
            request: Some(request_op::Request::RequestRange(range_of(key, ""))),
        }],
    };
    let answer = api.txn(Request::new(new(0))).await.unwrap().into_inner();
    assert!(answer.succeeded);
    let answer = api.txn(Request::new(new(0))).await.unwrap().into_inner();
    assert!(!answer.succeeded);
    match &answer.responses[0].response {
        Some(response_op::Response::ResponseRange(range)) => assert_eq!(range.kvs.len(), 1),
        other => panic!("{other:?}"),
    }
    assert!(
        api.txn(Request::new(new(1)))
            .await
            .unwrap()
            .into_inner()
            .succeeded
    );
}

#[tokio::test]
async fn refuses_unreadable_jobs() {
    let opened = open();
    let api = &opened.api;
    for (key, value) in [
        ("dapr/jobs/app||ns||app||a", Bytes::from_static(&[0xff])),
        ("dapr/jobs/app||ns||app||a", Bytes::new()),
        ("dapr/counters/app||ns||app||a", Bytes::from_static(&[0xff])),
        ("dapr/leadership/scheduler-0", Bytes::new()),
        ("elsewhere", Bytes::new()),
    ] {
        let error = api.put(Request::new(put_of(key, value))).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{key}: {error}");
    }
    let all = DeleteRangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..DeleteRangeRequest::default()
    };
    let error = api.delete_range(Request::new(all)).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let old = RangeRequest {
        revision: 1,
        ..range_of("a", "")
    };
    let error = api.range(Request::new(old)).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
}

#[tokio::test]
async fn rolls_back_too_large_response() {
    let opened = open();
    let mut api = opened.api.clone();
    let (old, new) = ("dapr/jobs/app||ns||app||a", "dapr/jobs/app||ns||app||b");
    let value = job();
    let pair = old.len() + value.len();
    api.put(Request::new(put_of(old, value.clone()))).await.unwrap();
    let all = || range_of("dapr/jobs/", "dapr/jobs0");
    let part = |request| RequestOp {
        request: Some(request),
    };
    // Each answer fits alone, but not both together.
    let put = || part(request_op::Request::RequestPut(put_of(new, value.clone())));
    let read = || part(request_op::Request::RequestRange(range_of(old, "")));
    let txn = |success| TxnRequest {
        success,
        ..TxnRequest::default()
    };
    api.most = pair * 2 - 1;
    let error = api
        .txn(Request::new(txn(vec![put(), read(), read()])))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(keys(&api, all()).await, [old], "what was refused is not stored");
    api.txn(Request::new(txn(vec![put(), read()]))).await.unwrap();

    let delete = |prev_kv| DeleteRangeRequest {
        key: "dapr/jobs/".into(),
        range_end: "dapr/jobs0".into(),
        prev_kv,
    };
    let error = api.delete_range(Request::new(delete(true))).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    api.most = pair - 1;
    let replace = PutRequest {
        prev_kv: true,
        ..put_of(old, value.clone())
    };
    let error = api.put(Request::new(replace)).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let error = api.range(Request::new(range_of(old, ""))).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let deleted = api
        .delete_range(Request::new(delete(false)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(deleted.deleted, 2);
}
