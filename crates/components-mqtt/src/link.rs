//! Whether there is a connection, and what the broker takes on it.

use outrigger_component::{Error, Kind, Result};
use rumqttc::QoS;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::{Limits, Outgoing, Refusal};

/// A text of MQTT, bytes.
const MAX_TEXT: usize = 65_535;

/// The state of a connection.
#[derive(Debug, Clone)]
pub(super) enum Link {
    /// There is none; what the broker said to that.
    Down(Option<Refusal>),
    Up(Limits),
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// The broker's last no.
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
/// What the broker says where it will not let this client in; `None` once `stop` is cancelled.
pub(super) async fn connected(
    link: &watch::Receiver<Link>,
    stop: &CancellationToken,
) -> Result<Limits, Option<Refusal>> {
    let mut link = link.clone();
    let decided = link.wait_for(|link| link.is_up() || link.refusal().is_some_and(Refusal::lasts));
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
    /// Whether a message of `size` bytes can be sent. One that cannot must not be: the broker would end the connection,
    /// and the next one, on which it is sent again.
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

    /// Whether a topic can be subscribed to.
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
                "the broker has no shared subscriptions, as {filter:?} is: set sharedSubscriptions to false"
            );
            return Err(Error::unsupported(text));
        }
        if !self.wildcards && filter.contains(['+', '#']) {
            let text =
                format!("the broker has no wildcards: subscribe to topics of {filter:?} by their names");
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

/// Whether brokers take it as a text: with another one some end the connection.
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
    fn what_the_broker_would_end_the_connection_for_is_refused() {
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
    fn what_the_broker_lacks_is_not_asked_for() {
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

    #[tokio::test]
    async fn a_refusal_that_lasts_is_not_waited_out() {
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
