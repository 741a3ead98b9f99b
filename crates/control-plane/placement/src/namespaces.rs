//! Runs the namespaces in real time: passes messages to [`Namespace`] and its orders to the streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outrigger_resources::value::format_go_duration;
use outrigger_wire::placement::v1::{Host, StatePlacementTable};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::dissemination::{Effect, Message, Namespace, Phase, Rules, SETTLE, StreamId, Time};
use crate::frames::{self, Marks};
use crate::metrics::Metrics;
use crate::report::table_bytes;

const LOG: &str = "dapr.placement";
/// Queue length of a stream: three orders of a dissemination, three of a table sent alone, one end; rounded
/// up.
pub(crate) const MAX_ORDERS: usize = 8;
/// Maximum table of a namespace, bytes: the default message limit of gRPC clients.
const MAX_TABLE: usize = 4 << 20;
/// Maximum bytes of all tables.
const MAX_TABLES: usize = 512 << 20;

/// Sent to a stream: gRPC messages, then its end.
pub(crate) type Order = Result<Bytes, Status>;

/// All namespaces of a term.
#[derive(Debug)]
pub(crate) struct Namespaces {
    rules: Rules,
    metrics: Arc<Metrics>,
    /// Unique number of the term; not 0.
    term: u64,
    /// Time after `began` before the first dissemination.
    settles_at: Time,
    began: Instant,
    streams: AtomicU64,
    table_bytes: AtomicUsize,
    running: Mutex<HashMap<String, Arc<Running>>>,
    /// Tasks of namespaces and streams; they end with the term.
    pub(crate) tasks: TaskTracker,
}

/// A namespace with its streams.
#[derive(Debug)]
struct Running {
    name: String,
    state: Mutex<State>,
    /// The wake-up time may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    namespace: Namespace,
    streams: HashMap<StreamId, Outbox>,
    /// Table bytes of all hosts.
    table_bytes: usize,
    /// The last published `update` order.
    published: Bytes,
    /// Streams of hosts with actors.
    with_actors: usize,
    /// When the timer fires.
    alarm: Option<Time>,
    /// The last stream has ended.
    ended: bool,
}

#[derive(Debug)]
struct Outbox {
    orders: mpsc::Sender<Order>,
    ended: CancellationToken,
    table_bytes: usize,
}

