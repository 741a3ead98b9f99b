//! Limits on triggers in flight, over several streams.

use outrigger_wire::scheduler::v1::concurrency_limit::Target;
use outrigger_wire::scheduler::v1::{ConcurrencyLimit, ConcurrencyLimitActor, WatchJobsResponse};

use crate::running::{Running, Sidecar, actor, due, schedule, start, until};

fn limit(of: &str, name: Option<&str>, most: i32) -> ConcurrencyLimit {
    ConcurrencyLimit {
        max_concurrent: most,
        name: name.map(str::to_owned),
        target: Some(Target::Actor(ConcurrencyLimitActor {
            r#type: of.to_owned(),
        })),
    }
}

/// The next trigger of either stream, answered by the stream with its number.
async fn next(sidecars: &mut [Sidecar; 2]) -> (usize, WatchJobsResponse) {
    let [first, second] = sidecars;
    tokio::select! {
        trigger = first.next() => (0, trigger),
        trigger = second.next() => (1, trigger),
    }
}

fn key(trigger: &WatchJobsResponse) -> Option<&str> {
    trigger.metadata.as_ref()?.concurrency_key.as_deref()
}

/// Invariant: a limit counts the triggers of all streams, and a full limit of one key holds back no other job.
#[tokio::test]
async fn limits_hold_over_streams() {
    let running = start().await;
    let mut client = running.client().await;
    let limits = || {
        vec![
            limit("t", None, 3),
            limit("t", Some("slow"), 1),
            limit("u", None, 0),
        ]
    };
    let mut sidecars = Vec::new();
    for _ in 0..2 {
        let sidecar = Sidecar::with_limits(&mut client, "app", &["t", "u"], limits()).await;
        sidecars.push(sidecar.unwrap());
    }
    let mut sidecars: [Sidecar; 2] = sidecars.try_into().ok().unwrap();
    let keys = [Some("slow"), Some("slow"), Some("slow"), Some("fast"), None, None];
    for (number, key) in keys.into_iter().enumerate() {
        let mut metadata = actor("app", "t", &number.to_string());
        metadata.as_mut().unwrap().concurrency_key = key.map(str::to_owned);
        let job = schedule("job", metadata, due("0s"));
        client.schedule_job(job).await.unwrap();
    }
    // Without a maximum there is no limit.
    client
        .schedule_job(schedule("free", actor("app", "u", "1"), due("0s")))
        .await
        .unwrap();
    let shows = async |line: &str| {
        let line = format!("dapr_scheduler_concurrency_{line}");
        until("the metrics show the limits", || async {
            let metrics = Running::http(running.addresses.metrics.unwrap(), "/").await;
            metrics.lines().any(|found| found == line)
        })
        .await;
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(next(&mut sidecars).await);
    }
    shows("inflight{concurrency_key=\"t\"} 3").await;
    shows("pending{concurrency_key=\"t\"} 3").await;
    shows("inflight{concurrency_key=\"t:slow\"} 1").await;
    // The oldest job that no limit holds back follows.
    for (answered, expected) in [(Some("slow"), Some("slow")), (Some("fast"), None)] {
        let at = held
            .iter()
            .position(|(_, trigger)| key(trigger) == answered)
            .unwrap();
        let (at, trigger) = held.remove(at);
        sidecars[at].succeed(trigger.id);
        let (at, trigger) = next(&mut sidecars).await;
        assert_eq!(key(&trigger), expected);
        held.push((at, trigger));
    }
    let mut left = keys.len() + 1 - 2;
    while left > 0 {
        let (at, trigger) = match held.pop() {
            Some(trigger) => trigger,
            None => next(&mut sidecars).await,
        };
        sidecars[at].succeed(trigger.id);
        left -= 1;
    }
    shows("inflight{concurrency_key=\"t\"} 0").await;
    drop(sidecars);
    until("the limits end with the streams", || async {
        let metrics = Running::http(running.addresses.metrics.unwrap(), "/").await;
        !metrics.contains("{concurrency_key=")
    })
    .await;
}
