//! Drives the engine: follows the store and the clock, tells the streams what is due, and the store what was answered.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_accept::health::Part;
use outrigger_schedule::engine::{Action, Engine, Host, HostId, Limits, Name, TriggerId, Version};
use outrigger_schedule::job::{Outcome, Progress};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::backlog::Backlog;
use crate::fault;
use crate::metrics::Metrics;
use crate::names::Kind;
use crate::storage::{Advance, Change, Storage, Tenure};
use crate::stored::Reader;

const LOG: &str = "dapr.scheduler.triggers";
/// Longest time between two looks at the clock while there are jobs: it may be set, and the machine may sleep.
const LOOK: Duration = Duration::from_secs(1);
/// Answers of apps that are not stored yet; from here on jobs that are due wait.
const MAX_UNSTORED: usize = 16_384;
/// Between two warnings that the store is behind.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Messages that are taken in before what they mean is done.
const BATCH: usize = 256;

/// What the engine may have under way: `workers` triggers, of which no app holds more than it leaves free.
pub(crate) fn limits(workers: usize) -> Limits {
    Limits {
        in_flight: workers,
        unstored: MAX_UNSTORED,
    }
}

/// A tick for a stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) trigger: TriggerId,
    pub(crate) name: Name,
    /// Of the job when it was due: a later one is due at another time.
    pub(crate) revision: u64,
    /// When it was due.
    pub(crate) tenure: Tenure,
    /// Cancelled at the end of the tenure: it is not sent any more.
    pub(crate) revoked: CancellationToken,
}

enum Command {
    Connect {
        host: Host,
        deliveries: mpsc::UnboundedSender<Delivery>,
        /// Where whoever asked has gone, what it is told with is dropped, which disconnects it.
        connected: oneshot::Sender<Connection>,
    },
    Disconnect(HostId),
    Answer(HostId, TriggerId, Outcome),
    Gone(HostId, TriggerId),
}

/// The way to the engine.
#[derive(Clone)]
pub(crate) struct Triggers(mpsc::UnboundedSender<Command>);

/// A connected stream; it is disconnected when this is dropped.
pub(crate) struct Connection {
    host: HostId,
    triggers: Triggers,
}

impl Triggers {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        changes: mpsc::Receiver<Change>,
        metrics: Arc<Metrics>,
        limits: Limits,
    ) -> (Self, Driver) {
        let (commands, asked) = mpsc::unbounded_channel();
        let triggers = Self(commands);
        let driver = Driver {
            engine: Engine::new(Timestamp::now(), limits),
            triggers: triggers.clone(),
            storage,
            backlog: Arc::default(),
            warned: None,
            changes,
            commands: asked,
            metrics,
            reader: Reader::default(),
            streams: HashMap::new(),
            holding: None,
            tenure: 0,
            revoked: CancellationToken::new(),
        };
        (triggers, driver)
    }

    /// A host that takes triggers from now on. Deliveries end when it answers what it was not asked, or the process
    /// ends; their number is bounded by the engine's limit of triggers under way.
    pub(crate) async fn connect(
        &self,
        host: Host,
    ) -> Option<(Connection, mpsc::UnboundedReceiver<Delivery>)> {
        let (deliveries, due) = mpsc::unbounded_channel();
        let (connected, connection) = oneshot::channel();
        let connect = Command::Connect {
            host,
            deliveries,
            connected,
        };
        self.0.send(connect).ok()?;
        Some((connection.await.ok()?, due))
    }

    fn send(&self, command: Command) {
        // Without an engine the process is about to end.
        let _ = self.0.send(command);
    }
}

impl Connection {
    /// The host's answer to a trigger.
    pub(crate) fn answer(&self, trigger: TriggerId, outcome: Outcome) {
        self.triggers.send(Command::Answer(self.host, trigger, outcome));
    }

    /// A trigger was not sent: its job was deleted or replaced meanwhile.
    pub(crate) fn gone(&self, trigger: TriggerId) {
        self.triggers.send(Command::Gone(self.host, trigger));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.triggers.send(Command::Disconnect(self.host));
    }
}

