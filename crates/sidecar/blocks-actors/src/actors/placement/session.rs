//! One stream to placement: orders and reports.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{Stream, StreamExt};
use outrigger_actors::dissemination::{Dissemination, Order, Step};
use outrigger_actors::ring::{Host, TableError, Tables};
use outrigger_actors::routes::{Routes, Stamp};
use outrigger_resources::value::format_go_duration;
use outrigger_runtime::life::Condition;
use outrigger_wire::placement::v1 as wire;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::super::Actors;
use super::super::outage::{LostStream, Outage, Unopened};
use super::until;

/// How long a sidecar that shuts down waits for the dissemination that moves its actors, and for each step of
/// it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Orders queued while actors end; further ones stay in the stream.
const MAX_QUEUED_ORDERS: usize = 16;
/// How long a sidecar that shuts down forwards calls after its actors have moved: callers learn that a little
/// later.
const FORWARD_TIME: Duration = Duration::from_millis(500);

/// The end of moving actors; resolves to the version to answer `UPDATE` with.
pub(super) type PendingHandover<'a> = Option<Pin<Box<dyn Future<Output = u64> + Send + 'a>>>;

pub(super) struct Session<'s, 'a> {
    actors: &'a Actors,
    ready: &'s Condition,
    reports: mpsc::Sender<wire::Host>,
    dissemination: Dissemination,
    /// The last order belongs to a dissemination with handover.
    hands_over_now: bool,
    /// The leader starts with a pause: this host may keep its actors while there is none.
    settles: bool,
    /// No dissemination came in time during shutdown: the session ends when running calls have ended.
    draining: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    /// Outlasts the stream: actors that have begun to end finish.
    handing: &'s mut PendingHandover<'a>,
    /// `handing` belongs to a dissemination without handover. Orders wait in `queued`; the end
    /// of the stream is handled at once.
    all_stop: bool,
    queued: VecDeque<wire::PlacementOrder>,
    reported: Arc<[String]>,
    /// An order has arrived.
    served: bool,
    /// There was no leader before this stream, and actors may have kept running.
    outage: Option<Outage>,
    /// The sidecar is shutting down and hosts nothing. It returns when all hosts know, or at this time, but
    /// not before its handover is done.
    leaving: Option<Instant>,
}

impl<'s, 'a> Session<'s, 'a> {
    /// A stream whose first report has been sent; `outage`: there was no leader before it.
    pub(super) fn new(
        actors: &'a Actors,
        ready: &'s Condition,
        (reports, reported): (mpsc::Sender<wire::Host>, Arc<[String]>),
        outage: Option<Outage>,
        handing: &'s mut PendingHandover<'a>,
    ) -> Self {
        Self {
            actors,
            ready,
            reports,
            dissemination: Dissemination::new(actors.with.disseminate_timeout),
            hands_over_now: false,
            settles: false,
            draining: None,
            handing,
            all_stop: false,
            queued: VecDeque::new(),
            reported,
            served: false,
            outage,
            leaving: None,
        }
    }
}

