//! The stream to placement: reports the hosted types and follows disseminations.

mod session;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_accept::LogThrottle;
use outrigger_backoff::Backoff;
use outrigger_identity::{Expect, Identity, SpiffeId, server_name};
use outrigger_runtime::life::Condition;
use outrigger_transport::conn::{Channel, Dialer, H2Pool, KeepAlive};
use outrigger_wire::placement::v1 as wire;
use outrigger_wire::placement::v1::placement_client::PlacementClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::outage::{LostStream, Outage, SEARCH_INTERVAL, SEARCH_TIMEOUT, Unopened, search};
use super::replicas::{Replica, Replicas};
use super::{Actors, LOG};
use session::{PendingHandover, Session, finish_handover};

/// Connect timeout, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause between attempts.
const PAUSE: Duration = Duration::from_millis(750);
/// How long the first report waits for the app's actor types.
const FIRST_REPORT: Duration = Duration::from_secs(1);
/// Drain time of calls when the stream to placement is lost. Together with `PLACEMENT_PING`, which detects a
/// silent stream, less than the 5 s after which placement reassigns the actors.
const REVOKE_TIMEOUT: Duration = Duration::from_millis(500);
/// API level of sidecars; no longer evaluated.
const API_LEVEL: u32 = 20;
/// Maximum table, bytes.
const MAX_TABLE: usize = 64 << 20;

/// How to reach placement.
pub struct Placement {
    /// `host:port` of each replica.
    pub addresses: Vec<String>,
    /// Whether the first address is a name that resolves to all replicas.
    pub by_name: bool,
    /// This sidecar's identity and placement's; `None` without mTLS.
    pub identity: Option<(Identity, SpiffeId)>,
    /// Met with the first table.
    pub ready: Condition,
}

/// The end of actors that outlasts [`REVOKE_TIMEOUT`].
type Ending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Why a stream ended.
enum End<'a> {
    /// The sidecar shuts down. `None`: its actors have ended, or it had no stream.
    Stopped(Option<Ending<'a>>),
    /// Reopen the stream.
    Lost(LostStream),
}

impl Actors {
    /// Follows placement and deactivates idle actors; when stopped, ends all actors and returns.
    pub async fn run(self: Arc<Self>, placement: Placement, stop: CancellationToken) {
        let mut handing = None;
        let followed = async {
            tokio::select! {
                ending = self.follow(&placement, &stop, &mut handing) => ending,
                () = self.end_idle() => None,
                () = self.announce() => None,
                () = self.admission.watch() => None,
                () = self.report_old_reminders() => None,
            }
        };
        let ending = followed.await;
        self.with.scheduler.take_reminders_of(Vec::new());
        let ended = async {
            match ending {
                Some(ending) => ending.await,
                None => self.close().await,
            }
        };
        tokio::join!(ended, finish_handover(&mut handing));
        self.ended.cancel();
        self.timers.ended().await;
        self.streams.tasks.close();
        self.streams.tasks.wait().await;
    }

