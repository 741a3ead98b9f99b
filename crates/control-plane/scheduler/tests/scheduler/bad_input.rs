//! Invalid calls: their status codes, and messages that name the field.

use outrigger_wire::scheduler::v1::{GetJobRequest, Job, JobMetadata, ScheduleJobRequest};
use tonic::Code;

use crate::running::{app, due, schedule, start};

#[tokio::test]
async fn refuses_invalid_calls() {
    let running = start().await;
    let mut client = running.client().await;
    let every = |schedule: &str| Job {
        schedule: Some(schedule.to_owned()),
        ..Job::default()
    };
    let ttl = Job {
        ttl: Some("2026-03-01T00:00:00Z".to_owned()),
        due_time: Some("2h".to_owned()),
        ..every("@daily")
    };
    let nobody = JobMetadata {
        app_id: String::new(),
        ..app("app").unwrap()
    };
    let nothing = JobMetadata {
        target: None,
        ..app("app").unwrap()
    };
    let cases: Vec<(ScheduleJobRequest, Code, &str)> = vec![
        (
            schedule("a", app("app"), Job::default()),
            Code::Unknown,
            "either a due time or a schedule",
        ),
        (
            schedule("a", app("app"), every("* * * * *")),
            Code::Unknown,
            "6 fields",
        ),
        (schedule("a", app("app"), due("soon")), Code::Unknown, "due time"),
        (
            schedule("a", app("app"), ttl),
            Code::Unknown,
            "ttl must be greater than due time",
        ),
        (schedule("a/b", app("app"), due("1h")), Code::Unknown, "'/'"),
        (
            schedule("", app("app"), due("1h")),
            Code::Unknown,
            "name is empty",
        ),
        (
            schedule(&"x".repeat(600), app("app"), due("1h")),
            Code::Unknown,
            "too long",
        ),
        (
            schedule("a", Some(nothing), due("1h")),
            Code::Unknown,
            "metadata.target",
        ),
        (
            schedule("a", Some(nobody), due("1h")),
            Code::InvalidArgument,
            "missing namespace or appID",
        ),
        (
            schedule("a", None, due("1h")),
            Code::InvalidArgument,
            "missing namespace or appID",
        ),
    ];
    for (request, code, text) in cases {
        let error = client.schedule_job(request.clone()).await.unwrap_err();
        assert_eq!(error.code(), code, "{request:?}: {error}");
        assert!(error.message().contains(text), "{request:?}: {error}");
    }
    let large = Job {
        data: Some(prost_types::Any {
            type_url: String::new(),
            value: vec![0; 17 << 20],
        }),
        ..due("1h")
    };
    let error = client
        .schedule_job(schedule("a", app("app"), large))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    let text = "the request with its job.data is larger than 16 MiB: give the job a smaller job.data";
    assert!(error.message().starts_with(text), "{error}");
}

#[tokio::test]
async fn replaces_job_only_with_overwrite() {
    let running = start().await;
    let mut client = running.client().await;
    client
        .schedule_job(schedule("a", app("app"), due("1h")))
        .await
        .unwrap();
    let mut again = schedule("a", app("app"), due("2h"));
    let error = client.schedule_job(again.clone()).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    assert!(
        error
            .message()
            .starts_with("job already exists: 'app||ns||app||a'"),
        "{error}"
    );
    again.overwrite = true;
    client.schedule_job(again).await.unwrap();
    let get = GetJobRequest {
        name: "a".to_owned(),
        metadata: app("app"),
    };
    let job = client.get_job(get).await.unwrap().into_inner().job.unwrap();
    assert_eq!(job.due_time.as_deref(), Some("2h"));
}

#[test]
fn etcd_never_outlives_scheduler() {
    // Started with the id of another parent.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_scheduler"))
        .args(["--become-etcd", "0", "--version"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the scheduler has ended"), "{said}");
}
