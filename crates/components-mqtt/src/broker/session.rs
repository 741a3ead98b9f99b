use std::{sync::Arc, time::Duration};

use rumqttc::{AsyncClient, ConnAck, Event, EventLoop, Outgoing, Packet, Publish, QoS};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    MOST_HELD,
    filter::Filter,
    held::{Arrival, Held},
};
use crate::{
    LOG,
    publisher::goodbye,
    settings::{Backoff, Connection},
};

/// How long acknowledgements may take to be written at the end.
const LAST: Duration = Duration::from_secs(1);

/// A subscription: what it matches, and where that goes.
pub(super) struct Route {
    /// Unique in the component.
    pub(super) id: u64,
    pub(super) filter: Filter,
    pub(super) messages: mpsc::UnboundedSender<Incoming>,
}

/// A message on its way to the app. Dropped, it waits for another subscription.
pub(super) struct Incoming {
    number: u64,
    pub(super) publish: Publish,
    commands: Option<mpsc::UnboundedSender<Command>>,
}

impl Incoming {
    /// The app is done with it.
    pub(super) fn acknowledge(mut self) {
        if let Some(commands) = self.commands.take() {
            // Where nobody listens, the connection has ended.
            let _gone = commands.send(Command::Done(self.number));
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _gone = commands.send(Command::Stray(self.number));
        }
    }
}

/// What a session is told.
pub(super) enum Command {
    Add(Route),
    /// No more messages for this route.
    Remove(u64),
    /// The app is done with a message.
    Done(u64),
    /// A subscription ended with a message.
    Stray(u64),
    /// Tells when what was acknowledged before has been written, or cannot be.
    Flush(oneshot::Sender<()>),
}

/// Keeps the connection, and gives what comes to its subscription.
pub(super) struct Session {
    client: AsyncClient,
    online: watch::Sender<bool>,
    stop: CancellationToken,
    component: Arc<str>,
    qos: QoS,
    commands: mpsc::UnboundedSender<Command>,
    told: mpsc::UnboundedReceiver<Command>,
    routes: Vec<Route>,
    held: Held,
    /// Which connection this is.
    connection: u64,
    /// Acknowledgements that were not written yet.
    unsent: usize,
    flushes: Vec<oneshot::Sender<()>>,
    backoff: Backoff,
    wait_until: Instant,
}

impl Session {
    pub(super) fn new(
        client: AsyncClient,
        online: watch::Sender<bool>,
        stop: CancellationToken,
        connection: &Connection,
        qos: QoS,
    ) -> Self {
        let (commands, told) = mpsc::unbounded_channel();
        Self {
            client,
            online,
            stop,
            component: connection.component.clone(),
            qos,
            commands,
            told,
            routes: Vec::new(),
            held: Held::default(),
            connection: 0,
            unsent: 0,
            flushes: Vec::new(),
            backoff: Backoff::default(),
            wait_until: Instant::now(),
        }
    }

    pub(super) fn commands(&self) -> mpsc::UnboundedSender<Command> {
        self.commands.clone()
    }

    pub(super) async fn run(mut self, mut events: EventLoop) {
        let stop = self.stop.clone();
        let mut last: Option<Instant> = None;
        loop {
            if last.is_some() && (self.unsent == 0 || !self.is_online()) && self.told.is_empty() {
                break;
            }
            let (room, wait_until) = (self.held.len() < MOST_HELD, self.wait_until);
            let next = async {
                sleep_until(wait_until).await;
                events.poll().await
            };
            tokio::select! {
                () = stop.cancelled(), if last.is_none() => last = Some(Instant::now() + LAST),
                () = sleep_until(last.unwrap_or(wait_until)), if last.is_some() => break,
                Some(command) = self.told.recv() => self.command(command),
                event = next, if room => match event {
                    Ok(event) => self.event(event),
                    Err(error) => self.lost(&error.to_string()),
                },
            }
        }
        if self.is_online() {
            goodbye(&self.client, &mut events).await;
        }
    }

