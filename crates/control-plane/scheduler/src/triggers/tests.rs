use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use outrigger_controlplane::health::Health;
use outrigger_schedule::engine::{Limit, LimitScope, Target};
use outrigger_wire::scheduler::v1::{
    Job as Asked, JobMetadata, JobTargetMetadata, TargetJob, job_target_metadata::Type,
};
use prost::Message as _;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;
use crate::storage::{CHANGES, JobRef, Named, Scheduled, StorageError};
use crate::stored;

/// A store that accepts everything and stores nothing.
#[derive(Default)]
struct Hanging {
    advances: Mutex<Vec<Advance>>,
    /// Other schedulers may own its jobs.
    is_lost: AtomicBool,
}

impl Hanging {
    fn advances(&self) -> std::sync::MutexGuard<'_, Vec<Advance>> {
        self.advances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Storage for Hanging {
    async fn schedule(&self, _: String, _: Vec<u8>, _: bool) -> Result<Scheduled, StorageError> {
        pending().await
    }
    async fn get(&self, _: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        pending().await
    }
    async fn list(&self, _: String, _: usize) -> Result<Vec<Named>, StorageError> {
        pending().await
    }
    async fn first(&self, _: String, _: String) -> Result<Option<String>, StorageError> {
        pending().await
    }
    async fn delete(&self, _: String) -> Result<(), StorageError> {
        pending().await
    }
    async fn delete_prefix(&self, _: String) -> Result<(), StorageError> {
        pending().await
    }
    fn may_trigger(&self, _: Tenure) -> bool {
        !self.is_lost.load(Ordering::Relaxed)
    }
    fn advance(&self, advance: Advance) {
        self.advances().push(advance);
    }
    async fn close(&self) {}
}

fn put(number: u64) -> Change {
    let asked = Asked {
        due_time: Some("0s".to_owned()),
        ..Asked::default()
    };
    let metadata = JobMetadata {
        app_id: "app".into(),
        namespace: "ns".into(),
        target: Some(JobTargetMetadata {
            r#type: Some(Type::Job(TargetJob {})),
        }),
        concurrency_key: None,
    };
    let job = stored::create(asked, &metadata, number, Timestamp::now()).unwrap();
    let version = Version {
        revision: number,
        partition: number,
    };
    Change::Put {
        name: format!("app||ns||app||{number}").into(),
        version,
        job: job.encode_to_vec(),
        counter: None,
    }
}

/// A group of one.
fn alone() -> Group {
    group(&watch::channel(Hosts::from([])).0)
}

fn group(hosts: &watch::Sender<Hosts>) -> Group {
    Group {
        own: "a".to_owned(),
        hosts: hosts.subscribe(),
    }
}

/// A running driver with its inputs and outputs.
struct Running {
    storage: Arc<Hanging>,
    changes: mpsc::Sender<Change>,
    triggers: Triggers,
    drain: CancellationToken,
    over: CancellationToken,
    ended: tokio::task::JoinHandle<Result<(), StoreEnded>>,
}

impl Running {
    fn start(limits: Limits) -> Self {
        Self::start_in(alone(), limits)
    }

    fn start_in(group: Group, limits: Limits) -> Self {
        let storage = Arc::new(Hanging::default());
        let (changes, received) = mpsc::channel(CHANGES);
        let (triggers, driver) = Triggers::new(storage.clone(), received, group, Arc::default(), limits);
        let (drain, over) = (CancellationToken::new(), CancellationToken::new());
        let running = driver.run(Health::default().part("jobs"), drain.clone(), over.clone());
        Self {
            storage,
            changes,
            triggers,
            drain,
            over,
            ended: tokio::spawn(running),
        }
    }

    async fn connect(&self, app: &str) -> (Connection, mpsc::UnboundedReceiver<Delivery>) {
        let host = Host::new("ns", app, true, &[]);
        self.triggers.connect(host).await.unwrap()
    }

