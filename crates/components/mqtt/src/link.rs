//! Connection state, reconnects, and the broker's limits.

use std::time::Duration;

use outrigger_backoff::Backoff;
use outrigger_component::{Error, Kind, Result};
use rumqttc::QoS;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::client::{Limits, Lost, Outgoing, Refusal};

/// Maximum length of an MQTT string in bytes.
const MAX_TEXT: usize = 65_535;

/// Backoff between connection attempts.
const RECONNECT_PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// A shorter connection counts as brief. Two clients that take over each other's connection pause 10 s at
/// most.
const BRIEF_CONNECTION: Duration = Duration::from_secs(20);
/// Brief connections in a row before the backoff grows: the broker accepts the client each time, so it is not
/// down.
const TAKEOVERS: u32 = 3;

/// Schedules reconnects.
pub(super) struct Reconnect {
    client: String,
    pauses: Backoff,
    wait_until: Instant,
    /// When the broker accepted the client.
    accepted: Option<Instant>,
    /// Consecutive brief connections.
    brief: u32,
}

impl Reconnect {
    /// For the client with this id.
    pub(super) fn new(client: String) -> Self {
        Self {
            client,
            pauses: RECONNECT_PAUSES,
            wait_until: Instant::now(),
            accepted: None,
            brief: 0,
        }
    }

    /// Time of the next connection attempt.
    pub(super) fn wait_until(&self) -> Instant {
        self.wait_until
    }

    /// Delays the next connection attempt.
    pub(super) fn pause(&mut self, pause: Duration) {
        self.wait_until = Instant::now() + pause;
    }

    /// The broker accepted the client.
    pub(super) fn accepted(&mut self) {
        self.accepted = Some(Instant::now());
        if self.brief < TAKEOVERS {
            self.pauses.reset();
        }
    }

    /// Records a lost or failed connection; returns the reason for the log.
    pub(super) fn lost(&mut self, lost: &Lost) -> String {
        match self.accepted.take() {
            Some(accepted) if accepted.elapsed() < BRIEF_CONNECTION => {
                self.brief = self.brief.saturating_add(1)
            }
            Some(_) => {
                self.brief = 0;
                self.pauses.reset();
            }
            None => self.brief = 0,
        }
        let pause = self.pauses.pause();
        self.pause(pause);
        if self.brief < TAKEOVERS || lost.refusal.is_some() {
            return lost.text.clone();
        }
        format!(
            "{} (the broker closed {} connections soon after accepting them: another client probably uses \
             the client id {:?}; give each client its own consumerID)",
            lost.text, self.brief, self.client
        )
    }
}

/// State of a connection.
#[derive(Debug, Clone)]
pub(super) enum Link {
    /// Disconnected, with the broker's last rejection.
    Down(Option<Refusal>),
    Up(Limits),
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// The broker's last rejection.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Down(refusal) => refusal.as_ref(),
            Self::Up(_) => None,
        }
    }
}

/// Waits for a connection.
///
/// # Errors
/// The broker's permanent rejection; `None` once `stop` is cancelled.
pub(super) async fn connected(
    link: &watch::Receiver<Link>,
    stop: &CancellationToken,
) -> Result<Limits, Option<Refusal>> {
    let mut link = link.clone();
    let decided = link.wait_for(|link| link.is_up() || link.refusal().is_some_and(Refusal::is_permanent));
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(None),
        decided = decided => match decided.as_deref() {
            Ok(Link::Up(limits)) => Ok(*limits),
            Ok(Link::Down(refusal)) => Err(refusal.clone()),
            Err(_) => Err(None),
        },
    }
}

impl Limits {
    /// Checks that a message of `size` bytes can be sent. Otherwise the broker would disconnect, and
    /// disconnect again when the message is resent.
    ///
    /// # Errors
    /// `InvalidRequest`, or `Configuration` for the QoS.
    pub(super) fn check(&self, message: &Outgoing, size: usize) -> Result<()> {
        let Self { packet, qos, .. } = *self;
        let topic = &message.topic;
        if topic.is_empty() || topic.contains(['+', '#']) || !is_text(topic) {
            let text = format!("{topic:?} is not a topic that can be published to");
            return Err(Error::invalid_request(text));
        }
        if size > packet {
            let text = format!(
                "the message for {topic:?} has {size} bytes, its topic and properties included, and the broker \
                 accepts {packet}: publish less at once, or raise its maximum packet size"
            );
            return Err(Error::invalid_request(text));
        }
        if message.retain && !self.retain {
            let text = format!("the broker retains no messages: publish to {topic:?} without retain");
            return Err(Error::invalid_request(text));
        }
        check_qos(qos, message.qos)
    }

    /// Checks that a topic can be subscribed to.
    ///
    /// # Errors
    /// `InvalidRequest`, `Unsupported`, or `Configuration` for the QoS.
    pub(super) fn check_filter(&self, filter: &str) -> Result<()> {
        if !is_text(filter) {
            let text = format!("{filter:?} is not a topic that can be subscribed to");
            return Err(Error::invalid_request(text));
        }
        if !self.shared && filter.starts_with("$share/") {
            let text = format!(
                "the broker does not support shared subscriptions like {filter:?}: set sharedSubscriptions \
                 to false"
            );
            return Err(Error::unsupported(text));
        }
        if !self.wildcards && filter.contains(['+', '#']) {
            let text = format!(
                "the broker does not support wildcards: subscribe to the topics of {filter:?} by name"
            );
            return Err(Error::unsupported(text));
        }
        Ok(())
    }
}

