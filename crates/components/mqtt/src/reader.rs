use std::{sync::Arc, time::Duration};

use outrigger_component::{
    Error, Kind, Pairs, Result,
    bindings::{Event as BindingEvent, EventHandler},
};
use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    LOG, TOPIC,
    client::{self, Client, Event, Events, Lost, Received, SubscribeOptions},
    link::Reconnect,
    publisher::disconnect,
    settings::Settings,
};

/// Maximum events in flight to the app; beyond it the connection is not read.
const MAX_HANDLING: usize = 1024;
/// Delay before a refused event is retried.
const PAUSE: Duration = Duration::from_secs(5);
/// Refused events before a reconnect makes the broker resend them: each occupies its window.
const REFUSED: usize = 10;

/// One run of reading the topic.
struct Reader<'a> {
    settings: &'a Settings,
    handler: Arc<dyn EventHandler>,
    drain: CancellationToken,
    client: Client,
    handling: JoinSet<Attempted>,
    /// Number of this connection: a message can be acknowledged only on the connection that delivered it.
    connection: u64,
    online: bool,
    /// Acknowledgements not yet written.
    unsent: usize,
    refused: usize,
    reconnect: Reconnect,
}

/// A message that the app accepted, or refused finally.
struct Attempted {
    message: Received,
    connection: u64,
    accepted: bool,
}

/// Reads until `drain` or `closed`, reconnecting as needed.
pub(super) async fn read(
    settings: &Settings,
    handler: Arc<dyn EventHandler>,
    drain: &CancellationToken,
    closed: &CancellationToken,
) -> Result<()> {
    let connection = &settings.connection;
    let name = format!("{}-consumer", connection.client);
    let (client, mut events) = client::open(connection, &name)?;
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
        reconnect: Reconnect::new(name),
    };
    tokio::select! {
        result = reader.run(&mut events) => result?,
        // Closing means draining here.
        () = closed.cancelled() => {
            drain.cancel();
            reader.run(&mut events).await?;
        }
    }
    if reader.online {
        disconnect(&reader.client, &mut events).await;
    }
    Ok(())
}

impl Reader<'_> {
    async fn run(&mut self, events: &mut Events) -> Result<()> {
        let drain = self.drain.clone();
        loop {
            let draining = drain.is_cancelled();
            if draining && self.handling.is_empty() && (self.unsent == 0 || !self.online) {
                return Ok(());
            }
            let has_capacity = self.handling.len() < MAX_HANDLING;
            let wait_until = self.reconnect.wait_until();
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
                event = next, if has_capacity => match event {
                    Ok(event) => self.event(event)?,
                    Err(lost) => self.lost(&lost),
                },
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Connected { .. } => {
                self.connection += 1;
                self.unsent = 0;
                self.online = true;
                let Settings {
                    connection, topic, ..
                } = self.settings;
                if !self
                    .client
                    .try_subscribe(topic, connection.qos, SubscribeOptions::default())
                {
                    let text = format!("cannot subscribe to the topic {topic:?}");
                    return Err(Error::new(Kind::Configuration, text));
                }
            }
            Event::Subscribed(Err(refusal)) => self.say(&format!(
                "the broker refuses the subscription: {}; retrying on the next connection",
                refusal.text
            )),
            Event::Subscribed(Ok(())) => {
                self.reconnect.accepted();
                tracing::info!(
                    target: LOG,
                    "mqtt binding {}: subscribed to {}",
                    self.settings.connection.component,
                    self.settings.topic
                );
            }
            Event::Received(message) if !self.drain.is_cancelled() => self.take(message),
            Event::Acknowledged => self.unsent = self.unsent.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    fn say(&self, text: &str) {
        tracing::error!(target: LOG, "mqtt binding {}: {text}", self.settings.connection.component);
    }

    fn lost(&mut self, lost: &Lost) {
        let text = self.reconnect.lost(lost);
        if std::mem::take(&mut self.online) || self.connection == 0 {
            self.say(&format!("no connection to the broker: {text}; reconnecting"));
        }
        // Logged once per connection, not per attempt.
        self.connection = self.connection.max(1);
    }

    fn take(&mut self, message: Received) {
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
            Attempted {
                message,
                connection,
                accepted,
            }
        });
    }

    fn done(&mut self, done: Attempted, events: &mut Events) {
        // A broker that forgets does not resend it, so it should not occupy the window.
        let dropped = !done.accepted && self.settings.connection.discards_unacknowledged();
        if done.accepted || dropped {
            // QoS 0 messages need no acknowledgement.
            if self.online && done.connection == self.connection && self.client.try_acknowledge(&done.message)
            {
                self.unsent += 1;
            }
            if dropped {
                self.say(
                    "an event refused by the app is lost; set cleanSession to false to redeliver such events",
                );
            }
            return;
        }
        self.refused += 1;
        if self.refused >= REFUSED && self.online && !self.drain.is_cancelled() {
            self.refused = 0;
            self.online = false;
            self.reconnect.pause(PAUSE);
            events.cut();
        }
    }
}

fn event(message: &Received) -> BindingEvent {
    let topic = message.topic.to_string();
    BindingEvent {
        data: message.payload.clone(),
        metadata: Pairs::from([(TOPIC.to_owned(), topic)]),
        content_type: None,
    }
}
