//! A slow app with many due jobs.

use jiff::Timestamp;

use crate::running::{Sidecar, actor, app, due, schedule, start_with};
use crate::tally::Tally;

/// Maximum number of triggers in flight.
const WORKERS: usize = 64;
/// Due jobs of the unresponsive app: more than the number of slots.
const HERD: usize = 200;

/// Invariant: a sidecar that never answers delays neither another app nor another actor type of its
/// namespace, even if its jobs were due first. Once it answers, all of them are triggered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_app_delays_no_other() {
    let running = start_with(&[format!("--workers={WORKERS}")]).await;
    let mut client = running.client().await;
    let mut silent = Sidecar::connect(&mut client, "silent", &[]).await;
    let mut healthy = Sidecar::connect(&mut client, "healthy", &["type"]).await;
    let mut jobs = Vec::new();
    for at in 0..HERD {
        let (name, now) = (format!("herd-{at}"), Timestamp::now());
        let request = schedule(&name, app("silent"), due(&now.to_string()));
        client.schedule_job(request).await.unwrap();
        jobs.push((name, now));
    }
    let mut held = Vec::new();
    for _ in 0..WORKERS / 2 {
        held.push(silent.next().await.id);
    }
    let mut times = std::collections::HashMap::<String, Vec<Timestamp>>::new();
    for at in 0..WORKERS {
        let metadata = if at % 2 == 0 {
            app("healthy")
        } else {
            actor("healthy", "type", "1")
        };
        let (name, now) = (format!("well-{at}"), Timestamp::now());
        let request = schedule(&name, metadata, due(&now.to_string()));
        client.schedule_job(request).await.unwrap();
        let trigger = healthy.next().await;
        assert_eq!(trigger.name, name);
        healthy.succeed(trigger.id);
        times.entry(trigger.name).or_default().push(Timestamp::now());
        jobs.push((name, now));
    }
    // The slow app starts to answer.
    held.into_iter().for_each(|id| silent.succeed(id));
    for at in 0..WORKERS / 2 {
        times.insert(format!("herd-{at}"), vec![Timestamp::now()]);
    }
    for _ in WORKERS / 2..HERD {
        let trigger = silent.next().await;
        silent.succeed(trigger.id);
        times.entry(trigger.name).or_default().push(Timestamp::now());
    }
    let jobs = jobs.iter().map(|(name, due)| (name, due));
    Tally::of(jobs, |name| times.get(name).cloned().unwrap_or_default())
        .report("slow app with a herd of due jobs");
}
