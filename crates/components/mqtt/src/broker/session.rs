use std::{collections::HashSet, sync::Arc, time::Duration};

use rumqttc::QoS;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES,
    filter::Filter,
    in_flight::{Arrival, InFlight},
};
use crate::{
    LOG,
    client::{Client, Event, Events, Limits, Lost, Received, Refusal, SubscribeOptions},
    link::{Link, Reconnect},
    publisher::disconnect,
    settings::Connection,
};

/// How long acknowledgements may take to be written at the end.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// How long messages wait for a subscription before that is told: a stream that broke comes again.
const UNROUTED_WARNING_DELAY: Duration = Duration::from_secs(10);
/// Topics of which it is told that their messages wait for a subscription.
const MAX_WARNED_TOPICS: usize = 100;
/// What nobody subscribes to: the broker's answer to the end of that subscription says that it has read all that was sent
/// before.
const NOTHING: &str = "outrigger/nothing";

/// A subscription: what it matches, and where that goes.
pub(super) struct Route {
    /// Unique in the component.
    pub(super) id: u64,
    pub(super) filter: Filter,
    pub(super) options: SubscribeOptions,
    pub(super) messages: mpsc::UnboundedSender<Incoming>,
}

/// A message on its way to the app. Dropped, it waits for another subscription.
pub(super) struct Incoming {
    number: u64,
    pub(super) received: Arc<Received>,
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
            let _gone = commands.send(Command::Unrouted(self.number));
        }
    }
}

/// What a session is told.
pub(super) enum Command {
    /// Another route; tells when it is one.
    Add(Route, oneshot::Sender<()>),
    /// No more messages for this route.
    Remove(u64),
    /// The broker is to end the subscription to this, unless another route is there for the same.
    Forget(Filter),
    /// The app is done with a message.
    Done(u64),
    /// A subscription ended with a message.
    Unrouted(u64),
    /// Tells when what was acknowledged before has been written, or cannot be.
    Flush(oneshot::Sender<()>),
}

/// Whether the broker has read all acknowledgements that were written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Unknown,
    Asked,
    Yes,
}

/// Keeps the connection, and gives what comes to its subscription.
pub(super) struct Session {
    client: Client,
    link: watch::Sender<Link>,
    stop: CancellationToken,
    component: Arc<str>,
    qos: QoS,
    /// The broker sends again what was not acknowledged when a connection ended.
    resends: bool,
    commands: mpsc::UnboundedSender<Command>,
    queue: mpsc::UnboundedReceiver<Command>,
    routes: Vec<Route>,
    in_flight: InFlight,
    /// When to look for messages that nobody here wants, if there may be some.
    look_at: Option<Instant>,
    /// Topics of which it was told that their messages wait for a subscription.
    warned: HashSet<Arc<str>>,
    /// What comes is left to the broker, as there is too much here: that one and all after it come again.
    skipping: bool,
    /// Whether the broker has read the acknowledgements.
    read: Read,
    /// Ends of subscriptions, the questions for that among them, without an answer.
    asked: u32,
    connection: u64,
    /// Acknowledgements that were not written yet.
    unsent: usize,
    flushes: Vec<oneshot::Sender<()>>,
    reconnect: Reconnect,
}

impl Session {
    pub(super) fn new(
        client: Client,
        link: watch::Sender<Link>,
        stop: CancellationToken,
        connection: &Connection,
    ) -> Self {
        let (commands, queue) = mpsc::unbounded_channel();
        Self {
            client,
            link,
            stop,
            component: connection.component.clone(),
            qos: connection.qos,
            resends: !connection.forgetful(),
            commands,
            queue,
            routes: Vec::new(),
            in_flight: InFlight::default(),
            look_at: None,
            warned: HashSet::new(),
            skipping: false,
            read: Read::Unknown,
            asked: 0,
            connection: 0,
            unsent: 0,
            flushes: Vec::new(),
            reconnect: Reconnect::new(connection.client.clone()),
        }
    }

    pub(super) fn commands(&self) -> mpsc::UnboundedSender<Command> {
        self.commands.clone()
    }