impl Session<'_, '_> {
    /// Follows orders until the sidecar may exit.
    ///
    /// # Errors
    /// Why the stream must be reopened.
    pub(super) async fn run(
        &mut self,
        mut orders: impl Stream<Item = Result<wire::PlacementOrder, Status>> + Unpin,
        stop: &CancellationToken,
    ) -> Result<(), Unopened> {
        let mut types = self.actors.types.subscribe();
        types.mark_changed();
        loop {
            if self.handing.is_none()
                && let Some(order) = self.queued.pop_front()
            {
                if self.order(order).await? {
                    return Ok(());
                }
                continue;
            }
            // A handover delays no other host, so it has no deadline.
            let deadline = self.dissemination.deadline().filter(|_| !self.hands_over_now);
            let deadline = deadline.map(Instant::from_std);
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.leaving.is_none() => {
                    if self.reported.is_empty() && self.handing.is_none() && !self.actors.has_active() {
                        return Ok(());
                    }
                    self.leave().await?;
                }
                () = until(self.leaving), if self.handing.is_none() && self.draining.is_none() => {
                    if !self.is_listed() && (self.hands_over_now || self.dissemination.is_over()) {
                        return Ok(());
                    }
                    // While this stream is open no other host gets the actors: calls may drain.
                    self.drain();
                }
                () = wait(&mut self.draining) => return Ok(()),
                version = wait(self.handing) => {
                    *self.handing = None;
                    self.all_stop = false;
                    // The other hosts are informed from now on.
                    self.leaving = self.leaving.map(|_| Instant::now() + LEAVE_TIMEOUT);
                    self.send(self.actors.answer(wire::HostOperation::Update, version)).await?;
                }
                () = until(deadline) => return Err(self.no_table().into()),
                _ = types.changed(), if self.leaving.is_none() => self.report_types(&mut types).await?,
                order = orders.next(), if self.queued.len() < MAX_QUEUED_ORDERS => match order {
                    Some(Ok(order)) if self.all_stop => self.queued.push_back(order),
                    Some(Ok(order)) => {
                        self.begin_service().await;
                        if self.order(order).await? {
                            return Ok(());
                        }
                    }
                    None => {
                        return Err(Unopened {
                            is_ended: true,
                            ..Unopened::from("the stream ended".to_owned())
                        });
                    }
                    Some(Err(status)) => return Err(Unopened::from(&status)),
                },
            }
        }
    }

    /// Handles the first order. If the leader may be the previous one, it has reassigned the actors.
    async fn begin_service(&mut self) {
        let first = !std::mem::replace(&mut self.served, true);
        if first && self.outage.is_some_and(|outage| !outage.is_proven) {
            self.actors.close().await;
        }
    }

    pub(super) fn lost(&self, broken: Unopened) -> LostStream {
        let steady = self.dissemination.is_over() && self.draining.is_none() && self.leaving.is_none();
        LostStream {
            cause: broken.cause,
            served: self.served,
            nobody_leads: broken.nobody_leads,
            may_outlast: broken.is_ended && steady && self.settles,
        }
    }

    /// `&mut self`, because the draining future is not `Sync`.
    async fn send(&mut self, host: wire::Host) -> Result<(), Unopened> {
        let sent = self.reports.send(host).await;
        sent.map_err(|_| Unopened {
            is_ended: true,
            ..Unopened::from("the stream ended".to_owned())
        })
    }

    /// Reports that nothing is hosted any longer; the next table moves the actors, which end here first.
    async fn leave(&mut self) -> Result<(), Unopened> {
        self.leaving = Some(Instant::now() + LEAVE_TIMEOUT);
        self.actors.is_connected.store(false, Ordering::Release);
        self.actors.with.scheduler.take_reminders_of(Vec::new());
        self.reported = Arc::default();
        self.send(self.actors.report(&[], self.actors.with.handover))
            .await
    }

    /// Why the stream is reopened although placement may still answer.
    fn no_table(&self) -> String {
        format!(
            "Dissemination timeout for version {}: no table arrived within {} (--actors-disseminate-timeout)",
            self.dissemination.version(),
            format_go_duration(self.actors.with.disseminate_timeout)
        )
    }

    /// Whether all hosts know that nothing is hosted here any longer.
    fn has_left(&self) -> bool {
        self.leaving.is_some() && self.dissemination.is_over() && !self.is_listed()
    }

    /// Whether the current table assigns actors to this sidecar.
    fn is_listed(&self) -> bool {
        let routes = self.actors.routes.load();
        routes.tables().name(&self.actors.with.address)
    }

    /// Reports a changed set of types.
    async fn report_types(
        &mut self,
        types: &mut watch::Receiver<Option<Arc<[String]>>>,
    ) -> Result<(), Unopened> {
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

    /// Handles an order; returns whether the sidecar may exit.
    async fn order(&mut self, order: wire::PlacementOrder) -> Result<bool, Unopened> {
        self.follow(order).await?;
        if !self.has_left() {
            return Ok(false);
        }
        let last = Instant::now() + FORWARD_TIME;
        self.leaving = self.leaving.map(|leaving| leaving.min(last));
        Ok(!self.hands_over_now)
    }

    async fn follow(&mut self, order: wire::PlacementOrder) -> Result<(), Unopened> {
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
        // Not 0: calls of actors that stay continue.
        let handover = if self.actors.with.handover {
            order.handover
        } else {
            0
        };
        self.hands_over_now = handover != 0;
        self.settles = order.settles;
        match self.dissemination.order(kind, version, std::time::Instant::now()) {
            Step::Ignore => Ok(()),
            // Placement waits for the answer or has dropped this host, whose actors may then have moved.
            _ if self.handing.is_some() => Err(format!(
                "the order {} arrived before the moving actors had ended",
                order.operation
            )
            .into()),
            Step::Await(version) => {
                self.leaving = self.leaving.map(|_| Instant::now() + LEAVE_TIMEOUT);
                self.send(self.actors.answer(wire::HostOperation::Lock, version))
                    .await
            }
            Step::Reconnect => Err(format!("stale table of dissemination {version}").into()),
            Step::Install(version) => {
                let tables =
                    read(tables.unwrap_or_default()).map_err(|error| Unopened::from(error.to_string()))?;
                let stamp = Stamp {
                    term: handover,
                    version,
                };
                self.install(tables, stamp, &order.leaving);
                Ok(())
            }
            Step::Open(version) => self.open(version).await,
        }
    }

    /// Closes admission and drains the calls in flight.
    fn drain(&mut self) {
        let draining = self.actors.admission.close();
        let time = self.actors.hosted.load().longest_drain();
        self.draining = Some(draining.end(time).map(drop).boxed());
    }

    /// Routes calls by the new table.
    async fn open(&mut self, version: u64) -> Result<(), Unopened> {
        let actors = self.actors;
        if self.leaving.is_none() {
            actors.announced.send_replace(Arc::clone(&self.reported));
        }
        actors.step(actors.routes.load().settled());
        actors.admission.open();
        let known = actors.types.borrow().clone();
        if self.leaving.is_none() && known.is_none_or(|names| names == self.reported) {
            actors.is_connected.store(true, Ordering::Release);
            self.ready.met();
        }
        self.send(actors.answer(wire::HostOperation::Unlock, version))
            .await?;
        // From this table on, actors can be handed over again.
        match self.outage.take() {
            Some(_) if actors.with.handover && self.leaving.is_none() => {
                let report = actors.report(&self.reported, true);
                self.send(report).await
            }
            _ => Ok(()),
        }
    }

    /// Installs a table and ends the actors that it assigns to others; the order is answered when they have
    /// ended. Without handover, all calls end of the types whose hosts change, and others wait.
    fn install(&mut self, tables: Tables, stamp: Stamp, leaving: &[String]) {
        let (actors, routes) = (self.actors, self.actors.routes.load_full());
        // A host whose stream was lost has no earlier table of this term.
        let known = actors.admission.is_open();
        if stamp.term == 0 {
            let hosted = actors.hosted.load_full();
            let changed = hosted
                .all()
                .filter(|kind| !known || routes.tables().differ(&tables, &kind.name));
            let closed = changed.map(|kind| (Arc::clone(kind), kind.admission.close()));
            let closed = closed.collect();
            let halting = async move {
                actors.drain_types(closed).await;
                let routes = Arc::new(routes.replaced(tables, known));
                actors.step(Routes::clone(&routes));
                actors.halt_here(|kind, id| !routes.owns(kind, id)).await;
                stamp.version
            };
            self.all_stop = true;
            *self.handing = Some(halting.boxed());
            return;
        }
        let leaving = leaving.iter().map(String::as_str);
        actors.step(routes.handing_over(stamp, tables, known, leaving));
        actors.admission.open();
        let handing = async move {
            actors.hand_over().await;
            stamp.version
        };
        *self.handing = Some(handing.boxed());
    }
}

async fn wait<T>(ending: &mut Option<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> T {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

/// Completes when the handover of a previous stream has ended.
pub(super) async fn finish_handover(handing: &mut PendingHandover<'_>) {
    if let Some(ending) = handing {
        ending.await;
    }
    *handing = None;
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

#[cfg(test)]
mod tests;