    async fn ended(self) {
        self.ended.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn due_jobs_wait_for_hanging_store() {
    const JOBS: u64 = 20;
    let limits = Limits {
        in_flight: 4,
        unstored: 3,
    };
    let running = Running::start(limits);
    let (host, mut due) = running.connect("app").await;
    for number in 1..=JOBS {
        running.changes.send(put(number)).await.unwrap();
    }
    // As many as one app may have in flight, plus one per answer until the limit of unstored answers.
    let most = limits.in_flight / 2 + limits.unstored - 1;
    for _ in 0..most {
        host.answer(due.recv().await.unwrap().trigger, Outcome::Success);
    }
    // After the second answer, the driver has handled all earlier messages.
    for _ in 0..2 {
        running.connect("other").await;
    }
    assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
    assert_eq!(running.storage.advances().len(), most);

    let mut left = usize::try_from(JOBS).unwrap() - most;
    while left > 0 {
        // An answer may reach the store after the last check.
        running.storage.advances().clear();
        match due.try_recv() {
            Ok(job) => {
                host.answer(job.trigger, Outcome::Success);
                left -= 1;
            }
            Err(_) => tokio::task::yield_now().await,
        }
    }
    running.drain.cancel();
    running.ended().await;
}

/// Invariant: a scheduler whose lease may have expired unnoticed, because the process was suspended, triggers
/// nothing until it has read its jobs again.
#[tokio::test]
async fn triggers_nothing_after_lease_deadline() {
    let limits = Limits {
        in_flight: 4,
        unstored: 3,
    };
    let running = Running::start(limits);
    let (host, mut due) = running.connect("app").await;
    running.storage.is_lost.store(true, Ordering::Relaxed);
    running.changes.send(put(1)).await.unwrap();
    // The request for the next job shows that it has handled this one.
    for number in 2..=u64::try_from(CHANGES).unwrap() + 3 {
        running.changes.send(put(number)).await.unwrap();
    }
    for _ in 0..2 {
        running.connect("other").await;
    }
    assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
    running.storage.is_lost.store(false, Ordering::Relaxed);
    running.changes.send(Change::Reset(1)).await.unwrap();
    running.changes.send(put(1)).await.unwrap();
    assert_eq!(&*due.recv().await.unwrap().name, "app||ns||app||1");
    // Its answer is not awaited.
    drop(host);
    running.drain.cancel();
    running.ended().await;
}

/// Invariant: at shutdown the scheduler accepts answers to triggers in flight and sends no new triggers.
#[tokio::test]
async fn accepts_answers_during_shutdown() {
    let limits = Limits {
        in_flight: 8,
        unstored: 8,
    };
    let running = Running::start(limits);
    let (host, mut due) = running.connect("app").await;
    running.changes.send(put(1)).await.unwrap();
    let trigger = due.recv().await.unwrap().trigger;
    running.drain.cancel();
    // The driver sees the shutdown before the last of these, in whatever order it polls.
    for _ in 0..20 {
        running.connect("other").await;
    }
    running.changes.send(put(2)).await.unwrap();
    for _ in 0..20 {
        running.connect("other").await;
    }
    assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
    assert!(!running.over.is_cancelled());
    host.answer(trigger, Outcome::Success);
    let (storage, over) = (Arc::clone(&running.storage), running.over.clone());
    running.ended().await;
    assert!(over.is_cancelled());
    assert_eq!(storage.advances().len(), 1);
}

/// Invariant: schedulers divide a limit among them, again after each change of their group.
#[tokio::test]
async fn shares_limits_with_group() {
    let hosts = |addresses: &[&str]| -> Hosts { addresses.iter().map(|&host| host.to_owned()).collect() };
    let known = watch::Sender::new(hosts(&["b", "a", "c"]));
    let limits = Limits {
        in_flight: 100,
        unstored: 100,
    };
    let running = Running::start_in(group(&known), limits);
    let target = Target::App {
        namespace: "ns".into(),
        id: "app".into(),
    };
    let limit = Limit {
        scope: LimitScope {
            target: Arc::new(target),
            key: None,
        },
        most: 4,
    };
    let host = Host::new("ns", "app", true, &[]).limited(vec![limit]);
    let (_host, mut due) = running.triggers.connect(host).await.unwrap();
    for number in 1..=9 {
        running.changes.send(put(number)).await.unwrap();
    }
    for (more, next) in [
        (2, &["a", "b"][..]),
        (0, &["a"]),
        (2, &["b", "a", "c"]),
        (0, &["a"]),
    ] {
        for _ in 0..more {
            due.recv().await.unwrap();
        }
        for _ in 0..2 {
            running.connect("other").await;
        }
        assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
        known.send_replace(hosts(next));
    }
    running.drain.cancel();
    running.ended().await;
}

/// A driver that does not run, and a stream to connect.
fn connecting() -> (Driver, Command, oneshot::Receiver<Connection>) {
    let limits = Limits {
        in_flight: 1,
        unstored: 1,
    };
    let (_, received) = mpsc::channel(CHANGES);
    let storage = Arc::new(Hanging::default());
    let (_, driver) = Triggers::new(storage, received, alone(), Arc::default(), limits);
    let (connected, connection) = oneshot::channel();
    let connect = Command::Connect {
        host: Host::new("ns", "app", true, &[]),
        deliveries: mpsc::unbounded_channel().0,
        connected,
    };
    (driver, connect, connection)
}

#[test]
fn logs_unknown_answer_once() {
    let now = Timestamp::now();
    let (mut driver, connect, mut connection) = connecting();
    driver.command(connect, now);
    let host = connection.try_recv().unwrap();
    let lines = outrigger_testing::log_lines::Lines::new();
    for unknown in 0..1000 {
        driver.command(Command::Answer(host.host, unknown, Outcome::Success), now);
    }
    assert_eq!(lines.take(LOG, tracing::Level::TRACE).len(), 1);
    assert!(driver.streams.is_empty());
}

/// Regression: if the caller left while its stream was being connected, the stream stayed and took triggers
/// forever.
#[test]
fn disconnects_abandoned_stream() {
    let now = Timestamp::now();
    let (mut driver, connect, connection) = connecting();
    driver.command(connect, now);
    assert_eq!(driver.streams.len(), 1);
    drop(connection);
    while let Ok(command) = driver.commands.try_recv() {
        driver.command(command, now);
    }
    assert!(driver.streams.is_empty());
}