    fn is_online(&self) -> bool {
        *self.online.borrow()
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Incoming(Packet::ConnAck(answer)) => self.connected(&answer),
            Event::Incoming(Packet::Publish(publish)) if !self.stop.is_cancelled() => self.take(&publish),
            Event::Outgoing(Outgoing::PubAck(_) | Outgoing::PubRec(_)) => {
                self.unsent = self.unsent.saturating_sub(1);
                self.flushed();
            }
            _ => {}
        }
    }

    fn connected(&mut self, answer: &ConnAck) {
        self.connection += 1;
        self.unsent = 0;
        self.flushed();
        self.backoff.reset();
        if !answer.session_present {
            self.held.forgotten();
            for route in &self.routes {
                // What the client cannot take now it could not take before either.
                let _refused = self.client.try_subscribe(route.filter.asked.as_str(), self.qos);
            }
        }
        self.online.send_replace(true);
    }

    fn lost(&mut self, error: &str) {
        self.wait_until = Instant::now() + self.backoff.next();
        self.unsent = 0;
        self.flushed();
        if self.online.send_replace(false) || self.connection == 0 {
            tracing::warn!(
                target: LOG,
                "component {}: no connection to the broker: {error}; connecting again", self.component
            );
            // The next one says so once more, not each attempt.
            self.connection = self.connection.max(1);
        } else {
            tracing::debug!(target: LOG, "component {}: {error}", self.component);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Add(route) => {
                for (number, publish) in self.held.stray() {
                    if route.filter.matches(&topic(&publish)) {
                        self.held.found(number);
                        self.hand(&route, number, publish);
                    }
                }
                self.routes.push(route);
            }
            Command::Remove(id) => self.routes.retain(|route| route.id != id),
            Command::Done(number) => {
                let connection = self.is_online().then_some(self.connection);
                if let Some(publish) = self.held.done(number, connection) {
                    self.acknowledge(&publish);
                }
            }
            Command::Stray(number) => {
                if let Some(publish) = self.held.strays(number).cloned()
                    && self.route(number, &publish)
                {
                    self.held.found(number);
                }
            }
            Command::Flush(told) => {
                self.flushes.push(told);
                self.flushed();
            }
        }
    }

    fn flushed(&mut self) {
        if self.unsent == 0 || !self.is_online() {
            // Dropped is told.
            self.flushes.clear();
        }
    }

    fn take(&mut self, publish: &Publish) {
        match self.held.came(publish, self.connection) {
            Arrival::Known => {}
            Arrival::Done => self.acknowledge(publish),
            Arrival::New(number) => {
                if !self.route(number, publish) {
                    self.held.strays(number);
                }
            }
        }
    }

    /// Gives a message to the newest subscription to its topic, else to the newest whose pattern matches it. Whether
    /// there is one.
    fn route(&mut self, number: u64, publish: &Publish) -> bool {
        self.routes.retain(|route| !route.messages.is_closed());
        let name = topic(publish);
        let mut routes = self.routes.iter().rev();
        let exact = routes.clone().find(|route| route.filter.is(&name));
        let found = exact.or_else(|| routes.find(|route| route.filter.matches(&name)));
        if let Some(route) = found {
            self.hand(route, number, publish.clone());
        }
        found.is_some()
    }

    fn hand(&self, route: &Route, number: u64, publish: Publish) {
        let incoming = Incoming {
            number,
            publish,
            commands: Some(self.commands.clone()),
        };
        // Dropped where nobody takes it, it becomes a stray again.
        let _gone = route.messages.send(incoming);
    }

    fn acknowledge(&mut self, publish: &Publish) {
        if let Some(ack) = self.client.prepare_ack(publish)
            && self.client.try_manual_ack(ack).is_ok()
        {
            self.unsent += 1;
        }
    }
}

fn topic(publish: &Publish) -> String {
    String::from_utf8_lossy(&publish.topic).into_owned()
}
