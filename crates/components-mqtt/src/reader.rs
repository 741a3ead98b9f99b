use std::{sync::Arc, time::Duration};

use outrigger_component::{
    Error, Kind, Pairs, Result,
    bindings::{Event as BindingEvent, EventHandler},
};
use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, Outgoing, Packet, Publish, QoS, SubscribeReasonCode,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    LOG, TOPIC,
    publisher::goodbye,
    settings::{Backoff, Settings},
};

/// Events with the app at once; beyond it the connection is not read.
const MOST: usize = 1024;
/// Pause before an event that was refused is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// Refused events that the broker is asked for again by connecting anew: each takes a place in its window.
const REFUSED: usize = 10;

/// One reading of the topic.
struct Reader<'a> {
    settings: &'a Settings,
    handler: Arc<dyn EventHandler>,
    drain: CancellationToken,
    client: AsyncClient,
    handling: JoinSet<Settlement>,
    /// Which connection this is: a message can only be acknowledged on the one it came by.
    connection: u64,
    online: bool,
    /// Acknowledgements that were not written yet.
    unsent: usize,
    refused: usize,
    backoff: Backoff,
    wait_until: Instant,
}

/// A message that the app answered, or refused for good.
struct Settlement {
    message: Publish,
    connection: u64,
    accepted: bool,
}

/// Reads until `drain` or `closed`, connecting again whenever the connection breaks.
pub(super) async fn read(
    settings: &Settings,
    handler: Arc<dyn EventHandler>,
    drain: &CancellationToken,
    closed: &CancellationToken,
) -> Result<()> {
    let (client, mut events) = settings
        .connection
        .client(&format!("{}-consumer", settings.connection.consumer))?;
    let drain = drain.child_token();
    let mut reader = Reader {
        settings,
        handler,
        drain: drain.clone(),
        client,
        handling: JoinSet::new(),
        connection: 0,
        online: false,
        unsent: 0,
        refused: 0,
        backoff: Backoff::default(),
        wait_until: Instant::now(),
    };
    tokio::select! {
        result = reader.run(&mut events) => result?,
        // Closing is draining for this reader.
        () = closed.cancelled() => {
            drain.cancel();
            reader.run(&mut events).await?;
        }
    }
    if reader.online {
        goodbye(&reader.client, &mut events).await;
    }
    Ok(())
}

impl Reader<'_> {
    async fn run(&mut self, events: &mut EventLoop) -> Result<()> {
        let drain = self.drain.clone();
        loop {
            let draining = drain.is_cancelled();
            if draining && self.handling.is_empty() && (self.unsent == 0 || !self.online) {
                return Ok(());
            }
            let room = self.handling.len() < MOST;
            let wait_until = self.wait_until;
            let next = async {
                sleep_until(wait_until).await;
                events.poll().await
            };
            tokio::select! {
                () = drain.cancelled(), if !draining => {}
                Some(done) = self.handling.join_next() => {
                    if let Ok(done) = done {
                        self.done(done, events);
                    }
                }
                event = next, if room => match event {
                    Ok(event) => self.event(event)?,
                    Err(error) => self.lost(&error),
                },
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Incoming(Packet::ConnAck(_)) => {
                self.connection += 1;
                self.unsent = 0;
                self.online = true;
                let sent = self
                    .client
                    .try_subscribe(self.settings.topic.as_str(), QoS::AtLeastOnce);
                sent.map_err(|error| {
                    let text = format!("cannot subscribe to the topic {:?}", self.settings.topic);
                    Error::new(Kind::Configuration, text).because(error)
                })?;
            }
            Event::Incoming(Packet::SubAck(answer)) => {
                if answer.return_codes.contains(&SubscribeReasonCode::Failure) {
                    self.say("the broker refuses the subscription; it is asked again at the next connection");
                } else {
                    self.backoff.reset();
                    tracing::info!(
                        target: LOG,
                        "mqtt binding {}: subscribed to {}",
                        self.settings.connection.component,
                        self.settings.topic
                    );
                }
            }
            Event::Incoming(Packet::Publish(message)) if !self.drain.is_cancelled() => self.take(message),
            Event::Outgoing(Outgoing::PubAck(_)) => self.unsent = self.unsent.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    fn say(&self, text: &str) {
        tracing::error!(target: LOG, "mqtt binding {}: {text}", self.settings.connection.component);
    }

    fn lost(&mut self, error: &ConnectionError) {
        let pause = self.backoff.next();
        self.wait_until = Instant::now() + pause;
        if std::mem::take(&mut self.online) || self.connection == 0 {
            self.say(&format!("no connection to the broker: {error}; connecting again"));
        }
        // The next one says so once more, not each attempt.
        self.connection = self.connection.max(1);
    }

    fn take(&mut self, message: Publish) {
        let (handler, drain) = (self.handler.clone(), self.drain.clone());
        let (retries, component) = (self.settings.retries, self.settings.connection.component.clone());
        let connection = self.connection;
        self.handling.spawn(async move {
            let mut left = retries;
            let accepted = loop {
                let Err(error) = handler.handle(event(&message)).await else {
                    break true;
                };
                tracing::error!(target: LOG, "mqtt binding {component}: the app refuses an event: {error}");
                if left == Some(0) || drain.is_cancelled() {
                    break false;
                }
                left = left.map(|left| left - 1);
                tokio::select! {
                    () = sleep(PAUSE) => {}
                    () = drain.cancelled() => break false,
                }
            };
            Settlement {
                message,
                connection,
                accepted,
            }
        });
    }

    fn done(&mut self, done: Settlement, events: &mut EventLoop) {
        // A broker that forgets would not send it again: then it should not take a place either.
        let dropped = !done.accepted && self.settings.connection.forgetful();
        if done.accepted || dropped {
            // Messages sent at most once want no acknowledgement.
            if self.online
                && done.connection == self.connection
                && let Some(ack) = self.client.prepare_ack(&done.message)
                && self.client.try_manual_ack(ack).is_ok()
            {
                self.unsent += 1;
            }
            if dropped {
                self.say("an event that the app refused is lost; set cleanSession to false to get it again");
            }
            return;
        }
        self.refused += 1;
        if self.refused >= REFUSED && self.online && !self.drain.is_cancelled() {
            self.refused = 0;
            self.online = false;
            self.wait_until = Instant::now() + PAUSE;
            events.clean();
        }
    }
}

fn event(message: &Publish) -> BindingEvent {
    let topic = String::from_utf8_lossy(&message.topic).into_owned();
    BindingEvent {
        data: message.payload.clone(),
        metadata: Pairs::from([(TOPIC.to_owned(), topic)]),
        content_type: None,
    }
}
