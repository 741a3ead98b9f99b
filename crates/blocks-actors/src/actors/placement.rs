//! The stream to placement: says what this sidecar hosts, and follows the table through its rounds.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use outrigger_actors::ring::{Host, TableError, Tables};
use outrigger_actors::round::{Order, Round, Step};
use outrigger_actors::routes::{Routes, Stamp};
use outrigger_identity::{Expect, Identity, SpiffeId, server_name};
use outrigger_runtime::life::Condition;
use outrigger_transport::conn::{Channel, Dialer, H2Pool, KeepAlive};
use outrigger_wire::placement::v1 as wire;
use outrigger_wire::placement::v1::placement_client::PlacementClient;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::outage::{LOOK, LOOK_AGAIN, LostStream, Outage, Unopened, look};
use super::replicas::{Replica, Replicas};
use super::{Actors, LOG};

/// Time to open a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the first report waits until it is known what the app hosts.
const FIRST_REPORT: Duration = Duration::from_secs(1);
/// How long a sidecar that ends waits until its actors are others'.
const LEAVE: Duration = Duration::from_secs(4);
/// How long calls that run may go on when the stream to placement is lost: with the time after which its silence is noticed
/// (`PLACEMENT_PING`) less than the 5 s after which placement gives actors to others.
const FENCE: Duration = Duration::from_millis(500);
/// How long a sidecar that ends passes calls on when its actors are others': to callers the word comes a little later.
const LINGER: Duration = Duration::from_millis(500);
/// What sidecars call themselves; nobody looks at it any more.
const API_LEVEL: u32 = 20;
/// Largest table, bytes.
const MAX_TABLE: usize = 64 << 20;

/// How placement is reached.
pub struct Placement {
    /// `host:port` of each replica.
    pub addresses: Vec<String>,
    /// Whether the first address stands for all replicas, by its name.
    pub by_name: bool,
    /// Who this is, and who placement has to be; `None` without mTLS.
    pub identity: Option<(Identity, SpiffeId)>,
    /// Met with the first table.
    pub ready: Condition,
}

/// Why a stream ended.
enum End {
    /// The sidecar ends.
    Stopped,
    /// It is to be made again.
    Lost(LostStream),
}

impl Actors {
    /// Follows placement, looks after idle actors, and when told to stop ends all actors. Completes then.
    pub async fn run(self: Arc<Self>, placement: Placement, stop: CancellationToken) {
        let followed = async {
            tokio::select! {
                () = self.follow(&placement, &stop) => {}
                () = self.end_idle() => {}
                () = self.announce() => {}
            }
        };
        followed.await;
        self.with.scheduler.take_reminders_of(Vec::new());
        self.close(false).await;
        self.ended.cancel();
        self.timers.ended().await;
    }