struct Stream {
    deliveries: mpsc::UnboundedSender<Delivery>,
    sent: HashMap<TriggerId, (Instant, Kind)>,
}

/// The engine, and what surrounds it.
pub(crate) struct Driver {
    engine: Engine,
    /// The way to itself, for connections.
    triggers: Triggers,
    storage: Arc<dyn Storage>,
    /// What the store was given.
    backlog: Arc<Backlog>,
    /// When it was said that the store is behind.
    warned: Option<Instant>,
    changes: mpsc::Receiver<Change>,
    commands: mpsc::UnboundedReceiver<Command>,
    metrics: Arc<Metrics>,
    reader: Reader,
    streams: HashMap<HostId, Stream>,
    /// Waits until no answer is waited for.
    holding: Option<oneshot::Sender<()>>,
    /// In which the jobs here were told, and what is cancelled at its end.
    tenure: Tenure,
    revoked: CancellationToken,
}

impl Driver {
    /// Runs until `drain`, or until the store ends. `ready` is switched on when all stored jobs are known.
    pub(crate) async fn run(mut self, ready: Part, drain: CancellationToken) -> Result<(), StoreEnded> {
        let (mut changes, mut commands) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        loop {
            let wait = self.wait();
            let wake = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                count = self.changes.recv_many(&mut changes, BATCH) => {
                    if count == 0 {
                        return Err(StoreEnded);
                    }
                }
                _ = self.commands.recv_many(&mut commands, BATCH) => {}
                () = wake => {}
                () = self.backlog.shrank(), if self.engine.waits_for_store() => {}
            }
            let now = Timestamp::now();
            // Before the engine hears of anything: the process may have been stopped for as long as its lease.
            if !self.storage.may_trigger(self.tenure) {
                self.engine.hold();
            }
            // The store was given all that the engine wanted stored until here.
            self.engine.unstored(self.backlog.len());
            for change in changes.drain(..) {
                self.change(change, now, &ready);
            }
            for command in commands.drain(..) {
                self.command(command, now);
            }
            self.engine.advance(now);
            self.act();
            self.warn();
            if !self.engine.awaits_answers()
                && let Some(holding) = self.holding.take()
            {
                // Whoever waited may have given up.
                let _ = holding.send(());
            }
            self.metrics.jobs(self.engine.len());
        }
    }

    /// Until something is due; `None` when nothing ever is.
    fn wait(&self) -> Option<Duration> {
        let until = self.engine.wake_at()?.duration_since(Timestamp::now());
        // What is due already waits for nothing but its turn.
        let until = Duration::try_from(until).unwrap_or(Duration::ZERO);
        Some(until.min(LOOK))
    }

    fn change(&mut self, change: Change, now: Timestamp, ready: &Part) {
        match change {
            Change::Loaded => ready.set(true),
            Change::Hold(drained) => {
                self.engine.hold();
                self.holding = Some(drained);
            }
            Change::Reset(tenure) => {
                // What is due by jobs that are forgotten now is not sent as if it were of this tenure.
                self.act();
                self.holding = None;
                self.tenure = tenure;
                std::mem::take(&mut self.revoked).cancel();
                self.engine.clear(now);
            }
            Change::Deleted { name, revision } => self.engine.deleted(&name, revision),
            Change::Put {
                name,
                version,
                job,
                counter,
            } => match self.reader.read(&job, counter.as_deref()) {
                Ok(read) => {
                    self.engine
                        .put(now, name, read.target, version, read.ticks, read.progress);
                }
                Err(error) => {
                    tracing::error!(target: LOG, "the job {name:?} will not be triggered: {error}");
                    self.engine.remove(&name);
                }
            },
        }
    }

    fn command(&mut self, command: Command, now: Timestamp) {
        match command {
            Command::Connect {
                host,
                deliveries,
                connected,
            } => {
                let host = self.engine.connect(host);
                let stream = Stream {
                    deliveries,
                    sent: HashMap::new(),
                };
                self.streams.insert(host, stream);
                self.metrics.connected();
                let connection = Connection {
                    host,
                    triggers: self.triggers.clone(),
                };
                // Whoever asked may have gone.
                let _ = connected.send(connection);
            }
            Command::Disconnect(host) => self.disconnect(host),
            Command::Gone(host, trigger) => {
                if let Some(stream) = self.streams.get_mut(&host) {
                    stream.sent.remove(&trigger);
                }
                self.engine.gone(host, trigger);
            }
            Command::Answer(host, trigger, outcome) => {
                // A stream that was ended for an answer may have sent any number of others by then: one line is enough.
                let Some(stream) = self.streams.get_mut(&host) else {
                    return;
                };
                let sent = stream.sent.remove(&trigger);
                match self.engine.answer(now, host, trigger, outcome) {
                    Ok(()) => {
                        if let Some((at, kind)) = sent {
                            self.metrics
                                .answered(kind, outcome == Outcome::Success, at.elapsed());
                        }
                    }
                    // The contract closes a stream that says what it was not asked.
                    Err(unknown) => {
                        tracing::warn!(target: LOG, "closing a sidecar's stream: {unknown}");
                        self.disconnect(host);
                    }
                }
            }
        }
    }

    fn disconnect(&mut self, host: HostId) {
        if self.streams.remove(&host).is_some() {
            self.metrics.disconnected();
        }
        self.engine.disconnect(host);
    }

    fn act(&mut self) {
        for action in self.engine.take_actions() {
            match action {
                Action::Deliver {
                    host,
                    trigger,
                    name,
                    version,
                    ..
                } => {
                    if let Some(stream) = self.streams.get_mut(&host) {
                        stream.sent.insert(trigger, (Instant::now(), Kind::of(&name)));
                        // A stream that ends says so itself.
                        let _ = stream.deliveries.send(Delivery {
                            trigger,
                            name,
                            revision: version.revision,
                            tenure: self.tenure,
                            revoked: self.revoked.clone(),
                        });
                    }
                }
                Action::Undelivered { name } => self.metrics.undelivered(Kind::of(&name)),
                Action::Save {
                    name,
                    version,
                    progress,
                } => self.advance(name, version, Some(progress)),
                Action::Delete { name, version } => self.advance(name, version, None),
            }
        }
    }

    /// Says that the store is behind, seldom.
    fn warn(&mut self) {
        if self.engine.waits_for_store() && self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                target: LOG,
                "the store does not keep up: {} answers of apps are not stored yet, and jobs that are due wait \
                 until they are",
                self.backlog.len()
            );
        }
    }

    fn advance(&self, name: Name, version: Version, progress: Option<Progress>) {
        fault::point("answered");
        self.storage.advance(Advance {
            name,
            version,
            tenure: self.tenure,
            progress,
            share: self.backlog.share(),
        });
        fault::point("given to the store");
    }
}