    pub(super) async fn run(mut self, mut events: Events) {
        let stop = self.stop.clone();
        let mut last: Option<Instant> = None;
        loop {
            if last.is_some() && (self.unsent == 0 || !self.is_up()) && self.queue.is_empty() {
                break;
            }
            if self.wants_the_rest() {
                events.cut();
                self.link.send_replace(Link::Down(None));
            }
            // What is not left to the broker may take as much again.
            let has_capacity =
                self.in_flight.len() < MAX_IN_FLIGHT && self.in_flight.bytes() < 2 * MAX_IN_FLIGHT_BYTES;
            let (wait_until, look_at) = (self.reconnect.wait_until(), self.look_at);
            let next = async {
                sleep_until(wait_until).await;
                events.poll().await
            };
            tokio::select! {
                () = stop.cancelled(), if last.is_none() => last = Some(Instant::now() + FLUSH_WAIT),
                () = sleep_until(last.unwrap_or(wait_until)), if last.is_some() => break,
                () = sleep_until(look_at.unwrap_or(wait_until)), if look_at.is_some() => self.warn_of_unrouted(),
                Some(command) = self.queue.recv() => self.command(command),
                event = next, if has_capacity => match event {
                    Ok(event) => self.event(event),
                    Err(lost) => self.lost(lost),
                },
            }
        }
        if self.is_up() {
            disconnect(&self.client, &mut events).await;
        }
    }

