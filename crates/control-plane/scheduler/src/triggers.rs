//! Drives the trigger engine: feeds it changes of the store and the clock, sends due triggers to streams, and
//! sends progress to the store.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_controlplane::health::Part;
use outrigger_schedule::engine::{Action, Engine, Host, HostId, Limits, Name, Stored, TriggerId, Version};
use outrigger_schedule::job::{Outcome, Progress};
use outrigger_schedule::shard::Shard;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::backlog::Backlog;
use crate::fault;
use crate::metrics::{Metrics, SidecarError};
use crate::names::Kind;
use crate::storage::{Advance, Change, Hosts, Storage, Tenure, changed};
use crate::stored::Reader;

const LOG: &str = "dapr.scheduler.triggers";
/// Maximum time between checks of the clock while there are jobs: the clock may be set, and the machine may
/// sleep.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of answers not yet stored; above it no new triggers are sent.
const MAX_UNSTORED: usize = 16_384;
/// Minimum time between warnings about a slow store.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long apps have to answer triggers in flight at shutdown. Shorter than the shutdown time of
/// connections.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of messages taken before the engine acts.
const BATCH: usize = 256;

/// The engine's limits: `workers` triggers in flight, of which one app holds at most half.
pub(crate) fn limits(workers: usize) -> Limits {
    Limits {
        in_flight: workers,
        unstored: MAX_UNSTORED,
    }
}

/// A trigger for a stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) trigger: TriggerId,
    pub(crate) name: Name,
    /// Revision of the job when it became due. A replaced job has its own due time.
    pub(crate) revision: u64,
    /// Tenure in which it became due.
    pub(crate) tenure: Tenure,
    /// Cancelled at the end of the tenure; then the trigger is no longer sent.
    pub(crate) revoked: CancellationToken,
}

enum Command {
    Connect {
        host: Host,
        deliveries: mpsc::UnboundedSender<Delivery>,
        /// If the caller has gone, the [`Connection`] in this channel is dropped, which disconnects the host.
        connected: oneshot::Sender<Connection>,
    },
    Disconnect(HostId),
    Answer(HostId, TriggerId, Outcome),
    Discard(HostId, TriggerId),
}

/// The schedulers that share the limits on triggers in flight.
pub(crate) struct Group {
    /// Address of this scheduler.
    pub(crate) own: String,
    /// Addresses of all schedulers.
    pub(crate) hosts: watch::Receiver<Hosts>,
}

impl Group {
    /// The place of this scheduler among all, by address; `None` if it is not one of them.
    fn shard(&mut self) -> Option<Shard> {
        let hosts = self.hosts.borrow_and_update();
        Shard::of(&self.own, hosts.iter().map(String::as_str))
    }
}

/// A handle to the engine.
#[derive(Clone)]
pub(crate) struct Triggers(mpsc::UnboundedSender<Command>);

/// A connected stream; dropping it disconnects the stream.
pub(crate) struct Connection {
    host: HostId,
    triggers: Triggers,
}

impl Triggers {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        changes: mpsc::Receiver<Change>,
        group: Group,
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
            group,
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

    /// Connects a host for triggers. The deliveries end if the host answers an unknown trigger or the process
    /// ends. The engine's limit of triggers in flight bounds their number.
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
        // A missing engine means that the process is shutting down.
        let _ = self.0.send(command);
    }
}

impl Connection {
    /// Reports the host's answer to a trigger.
    pub(crate) fn answer(&self, trigger: TriggerId, outcome: Outcome) {
        self.triggers.send(Command::Answer(self.host, trigger, outcome));
    }

