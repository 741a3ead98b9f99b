//! Drives the engine: follows the store and the clock, tells the streams what is due, and the store what was answered.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_controlplane::health::Part;
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
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Answers of apps that are not stored yet; from here on jobs that are due wait.
const MAX_UNSTORED: usize = 16_384;
/// Between two warnings that the store is behind.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long apps have to answer what is under way when the scheduler ends: less than its connections last then.
const DRAIN: Duration = Duration::from_secs(3);
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
    Discard(HostId, TriggerId),
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
            ends: None,
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
    pub(crate) fn discard(&self, trigger: TriggerId) {
        self.triggers.send(Command::Discard(self.host, trigger));
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
    /// When it ends at the latest, once it was told to.
    ends: Option<Instant>,
}

impl Driver {
    /// Runs until `drain` and until what is under way was answered, for a while, or until the store ends. `ready` is switched
    /// on when all stored jobs are known; `over` is cancelled when no answer is taken any more.
    pub(crate) async fn run(
        mut self,
        ready: Part,
        drain: CancellationToken,
        over: CancellationToken,
    ) -> Result<(), StoreEnded> {
        // Before the streams find that nothing is due any more.
        let _over = over.drop_guard();
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
                () = drain.cancelled(), if self.ends.is_none() => self.end(),
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
                self.engine.pause_dispatch();
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
            if let Some(ends) = self.ends
                && self.is_over(ends)
            {
                return Ok(());
            }
        }
    }

    /// Sends nothing from now on; what is under way is waited for.
    fn end(&mut self) {
        self.ends = Some(Instant::now() + DRAIN);
        self.engine.pause_dispatch();
        // What waits for a sidecar to read it is not sent either.
        self.revoked.cancel();
    }

    /// Whether there is nothing to wait for any more before the end.
    fn is_over(&self, ends: Instant) -> bool {
        if !self.engine.awaits_answers() {
            return true;
        }
        let is_late = Instant::now() >= ends;
        if is_late {
            tracing::info!(
                target: LOG,
                "apps did not answer within {} s: what they have is triggered again",
                DRAIN.as_secs()
            );
        }
        is_late
    }

    /// Until something is due, or the end; `None` when nothing ever is.
    fn wait(&self) -> Option<Duration> {
        let due = self.engine.wake_at().map(|due| {
            // What is due already waits for nothing but its turn.
            let until = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
            until.min(POLL_INTERVAL)
        });
        let end = self
            .ends
            .map(|ends| ends.saturating_duration_since(Instant::now()));
        due.into_iter().chain(end).min()
    }

    fn change(&mut self, change: Change, now: Timestamp, ready: &Part) {
        match change {
            Change::Loaded => ready.set(true),
            Change::Pause(drained) => {
                self.engine.pause_dispatch();
                self.holding = Some(drained);
            }
            Change::Reset(tenure) => {
                // What is due by jobs that are forgotten now is not sent as if it were of this tenure.
                self.act();
                self.holding = None;
                self.tenure = tenure;
                std::mem::take(&mut self.revoked).cancel();
                self.engine.clear(now);
                if self.ends.is_some() {
                    self.engine.pause_dispatch();
                }
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
            Command::Discard(host, trigger) => {
                if let Some(stream) = self.streams.get_mut(&host) {
                    stream.sent.remove(&trigger);
                }
                self.engine.discard_trigger(host, trigger);
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
mod tests;