/// Membership of a stream; dropping it leaves the namespace.
#[derive(Debug)]
pub(crate) struct Membership {
    namespaces: Arc<Namespaces>,
    running: Arc<Running>,
    stream: StreamId,
    ended: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Namespaces {
    /// Starts without namespaces. `follows`: another replica may have led before. `tasks` must end before the
    /// process does.
    pub(crate) fn new(rules: Rules, metrics: Arc<Metrics>, follows: bool, tasks: TaskTracker) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            rules,
            metrics,
            term: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1),
            // With handover, hosts may keep their actors of a leader that this process does not know of.
            settles_at: if follows || rules.handover {
                SETTLE
            } else {
                Time::ZERO
            },
            began: Instant::now(),
            streams: AtomicU64::default(),
            table_bytes: AtomicUsize::default(),
            running: Mutex::default(),
            tasks,
        }
    }

    /// Adds a stream. Its messages go to `orders`, which has capacity for [`MAX_ORDERS`].
    ///
    /// # Errors
    /// If the table becomes too large.
    pub(crate) fn join(
        self: &Arc<Self>,
        host: Arc<Host>,
        orders: mpsc::Sender<Order>,
    ) -> Result<Membership, Status> {
        let stream = self.streams.fetch_add(1, Relaxed);
        let ended = CancellationToken::new();
        let outbox = Outbox {
            orders,
            ended: ended.clone(),
            table_bytes: 0,
        };
        let mut all = lock(&self.running);
        let running = match all.get(&host.namespace) {
            Some(running) => Arc::clone(running),
            None => self.begin(&mut all, &host.namespace),
        };
        let mut state = lock(&running.state);
        drop(all);
        state.streams.insert(stream, outbox);
        // Dropping this leaves the namespace.
        let membership = Membership {
            namespaces: Arc::clone(self),
            running: Arc::clone(&running),
            stream,
            ended,
        };
        if let Err(status) = self.charge(&mut state, stream, &host) {
            self.close(&running, &mut state, stream, status.clone());
            drop(state);
            return Err(status);
        }
        state.namespace.join(self.now(), stream, host);
        self.apply(&running, &mut state);
        drop(state);
        Ok(membership)
    }

    fn begin(self: &Arc<Self>, all: &mut HashMap<String, Arc<Running>>, name: &str) -> Arc<Running> {
        let running = Arc::new(Running {
            name: name.to_owned(),
            state: Mutex::new(State {
                namespace: Namespace::new(self.rules, self.settles_at),
                streams: HashMap::new(),
                table_bytes: 0,
                published: Bytes::new(),
                with_actors: 0,
                alarm: None,
                ended: false,
            }),
            changed: Notify::new(),
        });
        all.insert(name.to_owned(), Arc::clone(&running));
        self.tasks.spawn(Arc::clone(self).keep_time(Arc::clone(&running)));
        running
    }

    /// Wakes a namespace at its due times until it ends.
    async fn keep_time(self: Arc<Self>, running: Arc<Running>) {
        loop {
            let due = {
                let mut state = lock(&running.state);
                if state.ended {
                    return;
                }
                state.namespace.wake(self.now());
                self.apply(&running, &mut state);
                state.alarm
            };
            let changed = running.changed.notified();
            match due {
                None => changed.await,
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(self.began + due) => {}
                },
            }
        }
    }

    /// The tables for `/placement/state`: by namespace, hosts sorted by name.
    pub(crate) fn tables(&self) -> BTreeMap<String, StatePlacementTable> {
        let running: Vec<Arc<Running>> = lock(&self.running).values().cloned().collect();
        let tables = running.into_iter().map(|running| {
            let state = lock(&running.state);
            let mut hosts: Vec<Arc<Host>> = state.namespace.hosts().cloned().collect();
            let version = state.namespace.version();
            drop(state);
            hosts.sort_by(|one, other| one.name.cmp(&other.name));
            let hosts = hosts.iter().map(|host| Host::clone(host)).collect();
            (running.name.clone(), StatePlacementTable { hosts, version })
        });
        tables.collect()
    }

    fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Accounts for the table bytes of a host.
    fn charge(&self, state: &mut State, stream: StreamId, host: &Host) -> Result<(), Status> {
        let Some(outbox) = state.streams.get_mut(&stream) else {
            return Ok(());
        };
        let (old, new) = (outbox.table_bytes, table_bytes(host));
        let of_namespace = state.table_bytes - old + new;
        let of_all = self.table_bytes.load(Relaxed) - old + new;
        if new > old && (of_namespace > MAX_TABLE || of_all > MAX_TABLES) {
            return Err(Status::resource_exhausted(format!(
                "the table of namespace {} has no room for {} actor types of {}: it may have {MAX_TABLE} bytes, \
                 and {MAX_TABLES} with those of other namespaces; host fewer types, or use more namespaces",
                host.namespace,
                host.entities.len(),
                host.name
            )));
        }
        outbox.table_bytes = new;
        state.table_bytes = of_namespace;
        state.with_actors += usize::from(new > 0);
        state.with_actors -= usize::from(old > 0);
        self.metrics
            .streams(&host.namespace, state.streams.len(), state.with_actors);
        self.table_bytes.fetch_add(new, Relaxed);
        self.table_bytes.fetch_sub(old, Relaxed);
        Ok(())
    }

    /// Performs the namespace's effects and updates metrics and timer.
    fn apply(&self, running: &Running, state: &mut State) {
        loop {
            let effects = state.namespace.effects();
            if effects.is_empty() {
                break;
            }
            for stream in self.carry_out(running, state, effects) {
                tracing::warn!(
                    target: LOG,
                    "closing a stream of namespace {}: the sidecar does not read it",
                    running.name
                );
                self.close(
                    running,
                    state,
                    stream,
                    Status::resource_exhausted("orders are not read"),
                );
                state.namespace.leave(self.now(), stream);
            }
        }
        let wake_at = state.namespace.wake_at();
        if wake_at != state.alarm {
            state.alarm = wake_at;
            running.changed.notify_one();
        }
    }

    /// Performs effects; returns the streams whose queues are full.
    fn carry_out(&self, running: &Running, state: &mut State, effects: Vec<Effect>) -> Vec<StreamId> {
        let mut unread = Vec::new();
        let mut made: Option<(Phase, u64, bool, Bytes)> = None;
        for effect in effects {
            match effect {
                Effect::Publish { version, handover } => {
                    let namespace = &state.namespace;
                    state.published = frames::update(
                        version,
                        self.marks(handover),
                        self.rules.replication_factor,
                        namespace.hosts(),
                        namespace.leaving(),
                    );
                }
                Effect::Order {
                    to,
                    phase,
                    version,
                    handover,
                } => {
                    let frame = match (&made, phase) {
                        (_, Phase::Update) => state.published.clone(),
                        (Some((of, at, hands, frame)), _)
                            if (*of, *at, *hands) == (phase, version, handover) =>
                        {
                            frame.clone()
                        }
                        _ => {
                            let frame = frames::order(phase, version, self.marks(handover));
                            made.insert((phase, version, handover, frame)).3.clone()
                        }
                    };
                    let outbox = state.streams.get(&to);
                    if outbox.is_some_and(|outbox| outbox.orders.try_send(Ok(frame)).is_err()) {
                        unread.push(to);
                    }
                }
                Effect::Expire { stream, version } => {
                    self.metrics.expired();
                    let timeout = format_go_duration(self.rules.timeout);
                    let text = format!("dissemination timeout after {timeout} for version {version}");
                    tracing::warn!(
                        target: LOG,
                        "dissemination in namespace {} continues without a host: {text}",
                        running.name
                    );
                    self.close(running, state, stream, Status::deadline_exceeded(text));
                }
                Effect::Finished { took } => {
                    self.metrics.disseminated(took);
                    let (version, hosts) = (state.namespace.version(), state.streams.len());
                    tracing::debug!(
                        target: LOG,
                        "sent table {version} of namespace {} to {hosts} hosts in {took:?}", running.name
                    );
                }
            }
        }
        unread
    }

    fn marks(&self, handover: bool) -> Marks {
        Marks {
            handover: if handover { self.term } else { 0 },
            settles: self.rules.handover,
        }
    }

    /// Removes a stream; sends it the status if it still reads.
    fn close(&self, running: &Running, state: &mut State, stream: StreamId, status: Status) {
        let Some(outbox) = state.streams.remove(&stream) else {
            return;
        };
        state.table_bytes -= outbox.table_bytes;
        self.table_bytes.fetch_sub(outbox.table_bytes, Relaxed);
        state.with_actors -= usize::from(outbox.table_bytes > 0);
        self.metrics
            .streams(&running.name, state.streams.len(), state.with_actors);
        let _ = outbox.orders.try_send(Err(status));
        outbox.ended.cancel();
    }

    fn leave(&self, running: &Arc<Running>, stream: StreamId) {
        let mut all = lock(&self.running);
        let mut state = lock(&running.state);
        self.close(running, &mut state, stream, Status::ok(""));
        state.namespace.leave(self.now(), stream);
        self.apply(running, &mut state);
        if state.namespace.is_empty() && state.streams.is_empty() && !state.ended {
            state.ended = true;
            all.remove(&running.name);
            running.changed.notify_one();
        }
    }
}

impl Membership {
    /// Handles a message of the stream.
    ///
    /// # Errors
    /// If the table becomes too large.
    pub(crate) fn message(&self, message: Message) -> Result<(), Status> {
        let mut state = lock(&self.running.state);
        if let Message::Report(host) | Message::ReportOrAnswer(host) = &message {
            self.namespaces.charge(&mut state, self.stream, host)?;
        }
        let now = self.namespaces.now();
        state.namespace.message(now, self.stream, message);
        self.namespaces.apply(&self.running, &mut state);
        Ok(())
    }

    /// Closes the stream with a status.
    pub(crate) fn close(&self, status: Status) {
        let mut state = lock(&self.running.state);
        self.namespaces
            .close(&self.running, &mut state, self.stream, status);
    }

    /// Completes when the namespace has closed the stream.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.namespaces.leave(&self.running, self.stream);
    }
}