    async fn follow(&self, placement: &Placement, stop: &CancellationToken) {
        let mut types = self.types.subscribe();
        tokio::select! {
            () = stop.cancelled() => return,
            _known = timeout(FIRST_REPORT, types.wait_for(Option::is_some)) => {}
        }
        let mut replicas = Replicas::new(&placement.addresses, placement.by_name);
        let mut outage: Option<Outage> = None;
        loop {
            let session = self.connect_and_follow(placement, &mut replicas, outage.as_ref(), stop);
            let lost = match session.await {
                End::Stopped => return,
                End::Lost(lost) => lost,
            };
            tracing::warn!(target: LOG, "placement: {}; connecting again", lost.cause);
            outage = match outage {
                Some(outage) if !lost.served => {
                    if lost.nobody_leads {
                        replicas.denied(&outage);
                    }
                    self.looked(outage, &lost, replicas.tour()).await
                }
                _ => {
                    replicas.begin_outage();
                    self.begin_outage(&lost).await
                }
            };
            let pause = match &outage {
                Some(outage) if outage.is_pausing() => LOOK_AGAIN,
                None if !lost.served && replicas.has_gone_round() => PAUSE,
                _ => continue,
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Lets no call begin, ends those that run, and all actors. `fenced`: others take over at any time, so that behind
    /// [`FENCE`] no call and no app that is told of an actor's end writes state, however long it takes.
    pub(super) async fn close(&self, fenced: bool) {
        self.is_connected.store(false, Ordering::Release);
        let drain = self.drain_time();
        let drain = if fenced { drain.min(FENCE) } else { drain };
        let draining = self.gate.close();
        let fence = draining.fence();
        let mut ending = pin!(async {
            draining.end(drain).await;
            self.halt_here(|_, _| true).await;
        });
        if !fenced {
            return ending.await;
        }
        let ended = timeout(FENCE, &mut ending).await;
        fence.cut();
        if ended.is_err() {
            ending.await;
        }
    }

    fn drain_time(&self) -> Duration {
        self.hosted.load().drain
    }

    async fn connect_and_follow(
        &self,
        placement: &Placement,
        replicas: &mut Replicas<'_>,
        outage: Option<&Outage>,
        stop: &CancellationToken,
    ) -> End {
        let opening = async {
            let replica = replicas.next(outage).await.map_err(Unopened::from)?;
            let open = || self.open_stream(placement, &replica, outage.is_some());
            let tour = u32::try_from(replicas.tour()).unwrap_or(u32::MAX);
            match outage {
                None => open().await,
                Some(_) => look(LOOK / tour, open).await,
            }
        };
        let opened = tokio::select! {
            () = stop.cancelled() => return End::Stopped,
            opened = opening => opened,
        };
        match opened {
            Err(unopened) => End::Lost(LostStream {
                cause: unopened.cause,
                served: false,
                nobody_leads: unopened.nobody_leads,
                may_outlast: false,
            }),
            Ok(Stream {
                reports,
                orders,
                reported,
            }) => {
                let mut session = Session {
                    actors: self,
                    ready: &placement.ready,
                    reports,
                    round: Round::default(),
                    hands_over_now: false,
                    settles: false,
                    draining: None,
                    reported,
                    served: false,
                    outage: outage.copied(),
                    leaving: None,
                };
                let end = session.run(orders, stop).await;
                end.unwrap_or_else(|broken| session.lost(broken))
            }
        }
    }

    /// A stream of a replica, with the first report on its way.
    async fn open_stream(
        &self,
        placement: &Placement,
        replica: &Replica<'_>,
        is_outage: bool,
    ) -> Result<Stream, Unopened> {
        let (reports, outgoing) = mpsc::channel(8);
        let channel = placement.channel(replica);
        let mut client = PlacementClient::new(channel).max_decoding_message_size(MAX_TABLE);
        let reported = self.types.borrow().clone().unwrap_or_default();
        // There is room: nothing was sent yet.
        let _sent = reports.try_send(self.report(&reported, self.with.handover && !is_outage));
        let opened = client.report_dapr_status(tokio_stream_of(outgoing)).await;
        Ok(Stream {
            reports,
            orders: opened.map_err(|status| Unopened::from(&status))?.into_inner(),
            reported,
        })
    }

    fn report(&self, names: &[String], hands_over: bool) -> wire::Host {
        wire::Host {
            name: self.with.address.clone(),
            entities: names.to_vec(),
            id: self.with.app_id.to_string(),
            api_level: API_LEVEL,
            namespace: self.with.namespace.to_string(),
            operation: wire::HostOperation::Report.into(),
            hands_over,
            ..wire::Host::default()
        }
    }

    fn answer(&self, operation: wire::HostOperation, version: u64) -> wire::Host {
        wire::Host {
            id: self.with.app_id.to_string(),
            namespace: self.with.namespace.to_string(),
            operation: operation.into(),
            version: Some(version),
            ..wire::Host::default()
        }
    }
}

/// A receiver as the stream that generated clients send.
fn tokio_stream_of<T: Send + 'static>(receiver: mpsc::Receiver<T>) -> impl futures::Stream<Item = T> + Send {
    futures::stream::unfold(receiver, |mut receiver| async move {
        let item = receiver.recv().await?;
        Some((item, receiver))
    })
}

impl Placement {
    fn channel(&self, replica: &Replica<'_>) -> Channel {
        let host = replica.listed.rsplit_once(':');
        let name = server_name(host.map_or(replica.listed, |(host, _)| host));
        let address = replica.address.as_str();
        let dialer = match &self.identity {
            Some((identity, id)) => {
                Dialer::mutual(address, identity, Expect::Exact(id.clone()), name, CONNECT)
            }
            None => Dialer::plain(address, CONNECT),
        };
        Channel::new(H2Pool::new(dialer, Some(KeepAlive::OF_PLACEMENT)))
    }
}

/// A stream that was opened.
struct Stream {
    reports: mpsc::Sender<wire::Host>,
    orders: Streaming<wire::PlacementOrder>,
    /// What the first report says is hosted here.
    reported: Arc<[String]>,
}

/// One stream.
struct Session<'a> {
    actors: &'a Actors,
    ready: &'a Condition,
    reports: mpsc::Sender<wire::Host>,
    round: Round,
    /// The last order was of a round in which only what moves stops.
    hands_over_now: bool,
    /// A leader begins with a pause: this host may go on while there is none.
    settles: bool,
    draining: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    reported: Arc<[String]>,
    /// There was an order.
    served: bool,
    /// There was no leader before this stream, and actors may have gone on.
    outage: Option<Outage>,
    /// The sidecar ends: it hosts nothing any more, and goes when all know that, or at this time.
    leaving: Option<Instant>,
}

impl Session<'_> {
    /// Follows orders until the stream ends.
    ///
    /// # Errors
    /// Why it is of no use any more.
    async fn run(
        &mut self,
        mut orders: Streaming<wire::PlacementOrder>,
        stop: &CancellationToken,
    ) -> Result<End, Unopened> {
        let mut types = self.actors.types.subscribe();
        types.mark_changed();
        loop {
            // Who hands over holds up nobody, and need not hurry.
            let deadline = self.round.deadline().filter(|_| !self.hands_over_now);
            let deadline = deadline.map(Instant::from_std);
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.leaving.is_none() => {
                    if self.reported.is_empty() {
                        return Ok(End::Stopped);
                    }
                    self.leave().await?;
                }
                () = until(self.leaving) => return Ok(End::Stopped),
                () = wait(&mut self.draining) => {
                    self.draining = None;
                    if let Some(version) = self.round.drained() {
                        self.send(self.actors.answer(wire::HostOperation::Lock, version)).await?;
                    }
                }
                () = until(deadline) => return Err("no table followed within 5 s".to_owned().into()),
                _ = types.changed(), if self.leaving.is_none() => self.retell(&mut types).await?,
                order = orders.message() => match order {
                    Ok(Some(order)) => {
                        self.begin_service().await;
                        self.order(order).await?;
                        if self.has_left() {
                            if !self.hands_over_now {
                                return Ok(End::Stopped);
                            }
                            let last = Instant::now() + LINGER;
                            self.leaving = self.leaving.map(|leaving| leaving.min(last));
                        }
                    }
                    Ok(None) => {
                        return Err(Unopened {
                            is_ended: true,
                            ..Unopened::from("the stream ended".to_owned())
                        });
                    }
                    Err(status) => return Err(Unopened::from(&status)),
                },
            }
        }
    }

    /// A leader speaks. If it may be the one from before, it has given the actors here away.
    async fn begin_service(&mut self) {
        let first = !std::mem::replace(&mut self.served, true);
        if first && self.outage.is_some_and(|outage| !outage.is_proven) {
            self.actors.close(true).await;
        }
    }

    fn lost(&self, broken: Unopened) -> End {
        let steady = self.round.is_over() && self.draining.is_none() && self.leaving.is_none();
        End::Lost(LostStream {
            cause: broken.cause,
            served: self.served,
            nobody_leads: broken.nobody_leads,
            may_outlast: broken.is_ended && steady && self.settles,
        })
    }

    /// Exclusive, because what drains can be shared by nobody.
    async fn send(&mut self, host: wire::Host) -> Result<(), Unopened> {
        let sent = self.reports.send(host).await;
        sent.map_err(|_| Unopened {
            is_ended: true,
            ..Unopened::from("the stream ended".to_owned())
        })
    }

    /// Says that nothing is hosted here any more: the next table gives the actors to others, and ends those here first.
    async fn leave(&mut self) -> Result<(), Unopened> {
        self.leaving = Some(Instant::now() + LEAVE);
        self.actors.is_connected.store(false, Ordering::Release);
        self.actors.with.scheduler.take_reminders_of(Vec::new());
        self.reported = Arc::default();
        self.send(self.actors.report(&[], self.actors.with.handover))
            .await
    }

    /// Whether all know that nothing is hosted here any more.
    fn has_left(&self) -> bool {
        let routes = self.actors.routes.load();
        let listed = routes.tables().name(&self.actors.with.address);
        self.leaving.is_some() && self.round.is_over() && !listed
    }

    /// What the app hosts may be another set of types.
    async fn retell(&mut self, types: &mut watch::Receiver<Option<Arc<[String]>>>) -> Result<(), Unopened> {
        let names = types.borrow_and_update().clone().unwrap_or_default();
        if names == self.reported {
            return Ok(());
        }
        self.actors.is_connected.store(false, Ordering::Release);
        let hands_over = self.actors.with.handover && self.outage.is_none();
        self.send(self.actors.report(&names, hands_over)).await?;
        self.reported = names;
        Ok(())
    }

    async fn order(&mut self, order: wire::PlacementOrder) -> Result<(), Unopened> {
        let tables = order.tables;
        let version = match order.version {
            0 => tables
                .as_ref()
                .and_then(|tables| tables.version.parse().ok())
                .unwrap_or(0),
            version => version,
        };
        let Some(kind) = Order::named(&order.operation) else {
            return Err(format!(
                "the placement service sent the unknown operation {:?}",
                order.operation
            )
            .into());
        };
        // Not 0: calls of what does not move go on.
        let handover = if self.actors.with.handover {
            order.handover
        } else {
            0
        };
        self.hands_over_now = handover != 0;
        self.settles = order.settles;
        match self.round.order(kind, version, std::time::Instant::now()) {
            Step::Ignore => Ok(()),
            Step::Drain if handover != 0 && self.draining.is_none() => match self.round.drained() {
                Some(version) => {
                    self.send(self.actors.answer(wire::HostOperation::Lock, version))
                        .await
                }
                None => Ok(()),
            },
            Step::Reconnect => Err(format!("a table of round {version}, which is over").into()),
            Step::Drain => {
                let draining = self.actors.gate.close();
                let time = self.actors.drain_time();
                self.draining.get_or_insert_with(|| draining.end(time).boxed());
                Ok(())
            }
            Step::Install(version) => {
                let tables =
                    read(tables.unwrap_or_default()).map_err(|error| Unopened::from(error.to_string()))?;
                let stamp = Stamp {
                    term: handover,
                    version,
                };
                self.install(tables, stamp, &order.leaving).await;
                self.send(self.actors.answer(wire::HostOperation::Update, version))
                    .await
            }
            Step::Open(version) => self.open(version).await,
        }
    }

    /// Lets calls go by the new table.
    async fn open(&mut self, version: u64) -> Result<(), Unopened> {
        let actors = self.actors;
        if self.leaving.is_none() {
            actors.announced.send_replace(Arc::clone(&self.reported));
        }
        actors.step(actors.routes.load().settled());
        actors.gate.open();
        let known = actors.types.borrow().clone();
        if self.leaving.is_none() && known.is_none_or(|names| names == self.reported) {
            actors.is_connected.store(true, Ordering::Release);
            self.ready.met();
        }
        self.send(actors.answer(wire::HostOperation::Unlock, version))
            .await?;
        // From this table on, actors can be handed over as before.
        match self.outage.take() {
            Some(_) if actors.with.handover && self.leaving.is_none() => {
                let report = actors.report(&self.reported, true);
                self.send(report).await
            }
            _ => Ok(()),
        }
    }

    /// Takes a table, and ends the actors that are another sidecar's by it. Where they are handed over, the others go on.
    async fn install(&mut self, tables: Tables, stamp: Stamp, leaving: &[String]) {
        let (actors, routes) = (self.actors, self.actors.routes.load_full());
        if stamp.term == 0 {
            let routes = Arc::new(routes.replaced(tables));
            actors.step(Routes::clone(&routes));
            return actors.halt_here(|kind, id| !routes.owns(kind, id)).await;
        }
        // Who stood still has no table of this term before this one.
        let known = actors.gate.is_open();
        let leaving = leaving.iter().map(String::as_str);
        actors.step(routes.handing_over(stamp, tables, known, leaving));
        actors.gate.open();
        actors.hand_over(actors.drain_time()).await;
    }
}

pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

async fn wait(draining: &mut Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>>) {
    match draining {
        Some(draining) => draining.await,
        None => std::future::pending().await,
    }
}

fn read(tables: wire::PlacementTables) -> Result<Tables, TableError> {
    let replication = tables.replication_factor;
    if tables.entries.is_empty() {
        return Ok(Tables::default());
    }
    let entries = tables.entries.into_iter().map(|(kind, table)| {
        let hosts = table.load_map.into_iter().map(|(address, host)| Host {
            address: address.into(),
            app_id: host.id.into(),
        });
        (kind, hosts.collect())
    });
    Tables::new(entries, replication)
}