    fn is_up(&self) -> bool {
        self.link.borrow().is_up()
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Connected { resumed, limits } => self.connected(resumed, limits),
            Event::Received(received) if !self.stop.is_cancelled() => self.take(received),
            Event::Acknowledged => {
                self.unsent = self.unsent.saturating_sub(1);
                self.flushed();
            }
            Event::Unsubscribed => self.answered(),
            Event::Subscribed(Err(refusal)) => self.refused(&refusal),
            Event::Subscribed(Ok(())) | Event::Received(_) | Event::Other => {}
        }
    }

    fn connected(&mut self, resumed: bool, limits: Limits) {
        self.routes.retain(|route| !route.messages.is_closed());
        self.connection += 1;
        self.skipping = false;
        self.read = Read::Unknown;
        self.asked = 0;
        self.unsent = 0;
        self.flushed();
        self.reconnect.accepted();
        if !resumed {
            self.in_flight.forgotten();
        }
        // Brokers that were restarted with the sessions on their disk may have forgotten who shares subscriptions, as
        // Mosquitto does: being asked again changes nothing where they have not.
        for route in (self.routes.iter()).filter(|route| !resumed || route.filter.is_shared()) {
            let mut options = route.options;
            options.number = options.number.filter(|_| limits.numbers);
            // What the client cannot take now it could not take before either.
            let _refused = self.client.try_subscribe(&route.filter.asked, self.qos, options);
        }
        self.link.send_replace(Link::Up(limits));
    }

    fn refused(&self, refusal: &Refusal) {
        tracing::warn!(
            target: LOG,
            "component {}: the broker refuses a subscription: {}", self.component, refusal.text
        );
    }

    fn lost(&mut self, lost: Lost) {
        let text = self.reconnect.lost(&lost);
        self.unsent = 0;
        self.flushed();
        if self.link.send_replace(Link::Down(lost.refusal)).is_up() || self.connection == 0 {
            tracing::warn!(
                target: LOG,
                "component {}: no connection to the broker: {text}; connecting again", self.component
            );
            // The next one says so once more, not each attempt.
            self.connection = self.connection.max(1);
        } else {
            tracing::debug!(target: LOG, "component {}: {text}", self.component);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Add(route, added) => {
                for (number, received) in self.in_flight.unrouted() {
                    if route.filter.matches(&received.topic) {
                        self.in_flight.set_routed(number);
                        self.deliver(&route, number, received);
                    }
                }
                self.routes.push(route);
                self.look_later();
                // Whoever asked may have given up.
                let _gone = added.send(());
            }
            Command::Remove(id) => self.routes.retain(|route| route.id != id),
            Command::Forget(filter) => self.forget(&filter),
            Command::Done(number) => {
                let connection = self.is_up().then_some(self.connection);
                if let Some(received) = self.in_flight.done(number, connection) {
                    self.acknowledge(&received);
                }
            }
            Command::Unrouted(number) => {
                if let Some(received) = self.in_flight.set_unrouted(number) {
                    if self.route(number, &received) {
                        self.in_flight.set_routed(number);
                    } else {
                        self.look_later();
                    }
                }
            }
            Command::Flush(flushed) => {
                self.flushes.push(flushed);
                self.flushed();
            }
        }
    }

    fn forget(&mut self, filter: &Filter) {
        self.routes.retain(|route| !route.messages.is_closed());
        if self.routes.iter().any(|route| route.filter == *filter) {
            return;
        }
        // Where the client does not take it, the broker goes on sending what nobody here wants.
        if self.client.try_unsubscribe(&filter.asked) {
            self.asked += 1;
        }
    }

    fn flushed(&mut self) {
        if self.unsent == 0 || !self.is_up() {
            // Dropped is told.
            self.flushes.clear();
        }
    }

    fn take(&mut self, received: Received) {
        if self.skips(&received) {
            return;
        }
        match self.in_flight.add(received, self.connection) {
            Arrival::Known => {}
            Arrival::Done(received) => self.acknowledge(&received),
            Arrival::New(number, received) => {
                if !self.route(number, &received) {
                    self.in_flight.set_unrouted(number);
                    self.look_later();
                }
            }
        }
    }

    /// Some messages may wait for a subscription.
    fn look_later(&mut self) {
        if self.look_at.is_none() {
            self.look_at = Some(Instant::now() + UNROUTED_WARNING_DELAY);
        }
    }

    /// Warns of messages that wait for a subscription while others are there: those may starve.
    fn warn_of_unrouted(&mut self) {
        self.look_at = None;
        self.routes.retain(|route| !route.messages.is_closed());
        if self.routes.is_empty() {
            // The next one looks again.
            return;
        }
        for (_, received) in self.in_flight.unrouted() {
            if self.warned.len() >= MAX_WARNED_TOPICS || !self.warned.insert(Arc::clone(&received.topic)) {
                continue;
            }
            tracing::warn!(
                target: LOG,
                "component {}: messages for topic {:?} wait unacknowledged for a subscription that has ended: they take \
                 places among those that the broker sends ahead to all subscriptions of the component, until the others \
                 get nothing; subscribe to the topic again, with unsubscribeOnClose where that is not for good",
                self.component,
                received.topic
            );
        }
    }

    /// Whether a message is left to the broker, which sends it again on the next connection. After the first one all are,
    /// so that they keep their order.
    fn skips(&mut self, received: &Received) -> bool {
        if !self.resends || received.qos == QoS::AtMostOnce || self.in_flight.knows(received) {
            return false;
        }
        let is_first = self.in_flight.len() == 0;
        self.skipping |= !is_first && self.in_flight.bytes() + received.size() > MAX_IN_FLIGHT_BYTES;
        self.skipping
    }

    /// Whether to connect anew for what was left to the broker: there is room again, and the broker has read what was
    /// acknowledged, so that this does not come again.
    fn wants_the_rest(&mut self) -> bool {
        let has_room = self.unsent == 0 && self.in_flight.bytes() <= MAX_IN_FLIGHT_BYTES / 2;
        if !self.skipping || !has_room || !self.is_up() || self.stop.is_cancelled() {
            return false;
        }
        if self.read == Read::Unknown && self.client.try_unsubscribe(NOTHING) {
            self.read = Read::Asked;
            self.asked += 1;
        }
        self.read == Read::Yes
    }

    /// The last question counts: those before were asked before the last acknowledgement.
    fn answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
        if self.asked == 0 && self.read == Read::Asked {
            self.read = Read::Yes;
        }
    }

    /// Gives a message to one of the subscriptions that the broker says it came by, else of those that match its topic:
    /// to the newest that names the topic, else to the newest whose pattern matches. Whether there is one.
    fn route(&mut self, number: u64, received: &Arc<Received>) -> bool {
        self.routes.retain(|route| !route.messages.is_closed());
        let numbers = received.properties.as_deref();
        let numbers = numbers.map_or(&[][..], |properties| &properties.subscriptions);
        // Two filters may have one number.
        let named = |route: &&Route| {
            let number = route.options.number;
            number.is_some_and(|number| numbers.contains(&number)) && route.filter.matches(&received.topic)
        };
        let named: Vec<&Route> = self.routes.iter().filter(named).collect();
        let found = if named.is_empty() {
            find(self.routes.iter(), &received.topic)
        } else {
            find(named.into_iter(), &received.topic)
        };
        if let Some(route) = found {
            self.deliver(route, number, Arc::clone(received));
        }
        found.is_some()
    }

    fn deliver(&self, route: &Route, number: u64, received: Arc<Received>) {
        let incoming = Incoming {
            number,
            received,
            commands: Some(self.commands.clone()),
        };
        // Dropped where nobody takes it, it is unrouted again.
        let _gone = route.messages.send(incoming);
    }

    fn acknowledge(&mut self, received: &Received) {
        if self.client.try_acknowledge(received) {
            self.unsent += 1;
            self.read = Read::Unknown;
        }
    }
}

/// Of subscriptions, oldest first: the newest that names the topic, else the newest whose pattern matches it.
fn find<'r>(routes: impl DoubleEndedIterator<Item = &'r Route> + Clone, topic: &str) -> Option<&'r Route> {
    let mut routes = routes.rev();
    let exact = routes.clone().find(|route| route.filter.is(topic));
    exact.or_else(|| routes.find(|route| route.filter.matches(topic)))
}

#[cfg(test)]
mod tests;
