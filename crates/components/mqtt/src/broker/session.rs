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

/// Time for writing acknowledgements on shutdown.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// How long messages may lack a subscription before a warning; a broken stream may resubscribe.
const UNROUTED_WARNING_DELAY: Duration = Duration::from_secs(10);
/// Maximum topics warned about.
const MAX_WARNED_TOPICS: usize = 100;
/// A filter without messages: the broker's answer to its unsubscription confirms that it has read everything
/// sent earlier.
const PROBE_FILTER: &str = "outrigger/nothing";

/// A subscription's filter and destination.
pub(super) struct Route {
    /// Unique within the component.
    pub(super) id: u64,
    pub(super) filter: Filter,
    pub(super) options: SubscribeOptions,
    pub(super) messages: mpsc::UnboundedSender<Incoming>,
}

/// A message for the app. Dropping it leaves it for another subscription.
pub(super) struct Incoming {
    number: u64,
    pub(super) received: Arc<Received>,
    commands: Option<mpsc::UnboundedSender<Command>>,
}

impl Incoming {
    /// The app has handled the message.
    pub(super) fn acknowledge(mut self) {
        if let Some(commands) = self.commands.take() {
            // Fails if the session has ended.
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

/// Commands to a session.
pub(super) enum Command {
    /// Adds a route and signals completion.
    Add(Route, oneshot::Sender<()>),
    /// Removes a route.
    Remove(u64),
    /// Unsubscribes at the broker, unless another route has the same filter.
    Forget(Filter),
    /// The app has handled a message.
    Done(u64),
    /// A subscription ended while holding a message.
    Unrouted(u64),
    /// Signals once earlier acknowledgements were written or cannot be.
    Flush(oneshot::Sender<()>),
}

/// Whether the broker has read all written acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Unknown,
    Asked,
    Yes,
}

/// Maintains the connection and routes incoming messages.
pub(super) struct Session {
    client: Client,
    link: watch::Sender<Link>,
    stop: CancellationToken,
    component: Arc<str>,
    qos: QoS,
    /// The broker resends unacknowledged messages after a reconnect.
    resends: bool,
    commands: mpsc::UnboundedSender<Command>,
    queue: mpsc::UnboundedReceiver<Command>,
    routes: Vec<Route>,
    in_flight: InFlight,
    /// When to check for unrouted messages, if there may be some.
    look_at: Option<Instant>,
    /// Topics already warned about.
    warned: HashSet<Arc<str>>,
    /// Over the limit: this and all later messages are left to the broker, which resends them.
    skipping: bool,
    /// Whether the broker has read the acknowledgements.
    read: Read,
    /// Unanswered unsubscriptions, including the probes.
    asked: u32,
    connection: u64,
    /// Acknowledgements not yet written.
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
            resends: !connection.discards_unacknowledged(),
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
            if self.should_reconnect() {
                events.cut();
                self.link.send_replace(Link::Down(None));
            }
            // A message that is kept may need as much memory again.
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
        // Brokers restarted with persistent sessions may lose shared subscriptions, as Mosquitto does.
        // Resubscribing is harmless otherwise.
        for route in (self.routes.iter()).filter(|route| !resumed || route.filter.is_shared()) {
            let mut options = route.options;
            options.number = options.number.filter(|_| limits.numbers);
            // If the client rejects it now, it was rejected before too.
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
                "component {}: no connection to the broker: {text}; reconnecting", self.component
            );
            // Logged once per connection, not per attempt.
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
                self.schedule_unrouted_check();
                // The caller may have given up.
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
                        self.schedule_unrouted_check();
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
        // If this fails, the broker keeps sending unrouted messages.
        if self.client.try_unsubscribe(&filter.asked) {
            self.asked += 1;
        }
    }

    fn flushed(&mut self) {
        if self.unsent == 0 || !self.is_up() {
            // Dropping the senders is the signal.
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
                    self.schedule_unrouted_check();
                }
            }
        }
    }

    /// Schedules a check for unrouted messages.
    fn schedule_unrouted_check(&mut self) {
        if self.look_at.is_none() {
            self.look_at = Some(Instant::now() + UNROUTED_WARNING_DELAY);
        }
    }

    /// Warns of unrouted messages while other subscriptions exist, which may starve.
    fn warn_of_unrouted(&mut self) {
        self.look_at = None;
        self.routes.retain(|route| !route.messages.is_closed());
        if self.routes.is_empty() {
            // The next check sees the rest.
            return;
        }
        for (_, received) in self.in_flight.unrouted() {
            if self.warned.len() >= MAX_WARNED_TOPICS || !self.warned.insert(Arc::clone(&received.topic)) {
                continue;
            }
            tracing::warn!(
                target: LOG,
                "component {}: messages for topic {:?} stay unacknowledged because their subscription has \
                 ended; they fill the broker's window and may starve the component's other subscriptions; \
                 resubscribe to the topic, or set unsubscribeOnClose for temporary subscriptions",
                self.component,
                received.topic
            );
        }
    }

    /// Whether to leave a message to the broker, which resends it on the next connection. After the first
    /// one, all are left, to keep the order.
    fn skips(&mut self, received: &Received) -> bool {
        if !self.resends || received.qos == QoS::AtMostOnce || self.in_flight.knows(received) {
            return false;
        }
        let is_first = self.in_flight.len() == 0;
        self.skipping |= !is_first && self.in_flight.bytes() + received.size() > MAX_IN_FLIGHT_BYTES;
        self.skipping
    }

    /// Whether to reconnect for the messages left to the broker: there is room again, and the broker has read
    /// the acknowledgements, so it resends only the rest.
    fn should_reconnect(&mut self) -> bool {
        let has_room = self.unsent == 0 && self.in_flight.bytes() <= MAX_IN_FLIGHT_BYTES / 2;
        if !self.skipping || !has_room || !self.is_up() || self.stop.is_cancelled() {
            return false;
        }
        if self.read == Read::Unknown && self.client.try_unsubscribe(PROBE_FILTER) {
            self.read = Read::Asked;
            self.asked += 1;
        }
        self.read == Read::Yes
    }

    /// Only the last answer counts: earlier probes preceded the last acknowledgement.
    fn answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
        if self.asked == 0 && self.read == Read::Asked {
            self.read = Read::Yes;
        }
    }

    /// Routes a message to a subscription named by the broker, or else to one whose filter matches: the
    /// newest with the exact topic, or the newest whose pattern matches. Returns whether there is one.
    fn route(&mut self, number: u64, received: &Arc<Received>) -> bool {
        self.routes.retain(|route| !route.messages.is_closed());
        let numbers = received.properties.as_deref();
        let numbers = numbers.map_or(&[][..], |properties| &properties.subscriptions);
        // Two filters may have the same number.
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
        // Dropped without a receiver, it is unrouted again.
        let _gone = route.messages.send(incoming);
    }

    fn acknowledge(&mut self, received: &Received) {
        if self.client.try_acknowledge(received) {
            self.unsent += 1;
            self.read = Read::Unknown;
        }
    }
}

/// From subscriptions, oldest first: the newest with the exact topic, or the newest whose pattern matches.
fn find<'r>(routes: impl DoubleEndedIterator<Item = &'r Route> + Clone, topic: &str) -> Option<&'r Route> {
    let mut routes = routes.rev();
    let exact = routes.clone().find(|route| route.filter.is(topic));
    exact.or_else(|| routes.find(|route| route.filter.matches(topic)))
}

#[cfg(test)]
mod tests;
