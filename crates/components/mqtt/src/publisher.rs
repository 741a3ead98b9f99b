use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outrigger_component::{Error, Kind, Result};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    CALL_TIMEOUT, LOG,
    client::{self, Client, Event, Events, Failure, Limits, Outgoing, Refusal},
    link::{self, Link, Reconnect},
    settings::Connection,
};

/// Attempts at a message: a broken connection loses requests in flight.
const ATTEMPTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(200);
/// Time for sending a disconnect packet; the broker then has twice that to close the connection.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending side of a client.
pub(super) struct Sender {
    pub(super) client: Client,
    pub(super) connection: Connection,
    pub(super) link: watch::Receiver<Link>,
    pub(super) stop: CancellationToken,
}

impl Sender {
    /// Publishes a message and waits for the broker's acknowledgement.
    pub(super) async fn publish(&self, message: Outgoing) -> Result<()> {
        self.persist(|| self.once(message.clone())).await
    }

    /// Runs a request, retrying it after a lost connection.
    pub(super) async fn persist<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut error = self.connection.unreachable(Kind::Unavailable);
        for number in 0..ATTEMPTS {
            if number > 0 {
                sleep(PAUSE).await;
            }
            match timeout_at(deadline, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(failed)) if failed.retryable() => error = failed,
                Ok(Err(failed)) => return Err(failed),
                Err(_) => return Err(self.timed_out()),
            }
        }
        Err(error)
    }

    /// Waits for a connection. Nothing is queued without one, because it would be sent after the caller gave
    /// up.
    pub(super) async fn connected(&self) -> Result<Limits> {
        let connected = link::connected(&self.link, &self.stop).await;
        connected.map_err(|refusal| match refusal {
            Some(refusal) => self.refused("this client", refusal),
            None => Error::closed(),
        })
    }

    /// The error of a failed request. `what` is a plural or has no article.
    pub(super) fn failed(&self, what: &str, failure: Failure) -> Error {
        match failure {
            Failure::Topic => Error::invalid_request(format!("{what}: invalid topic")),
            Failure::Refused(refusal) => self.refused(what, refusal),
            Failure::Lost(cause) => self.connection.unreachable(Kind::Unavailable).because(cause),
        }
    }

    fn refused(&self, what: &str, refusal: Refusal) -> Error {
        let text = format!("{} refuses {what}: {}", self.connection.place(), refusal.text);
        Error::new(refusal.kind, text)
    }

    /// The error of a timeout, with the broker's last rejection.
    fn timed_out(&self) -> Error {
        let error = self.connection.unreachable(Kind::Timeout);
        match self.link.borrow().refusal() {
            Some(refusal) => error.because(refusal.text.clone()),
            None => error,
        }
    }

    async fn once(&self, message: Outgoing) -> Result<()> {
        let limits = self.connected().await?;
        limits.check(&message, self.client.size(&message))?;
        let what = format!("the message for {:?}", message.topic);
        let sent = self.client.publish(message).await;
        sent.map_err(|failure| self.failed(&what, failure))
    }
}

/// A binding's connection for sending.
pub(super) struct Publisher {
    sender: Sender,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Publisher {
    pub(super) fn start(connection: &Connection) -> Result<Self> {
        let name = format!("{}-producer", connection.client);
        let (client, events) = client::open(connection, &name)?;
        let (state, link) = watch::channel(Link::Down(None));
        let stop = CancellationToken::new();
        let driver = Driver {
            client: client.clone(),
            link: state,
            stop: stop.clone(),
            component: connection.component.clone(),
            reconnect: Reconnect::new(name),
        };
        let sender = Sender {
            client,
            connection: connection.clone(),
            link,
            stop,
        };
        Ok(Self {
            sender,
            task: Mutex::new(Some(tokio::spawn(driver.run(events)))),
        })
    }

    /// Publishes a message and waits for the broker's acknowledgement.
    pub(super) async fn publish(&self, message: Outgoing) -> Result<()> {
        self.sender.publish(message).await
    }

    pub(super) async fn stop(&self) {
        self.sender.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // The task ends by itself; its result is irrelevant here.
            let _ended = task.await;
        }
    }
}

/// Maintains the connection.
struct Driver {
    client: Client,
    link: watch::Sender<Link>,
    stop: CancellationToken,
    component: Arc<str>,
    reconnect: Reconnect,
}

impl Driver {
    async fn run(mut self, mut events: Events) {
        loop {
            let event = tokio::select! {
                () = self.stop.cancelled() => break,
                event = events.poll() => event,
            };
            match event {
                Ok(Event::Connected { limits, .. }) => {
                    self.reconnect.accepted();
                    self.link.send_replace(Link::Up(limits));
                }
                Ok(_) => {}
                Err(lost) if lost.done => return,
                Err(lost) => {
                    let text = self.reconnect.lost(&lost);
                    if self.link.send_replace(Link::Down(lost.refusal)).is_up() {
                        tracing::error!(
                            target: LOG,
                            "mqtt binding {}: the connection for sending was lost: {text}; reconnecting",
                            self.component
                        );
                    } else {
                        tracing::debug!(target: LOG, "mqtt binding {}: {text}", self.component);
                    }
                    tokio::select! {
                        () = self.stop.cancelled() => break,
                        () = sleep_until(self.reconnect.wait_until()) => {}
                    }
                }
            }
        }
        let is_up = self.link.borrow().is_up();
        if is_up {
            disconnect(&self.client, &mut events).await;
        }
    }
}

/// Sends a disconnect packet.
pub(super) async fn disconnect(client: &Client, events: &mut Events) {
    if !client.try_disconnect(DISCONNECT_TIMEOUT) {
        return;
    }
    let leaving = async { while events.poll().await.is_ok() {} };
    // An unresponsive broker notices by itself.
    let _late = timeout(DISCONNECT_TIMEOUT * 2, leaving).await;
}