/// The store tells nothing any more.
#[derive(Debug, thiserror::Error)]
#[error("the store ended: it could not be read or written, see the log before this")]
pub struct StoreEnded;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};

    use async_trait::async_trait;
    use outrigger_accept::health::Health;
    use outrigger_wire::scheduler::v1::{
        Job as Asked, JobMetadata, JobTargetMetadata, TargetJob, job_target_metadata::Type,
    };
    use prost::Message as _;
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;
    use crate::storage::{CHANGES, JobRef, Named, Scheduled, StorageError};
    use crate::stored;

    /// Takes everything, and stores nothing.
    #[derive(Default)]
    struct Hanging {
        advances: Mutex<Vec<Advance>>,
        /// Others may have its jobs.
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

    #[tokio::test]
    async fn jobs_that_are_due_wait_for_a_store_that_hangs() {
        const JOBS: u64 = 20;
        let limits = Limits {
            in_flight: 4,
            unstored: 3,
        };
        let storage = Arc::new(Hanging::default());
        let (changes, received) = mpsc::channel(CHANGES);
        let (triggers, driver) = Triggers::new(storage.clone(), received, Arc::default(), limits);
        let drain = CancellationToken::new();
        let running = tokio::spawn(driver.run(Health::default().part("jobs"), drain.clone()));
        let app = || Host::new("ns", "app", true, &[]);
        let (host, mut due) = triggers.connect(app()).await.unwrap();
        for number in 1..=JOBS {
            changes.send(put(number)).await.unwrap();
        }
        // As many as one app may have under way, and one more for each answer until the store has enough to do.
        let most = limits.in_flight / 2 + limits.unstored - 1;
        for _ in 0..most {
            host.answer(due.recv().await.unwrap().trigger, Outcome::Success);
        }
        // It has done all before when it answers the second of two that ask.
        for _ in 0..2 {
            triggers
                .connect(Host::new("ns", "other", true, &[]))
                .await
                .unwrap();
        }
        assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
        assert_eq!(storage.advances().len(), most);

        let mut left = usize::try_from(JOBS).unwrap() - most;
        while left > 0 {
            storage.advances().clear();
            host.answer(due.recv().await.unwrap().trigger, Outcome::Success);
            left -= 1;
        }
        drain.cancel();
        running.await.unwrap().unwrap();
    }

    /// Invariant: a scheduler whose lease may have ended, and that has not noticed, triggers nothing until its jobs are read
    /// anew: a process that was stopped for longer.
    #[tokio::test]
    async fn a_lease_that_may_have_ended_is_noticed_before_anything_is_triggered() {
        let limits = Limits {
            in_flight: 4,
            unstored: 3,
        };
        let storage = Arc::new(Hanging::default());
        let (changes, received) = mpsc::channel(CHANGES);
        let (triggers, driver) = Triggers::new(storage.clone(), received, Arc::default(), limits);
        let drain = CancellationToken::new();
        let running = tokio::spawn(driver.run(Health::default().part("jobs"), drain.clone()));
        let (_host, mut due) = triggers.connect(Host::new("ns", "app", true, &[])).await.unwrap();
        storage.is_lost.store(true, Ordering::Relaxed);
        changes.send(put(1)).await.unwrap();
        // It has looked at the job when it asks for one more, and for another after that.
        for number in 2..=u64::try_from(CHANGES).unwrap() + 3 {
            changes.send(put(number)).await.unwrap();
        }
        for _ in 0..2 {
            triggers
                .connect(Host::new("ns", "other", true, &[]))
                .await
                .unwrap();
        }
        assert_eq!(due.try_recv().unwrap_err(), TryRecvError::Empty);
        storage.is_lost.store(false, Ordering::Relaxed);
        changes.send(Change::Reset(1)).await.unwrap();
        changes.send(put(1)).await.unwrap();
        assert_eq!(&*due.recv().await.unwrap().name, "app||ns||app||1");
        drain.cancel();
        running.await.unwrap().unwrap();
    }

    /// A driver that does not run, and a stream that it is to connect.
    fn connecting() -> (Driver, Command, oneshot::Receiver<Connection>) {
        let limits = Limits {
            in_flight: 1,
            unstored: 1,
        };
        let (_, received) = mpsc::channel(CHANGES);
        let (_, driver) = Triggers::new(Arc::new(Hanging::default()), received, Arc::default(), limits);
        let (connected, connection) = oneshot::channel();
        let connect = Command::Connect {
            host: Host::new("ns", "app", true, &[]),
            deliveries: mpsc::unbounded_channel().0,
            connected,
        };
        (driver, connect, connection)
    }

    #[test]
    fn a_stream_that_answers_what_it_was_not_asked_is_told_of_once() {
        let now = Timestamp::now();
        let (mut driver, connect, mut connection) = connecting();
        driver.command(connect, now);
        let host = connection.try_recv().unwrap();
        let lines = outrigger_log_lines::Lines::new();
        for unknown in 0..1000 {
            driver.command(Command::Answer(host.host, unknown, Outcome::Success), now);
        }
        assert_eq!(lines.take(LOG, tracing::Level::TRACE).len(), 1);
        assert!(driver.streams.is_empty());
    }

    /// Regression: a stream whose caller went before it knew that it is connected stayed for ever, and took jobs that nobody
    /// answered.
    #[test]
    fn a_stream_whose_caller_goes_while_it_is_connected_is_disconnected() {
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
}
