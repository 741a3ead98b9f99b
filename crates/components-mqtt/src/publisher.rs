use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use outrigger_component::{Error, Kind, Result};
use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Packet, PublishOptions};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    LOG, PATIENCE,
    settings::{Backoff, Connection},
};

/// Attempts at one message: a connection that breaks takes what is under way with it.
const ATTEMPTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(200);
/// Time to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// The sending side of a client.
pub(super) struct Sender {
    pub(super) client: AsyncClient,
    pub(super) connection: Connection,
    pub(super) online: watch::Receiver<bool>,
    pub(super) stop: CancellationToken,
}

impl Sender {
    /// Sends a message and waits until the broker has it.
    pub(super) async fn publish(&self, topic: &str, data: Bytes, options: PublishOptions) -> Result<()> {
        let sending = self.persist(|| self.once(topic, data.clone(), options));
        sending.await
    }

    /// Does something that a lost connection may take with it.
    pub(super) async fn persist<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut error = self.connection.unreachable(Kind::Unavailable);
        for number in 0..ATTEMPTS {
            if number > 0 {
                sleep(PAUSE).await;
            }
            match timeout_at(deadline, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(failed)) if failed.retryable() => error = failed,
                Ok(Err(failed)) => return Err(failed),
                Err(_) => return Err(self.connection.unreachable(Kind::Timeout)),
            }
        }
        Err(error)
    }

    /// Waits for a connection: without one nothing is queued, as it would be sent after the caller gave up.
    pub(super) async fn connected(&self) -> Result<()> {
        let mut online = self.online.clone();
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Error::closed()),
            online = online.wait_for(|online| *online) => online.map(drop).map_err(|_| Error::closed()),
        }
    }

    /// An error of the client as one that says whether to try again.
    pub(super) fn lost(&self, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.connection.unreachable(Kind::Unavailable).because(cause)
    }

    async fn once(&self, topic: &str, data: Bytes, options: PublishOptions) -> Result<()> {
        self.connected().await?;
        let sent = self.client.publish_tracked(topic, data, options).await;
        let notice = sent.map_err(|error| match error {
            rumqttc::ClientError::InvalidRequest(_) => {
                Error::invalid_request(format!("{topic:?} is not a topic that can be published to"))
            }
            other => self.lost(other),
        })?;
        let acknowledged = notice.wait_completion_async().await;
        acknowledged.map_err(|error| self.lost(error))
    }
}

/// The connection that a binding sends messages on.
pub(super) struct Publisher {
    sender: Sender,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Publisher {
    pub(super) fn start(connection: &Connection) -> Result<Self> {
        let (client, events) = connection.client(&format!("{}-producer", connection.consumer))?;
        let (told, online) = watch::channel(false);
        let stop = CancellationToken::new();
        let driver = Driver {
            client: client.clone(),
            online: told,
            stop: stop.clone(),
            component: connection.component.clone(),
        };
        let sender = Sender {
            client,
            connection: connection.clone(),
            online,
            stop,
        };
        Ok(Self {
            sender,
            task: Mutex::new(Some(tokio::spawn(driver.run(events)))),
        })
    }

    /// Sends a message and waits until the broker has it.
    pub(super) async fn publish(&self, topic: &str, data: Bytes, options: PublishOptions) -> Result<()> {
        self.sender.publish(topic, data, options).await
    }

    pub(super) async fn stop(&self) {
        self.sender.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It ends by itself; how does not matter any more.
            let _ended = task.await;
        }
    }
}

/// Keeps the connection.
struct Driver {
    client: AsyncClient,
    online: watch::Sender<bool>,
    stop: CancellationToken,
    component: Arc<str>,
}

impl Driver {
    async fn run(self, mut events: EventLoop) {
        let mut backoff = Backoff::default();
        loop {
            let event = tokio::select! {
                () = self.stop.cancelled() => break,
                event = events.poll() => event,
            };
            match event {
                Ok(Event::Incoming(Packet::ConnAck(_))) => {
                    backoff.reset();
                    self.online.send_replace(true);
                }
                Ok(_) => {}
                Err(ConnectionError::RequestsDone) => return,
                Err(error) => {
                    let pause = backoff.next();
                    if self.online.send_replace(false) {
                        tracing::error!(
                            target: LOG,
                            "mqtt binding {}: the connection for sending was lost: {error}; connecting again",
                            self.component
                        );
                    } else {
                        tracing::debug!(target: LOG, "mqtt binding {}: {error}", self.component);
                    }
                    tokio::select! {
                        () = self.stop.cancelled() => break,
                        () = sleep(pause) => {}
                    }
                }
            }
        }
        if *self.online.borrow() {
            goodbye(&self.client, &mut events).await;
        }
    }
}

/// Tells the broker that the connection ends on purpose.
pub(super) async fn goodbye(client: &AsyncClient, events: &mut EventLoop) {
    if client.try_disconnect_with_timeout(GOODBYE).is_err() {
        return;
    }
    let leaving = async { while events.poll().await.is_ok() {} };
    // A broker that does not listen finds out by itself.
    let _late = timeout(GOODBYE * 2, leaving).await;
}