    /// Follows placement until stopped. The caller awaits the returned end of actors and pending handovers.
    async fn follow<'a>(
        &'a self,
        placement: &Placement,
        stop: &CancellationToken,
        handing: &mut PendingHandover<'a>,
    ) -> Option<Ending<'a>> {
        let mut types = self.types.subscribe();
        tokio::select! {
            () = stop.cancelled() => return None,
            _known = timeout(FIRST_REPORT, types.wait_for(Option::is_some)) => {}
        }
        let mut replicas = Replicas::new(&placement.addresses, placement.by_name);
        let mut outage: Option<Outage> = None;
        let mut warning = LogThrottle::default();
        let pauses = Backoff::new(PAUSE, PAUSE).jittered();
        loop {
            let session = self.connect_and_follow(placement, &mut replicas, outage.as_ref(), stop, handing);
            let end = tokio::select! {
                biased;
                () = self.admission.suspended() => End::Lost(LostStream {
                    cause: "this process was suspended and its actors may have moved".to_owned(),
                    served: true,
                    nobody_leads: false,
                    may_outlast: false,
                }),
                end = session => end,
            };
            let lost = match end {
                End::Stopped(ending) => return ending,
                End::Lost(lost) => lost,
            };
            if lost.served {
                warning = LogThrottle::default();
            }
            if warning.happened().is_some() {
                tracing::warn!(
                    target: LOG,
                    "placement ({}, from --placement-host-address or --actors-service): {}; connecting again",
                    placement.addresses.join(","),
                    lost.cause
                );
            }
            let without = async {
                match outage {
                    Some(outage) if !lost.served => {
                        if lost.nobody_leads {
                            replicas.denied(&outage);
                        }
                        self.after_search(outage, &lost, replicas.tour()).await
                    }
                    _ => {
                        replicas.begin_outage();
                        self.begin_outage(&lost).await
                    }
                }
            };
            (outage, ()) = tokio::join!(without, finish_handover(handing));
            if outage.is_none() {
                self.admission.resume();
            }
            let pause = match &outage {
                Some(outage) if outage.is_pausing() => SEARCH_INTERVAL,
                None if !lost.served && replicas.all_asked() => pauses.after(0),
                _ => continue,
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(pause) => {}
            }
        }
    }

    /// Closes admission, cancels calls and ends all actors. Other hosts may take over at any time, so after
    /// [`REVOKE_TIMEOUT`] no call and no deactivation writes state, however long it runs.
    pub(super) async fn close(&self) {
        if let Some(ending) = self.revoke_all().await {
            ending.await;
        }
    }

    /// As [`Actors::close`], until other hosts may take over; returns the remaining work.
    async fn revoke_all(&self) -> Option<Ending<'_>> {
        self.is_connected.store(false, Ordering::Release);
        let drain = self.hosted.load().longest_drain().min(REVOKE_TIMEOUT);
        let draining = self.admission.close();
        let revoked = draining.clone();
        let mut ending: Ending<'_> = Box::pin(async move {
            draining.end(drain).await;
            self.halt_here(|_, _| true).await;
        });
        let ended = timeout(REVOKE_TIMEOUT, &mut ending).await;
        revoked.cancel();
        ended.is_err().then_some(ending)
    }

    async fn connect_and_follow<'a>(
        &'a self,
        placement: &Placement,
        replicas: &mut Replicas<'_>,
        outage: Option<&Outage>,
        stop: &CancellationToken,
        handing: &mut PendingHandover<'a>,
    ) -> End<'a> {
        let opening = async {
            let replica = replicas.next(outage).await.map_err(Unopened::from)?;
            let open = || self.open_stream(placement, &replica, outage.is_some());
            let tour = u32::try_from(replicas.tour()).unwrap_or(u32::MAX);
            match outage {
                None => open().await,
                Some(_) => search(SEARCH_TIMEOUT / tour, open).await,
            }
        };
        let opened = tokio::select! {
            () = stop.cancelled() => return End::Stopped(None),
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
                mut orders,
                reported,
            }) => {
                let reports = (reports, reported);
                let mut session = Session::new(self, &placement.ready, reports, outage.copied(), handing);
                match session.run(&mut orders, stop).await {
                    // Placement reassigns the actors when the stream ends: it is kept until then.
                    Ok(()) => End::Stopped(self.revoke_all().await),
                    Err(broken) => End::Lost(session.lost(broken)),
                }
            }
        }
    }

    /// Opens a stream to a replica and sends the first report.
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
        // The channel is empty, so this cannot fail.
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

/// A receiver as a stream for generated clients.
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
            Some((identity, id)) => Dialer::mutual(
                address,
                identity,
                Expect::Exact(id.clone()),
                name,
                CONNECT_TIMEOUT,
            ),
            None => Dialer::plain(address, CONNECT_TIMEOUT),
        };
        Channel::new(H2Pool::new(dialer, Some(KeepAlive::OF_PLACEMENT)))
    }
}

/// An open stream.
struct Stream {
    reports: mpsc::Sender<wire::Host>,
    orders: Streaming<wire::PlacementOrder>,
    /// The hosted types of the first report.
    reported: Arc<[String]>,
}

pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