fn check_qos(most: QoS, wanted: QoS) -> Result<()> {
    if wanted > most {
        let text = format!("the broker supports QoS {} at most: set qos to that", most as u8);
        return Err(Error::new(Kind::Configuration, text));
    }
    Ok(())
}

/// Whether brokers accept it as a string; some disconnect otherwise.
pub(super) fn is_text(text: &str) -> bool {
    let odd = |c: char| {
        c.is_control() || matches!(u32::from(c), 0xFDD0..=0xFDEF) || u32::from(c) & 0xFFFE == 0xFFFE
    };
    text.len() <= MAX_TEXT && !text.contains(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str) -> Outgoing {
        Outgoing {
            topic: topic.to_owned(),
            payload: "x".into(),
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: None,
        }
    }

    #[test]
    fn rejects_fatal_messages_early() {
        let limits = Limits::default();
        limits.check(&message("a/b"), 100).unwrap();
        for topic in [
            "",
            "a/+",
            "a/#",
            "a\u{0}",
            "a\n",
            "a\u{fffe}",
            &"a".repeat(65_536),
        ] {
            let error = limits.check(&message(topic), 100).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidRequest, "{topic:?}");
        }
        let small = Limits { packet: 99, ..limits };
        let error = small.check(&message("a"), 100).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest);
        assert!(
            error.to_string().contains("100") && error.to_string().contains("99"),
            "{error}"
        );
        for (limits, kind, part) in [
            (
                Limits {
                    retain: false,
                    ..limits
                },
                Kind::InvalidRequest,
                "retain",
            ),
            (
                Limits {
                    qos: QoS::AtMostOnce,
                    ..limits
                },
                Kind::Configuration,
                "qos",
            ),
        ] {
            let error = limits.check(&message("a"), 100).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn rejects_unsupported_features() {
        let all = Limits::default();
        let (no_groups, no_wildcards) = (
            Limits { shared: false, ..all },
            Limits {
                wildcards: false,
                ..all
            },
        );
        for filter in ["a", "a/+", "$share/g/a"] {
            all.check_filter(filter).unwrap();
        }
        assert!(no_groups.check_filter("a/#").is_ok() && no_wildcards.check_filter("$share/g/a").is_ok());
        for (limits, filter, part) in [
            (no_groups, "$share/g/a", "sharedSubscriptions"),
            (no_wildcards, "a/#", "wildcards"),
        ] {
            let error = limits.check_filter(filter).unwrap_err();
            assert_eq!(error.kind(), Kind::Unsupported);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    fn lost() -> Lost {
        Lost {
            text: "closed".to_owned(),
            refusal: None,
            done: false,
        }
    }

    /// Delay before the connection after this loss, and the reason.
    async fn after_loss(reconnect: &mut Reconnect) -> (Duration, String) {
        let text = reconnect.lost(&lost());
        let wait = reconnect.wait_until() - Instant::now();
        tokio::time::sleep(wait).await;
        (wait, text)
    }

    #[tokio::test(start_paused = true)]
    async fn clients_with_same_id_back_off() {
        let mut reconnect = Reconnect::new("twin".to_owned());
        let (mut waits, mut texts) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            reconnect.accepted();
            // The other client connects.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let (wait, text) = after_loss(&mut reconnect).await;
            waits.push(wait.as_millis());
            texts.push(text);
        }
        assert_eq!(waits[..5], [100, 100, 100, 200, 400]);
        assert_eq!(waits[11], 10_000);
        assert_eq!(texts[1], "closed");
        for part in ["another client", "\"twin\"", "consumerID"] {
            assert!(texts[2].contains(part), "{}", texts[2]);
        }
        // The other client is gone.
        reconnect.accepted();
        tokio::time::sleep(BRIEF_CONNECTION).await;
        let (wait, text) = after_loss(&mut reconnect).await;
        assert_eq!((wait.as_millis(), text.as_str()), (100, "closed"));
    }

    #[tokio::test(start_paused = true)]
    async fn outage_is_not_a_takeover() {
        let mut reconnect = Reconnect::new("alone".to_owned());
        for _ in 0..5 {
            reconnect.accepted();
            let (wait, text) = after_loss(&mut reconnect).await;
            assert_eq!((wait.as_millis(), text.as_str()), (100, "closed"));
            let (wait, text) = after_loss(&mut reconnect).await;
            assert_eq!((wait.as_millis(), text.as_str()), (200, "closed"));
        }
    }

    #[tokio::test]
    async fn permanent_rejection_fails_at_once() {
        let refusal = |kind| Refusal {
            kind,
            text: "no".to_owned(),
        };
        let stop = CancellationToken::new();
        let (state, link) = watch::channel(Link::Down(Some(refusal(Kind::Unavailable))));
        let waiting = tokio::spawn({
            let (link, stop) = (link.clone(), stop.clone());
            async move { connected(&link, &stop).await }
        });
        tokio::task::yield_now().await;
        state.send_replace(Link::Up(Limits::default()));
        assert_eq!(waiting.await.unwrap(), Ok(Limits::default()));
        state.send_replace(Link::Down(Some(refusal(Kind::Denied))));
        assert_eq!(connected(&link, &stop).await, Err(Some(refusal(Kind::Denied))));
        stop.cancel();
        assert_eq!(connected(&link, &stop).await, Err(None));
    }
}