    /// Reports that a trigger was not sent, because its job was deleted or replaced.
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

/// The engine with its inputs and outputs.
pub(crate) struct Driver {
    engine: Engine,
    /// A handle to itself, for connections.
    triggers: Triggers,
    storage: Arc<dyn Storage>,
    /// Writes handed to the store and not yet stored.
    backlog: Arc<Backlog>,
    /// Time of the last warning about a slow store.
    warned: Option<Instant>,
    changes: mpsc::Receiver<Change>,
    group: Group,
    commands: mpsc::UnboundedReceiver<Command>,
    metrics: Arc<Metrics>,
    reader: Reader,
    streams: HashMap<HostId, Stream>,
    /// Answered when no trigger is in flight.
    holding: Option<oneshot::Sender<()>>,
    /// The current tenure, and the token cancelled at its end.
    tenure: Tenure,
    revoked: CancellationToken,
    /// Deadline of the shutdown, once it has begun.
    ends: Option<Instant>,
}

impl Driver {
    /// Runs until `drain` and until triggers in flight are answered or timed out, or until the store ends.
    /// `ready` is set when all stored jobs are loaded; `over` is cancelled when answers are no longer
    /// accepted.
    pub(crate) async fn run(
        mut self,
        ready: Part,
        drain: CancellationToken,
        over: CancellationToken,
    ) -> Result<(), StoreEnded> {
        // Dropped before the streams, so that their end does not look like an error of the sidecar.
        let _over = over.drop_guard();
        let (mut changes, mut commands) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        self.share();
        loop {
            let wait = self.wait();
            let wake = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => pending().await,
                }
            };
            let mut is_other_group = false;
            tokio::select! {
                () = drain.cancelled(), if self.ends.is_none() => self.end(),
                count = self.changes.recv_many(&mut changes, BATCH) => {
                    if count == 0 {
                        return Err(StoreEnded);
                    }
                }
                _ = self.commands.recv_many(&mut commands, BATCH) => {}
                () = changed(&mut self.group.hosts) => is_other_group = true,
                () = wake => {}
                () = self.backlog.shrank(), if self.engine.waits_for_store() => {}
            }
            let now = Timestamp::now();
            // Checked before the engine acts: the process may have been suspended for longer than its lease.
            if !self.storage.may_trigger(self.tenure) {
                self.engine.pause_dispatch();
            }
            if is_other_group {
                self.share();
            }
            // The backlog includes everything that the engine has asked to store so far.
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
                let _ = holding.send(());
            }
            self.metrics.jobs(self.engine.len());
            self.metrics.limits(self.engine.take_limit_counts());
            if let Some(ends) = self.ends
                && self.is_over(ends)
            {
                return Ok(());
            }
        }
    }

    /// Shares the limits on triggers in flight with the other schedulers.
    fn share(&mut self) {
        if let Some(shard) = self.group.shard() {
            self.engine.share(shard);
        }
    }

    /// Stops sending triggers and waits for those in flight.
    fn end(&mut self) {
        self.ends = Some(Instant::now() + DRAIN_TIMEOUT);
        self.engine.pause_dispatch();
        // Triggers that a sidecar has not read yet are dropped too.
        self.revoked.cancel();
    }

    /// Whether the shutdown need not wait any longer.
    fn is_over(&self, ends: Instant) -> bool {
        if !self.engine.awaits_answers() {
            return true;
        }
        let is_late = Instant::now() >= ends;
        if is_late {
            tracing::info!(
                target: LOG,
                "apps did not answer within {} s: their triggers will be repeated",
                DRAIN_TIMEOUT.as_secs()
            );
        }
        is_late
    }

    /// Time until the next due trigger or the deadline; `None` if there is neither.
    fn wait(&self) -> Option<Duration> {
        let due = self.engine.wake_at().map(|due| {
            // Overdue triggers wait only for a free slot.
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
                // Triggers of jobs that are dropped now must not be sent in the new tenure.
                self.act();
                self.holding = None;
                self.tenure = tenure;
                std::mem::take(&mut self.revoked).cancel();
                self.engine.clear(now);
                // The tenure may begin in another group.
                self.share();
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
                    let stored = Stored {
                        name,
                        target: read.target,
                        key: read.key,
                        version,
                        job: read.ticks,
                        progress: read.progress,
                    };
                    self.engine.put(now, stored);
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
                // A stream closed for an unknown answer may have sent more of them; one log line is enough.
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
                    // Dapr's contract: a stream that answers an unknown trigger is closed.
                    Err(unknown) => {
                        self.metrics.sidecar_error(SidecarError::Received);
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
                        // A closed stream disconnects itself.
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

    /// Warns that the store is slow, at most once per interval.
    fn warn(&mut self) {
        if self.engine.waits_for_store() && self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                target: LOG,
                "the store does not keep up: {} answers of apps are not stored yet, so due jobs wait",
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

/// The change stream of the store has ended.
#[derive(Debug, thiserror::Error)]
#[error("the store stopped after a read or write error: see the log above")]
pub struct StoreEnded;

#[cfg(test)]
mod tests;
