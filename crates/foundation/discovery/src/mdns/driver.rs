//! The task that owns the sockets: responds, announces, queries, and receives.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    MdnsInner, browser,
    links::{Links, PORT},
    message::Message,
    service::Service,
};

/// Maximum pause after each of the two probes (RFC 6762, 8.1).
const PROBE_PAUSE_MS: u64 = 250;
/// Pause between the two announcements (RFC 6762, 8.3).
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);
/// Interval of scans for new network interfaces.
const RESCAN: Duration = Duration::from_secs(30);

pub(super) struct Driver {
    pub(super) shared: Arc<MdnsInner>,
    pub(super) links: Links,
    /// `None` if this resolver announces nothing.
    pub(super) service: Option<Service>,
    pub(super) stop: CancellationToken,
}

/// The remaining steps of the registration.
#[derive(Clone, Copy)]
enum Step {
    Probe(u8),
    Announce(u8),
}

impl Driver {
    pub(super) async fn run(mut self) {
        let mut step = self.service.is_some().then_some((Step::Probe(0), Instant::now()));
        let mut rescan_at = Instant::now() + RESCAN;
        loop {
            let now = Instant::now();
            if let Some((current, at)) = step
                && at <= now
            {
                step = self
                    .announce(current)
                    .await
                    .map(|(next, pause)| (next, now + pause));
            }
            if rescan_at <= now {
                rescan_at = now + RESCAN;
                if self.links.rescan() && step.is_none() && self.service.is_some() {
                    step = Some((Step::Announce(0), now));
                    continue;
                }
            }
            let mut deadline = step.map_or(rescan_at, |(_, at)| at.min(rescan_at));
            if let Some(next) = self.send_due_queries(now).await {
                deadline = deadline.min(next);
            }
            // Handles packets until a deadline, or until a caller has work.
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = self.shared.wake.notified() => {}
                () = sleep_until(deadline) => {}
                () = listen(&self.shared, &mut self.links, self.service.as_ref()) => {}
            }
        }
        if let Some(service) = &self.service {
            self.links.multicast(&service.goodbye().encode()).await;
        }
    }

    /// Sends one step. Returns the next one and the pause before it.
    async fn announce(&self, step: Step) -> Option<(Step, Duration)> {
        let service = self.service.as_ref()?;
        let probe_pause = || Duration::from_millis(rand::random_range(0..PROBE_PAUSE_MS));
        let (message, next) = match step {
            Step::Probe(0) => (service.probe(), Some((Step::Probe(1), probe_pause()))),
            Step::Probe(_) => (service.probe(), Some((Step::Announce(0), probe_pause()))),
            Step::Announce(0) => (service.announcement(), Some((Step::Announce(1), ANNOUNCE_PAUSE))),
            Step::Announce(_) => (service.announcement(), None),
        };
        self.links.multicast(&message.encode()).await;
        next
    }

    /// Sends the queries that are due. Returns the time of the next one.
    async fn send_due_queries(&self, now: Instant) -> Option<Instant> {
        let (due, next) = {
            let mut browser = self.shared.browser();
            (browser.due(now), browser.next_deadline())
        };
        for app_id in due {
            if let Some(question) = browser::question(&app_id) {
                self.links.multicast(&question.encode()).await;
            }
        }
        next
    }
}

/// Handles packets until one changes the schedule.
async fn listen(shared: &MdnsInner, links: &mut Links, service: Option<&Service>) {
    loop {
        let (bytes, from) = links.receive().await;
        let message = match Message::decode(bytes) {
            Ok(_) if !links.is_on_link(from) => continue,
            Ok(message) => message,
            Err(error) => {
                tracing::trace!(target: "dapr.contrib", %error, %from, "mDNS: packet ignored");
                continue;
            }
        };
        if !message.response {
            reply(links, service, &message, from).await;
        } else if from.port() == PORT {
            // RFC 6762, 6: responses from other ports than 5353 are ignored.
            if shared.browser().observe(&message, Instant::now()) {
                return;
            }
        }
        // A flood of packets must not starve other tasks.
        tokio::task::consume_budget().await;
    }
}

async fn reply(links: &Links, service: Option<&Service>, query: &Message, from: SocketAddr) {
    let Some(service) = service else { return };
    for reply in service.answer(query, from.port() != PORT) {
        let bytes = reply.message.encode();
        if reply.unicast {
            links.unicast(&bytes, from).await;
        } else {
            links.multicast_near(&bytes, from).await;
        }
    }
}
