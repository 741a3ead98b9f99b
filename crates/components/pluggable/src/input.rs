//! Input bindings in other processes.

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream;
use outrigger_backoff::Backoff;
use outrigger_component::{
    Catalog, InputBinding, Result, Setup,
    bindings::{Event, EventHandler},
};
use outrigger_wire::components::v1::{
    AckResponseError, InputBindingInitRequest, PingRequest, ReadRequest, ReadResponse,
    input_binding_client::InputBindingClient,
};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::{
    Opened, Options, Process,
    discovery::LOG,
    link::{Caller, Link, origin},
    status,
};

/// Maximum events in flight to the app; beyond it the component waits.
const MAX_HANDLING: usize = 256;
/// Backoff before reopening the stream.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// How long events are still answered after the app's last one at shutdown.
const REFUSE_TIME: Duration = Duration::from_millis(400);
/// Answer to such events; components recognise this text.
const CLOSED: &str = "input binding is closed";
/// How long a component may take to notice the end of the reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let entry = super::entry(name, socket, options, |process, setup| async move {
        let opened = Binding::open(&process, &setup).await?;
        Ok(Arc::new(opened) as Arc<dyn InputBinding>)
    });
    catalog.input_bindings.add(entry);
}

struct Binding {
    name: Arc<str>,
    link: Arc<Link>,
    limit: usize,
}

impl Binding {
    async fn open(process: &Process, setup: &Setup) -> Result<Self> {
        let init = |conn, metadata| async move {
            let mut client = InputBindingClient::with_origin(conn, origin());
            client.init(InputBindingInitRequest { metadata }).await.map(drop)
        };
        let Opened { name, link, limit } = process.open(setup, init).await?;
        Ok(Self { name, link, limit })
    }

    /// Reads one stream to its end. `Ok`: the component ended it, or draining began. Events taken from a
    /// broken stream stay with the app.
    async fn session(&self, reading: &mut Reading<'_>) -> Result<(), Status> {
        let mut client = InputBindingClient::with_origin(Caller(Arc::clone(&self.link)), origin())
            .max_decoding_message_size(self.limit);
        let (acks, queue) = mpsc::channel(MAX_HANDLING);
        let queue = stream::unfold(queue, |mut queue| async { Some((queue.recv().await?, queue)) });
        let drain = reading.drain;
        // Servers may answer this call only with their first event, so it is part of the reading.
        let Some(opened) = drain.run_until_cancelled(client.read(queue)).await else {
            return Ok(());
        };
        let mut events = opened?.into_inner();
        reading.pauses.reset();
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled() => break,
                Some(_) = reading.handling.join_next() => {}
                event = events.message(), if reading.handling.len() < MAX_HANDLING => match event? {
                    Some(event) => reading.take(event, &acks),
                    None => return Ok(()),
                },
            }
        }
        reading.finish(&mut events, &acks).await;
        drop(acks);
        drain_stream(events).await;
        Ok(())
    }
}

/// State across streams.
struct Reading<'a> {
    name: Arc<str>,
    handler: Arc<dyn EventHandler>,
    drain: &'a CancellationToken,
    /// Backoff before the next stream.
    pauses: Backoff,
    handling: JoinSet<()>,
}

impl Reading<'_> {
    /// Delivers an event and sends the app's answer to the component.
    fn take(&mut self, event: ReadResponse, acks: &mpsc::Sender<ReadRequest>) {
        let (name, handler, acks) = (Arc::clone(&self.name), Arc::clone(&self.handler), acks.clone());
        self.handling.spawn(async move {
            let message_id = event.message_id;
            let event = Event {
                data: event.data,
                metadata: event.metadata,
                content_type: Some(event.content_type).filter(|kind| !kind.is_empty()),
            };
            let (response_data, response_error) = match handler.handle(event).await {
                Ok(data) => (data, None),
                Err(error) => {
                    let message = error.to_string();
                    tracing::error!(target: LOG, "input binding {name}: message {message_id:?}: {message}");
                    (Bytes::new(), Some(AckResponseError { message }))
                }
            };
            let ack = ReadRequest {
                response_data,
                message_id,
                response_error,
            };
            // Fails if the stream broke.
            let _gone = acks.send(ack).await;
        });
    }

    /// Waits for the events held by the app. A component that delivers one at a time may already have sent
    /// its next one; that one is refused.
    async fn finish(&mut self, events: &mut Streaming<ReadResponse>, acks: &mpsc::Sender<ReadRequest>) {
        let idle = self.handling.is_empty();
        let handled = async {
            while self.handling.join_next().await.is_some() {}
            if !idle {
                tokio::time::sleep(REFUSE_TIME).await;
            }
        };
        tokio::select! {
            () = handled => {}
            never = refuse(events, acks) => match never {},
        }
    }
}

/// Answers each event with `CLOSED`.
async fn refuse(events: &mut Streaming<ReadResponse>, acks: &mpsc::Sender<ReadRequest>) -> Infallible {
    while let Ok(Some(event)) = events.message().await {
        let message = CLOSED.to_owned();
        let refusal = ReadRequest {
            response_data: Bytes::new(),
            message_id: event.message_id,
            response_error: Some(AckResponseError { message }),
        };
        let _gone = acks.send(refusal).await;
    }
    std::future::pending().await
}

/// Lets the component read the last acks, after which it ends the stream. Events that arrive now cannot be
/// answered.
async fn drain_stream(mut events: Streaming<ReadResponse>) {
    let rest = async { while let Ok(Some(_)) = events.message().await {} };
    let _late = timeout(DRAIN_TIMEOUT, rest).await;
}

#[async_trait]
impl InputBinding for Binding {
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()> {
        let mut reading = Reading {
            name: Arc::clone(&self.name),
            handler,
            drain: &drain,
            pauses: PAUSES,
            handling: JoinSet::new(),
        };
        while !drain.is_cancelled() {
            let ended = self.session(&mut reading).await;
            let pause = reading.pauses.pause();
            match ended {
                // A component that ended its stream may send more events after a restart.
                Ok(()) => {
                    if let Ok(conn) = self.link.connect().await {
                        drain.run_until_cancelled(conn.ended()).await;
                    }
                }
                Err(status) => tracing::error!(
                    target: LOG,
                    "input binding {}: failed to receive binding message: {}; reading again in {pause:?}",
                    self.name,
                    status::text(&status)
                ),
            }
            drain.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        while reading.handling.join_next().await.is_some() {}
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        let mut client = InputBindingClient::with_origin(Caller(Arc::clone(&self.link)), origin());
        let answer = client.ping(PingRequest {}).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn close(&self) {
        self.link.close();
    }
}
