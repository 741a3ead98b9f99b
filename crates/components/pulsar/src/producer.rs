//! A producer of a partition, with its own connection; it ends with the connection.

use std::{collections::VecDeque, future::pending};

use bytes::BufMut;
use outrigger_component::{Error, Kind, Result};
use prost::Message as _;
use pulsar::{
    message::{Message, Payload},
    proto::{CompressionType, MessageMetadata, SingleMessageMetadata},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{
    broker::BrokerState,
    command,
    connection::{CALL_TIMEOUT, Connection},
    lookup,
    outgoing::{Outgoing, now},
    settings::Publishing,
};

/// Maximum messages queued for the connection.
const QUEUE: usize = 64;
/// Maximum sent and unconfirmed messages.
const MAX_UNCONFIRMED: usize = 1000;

/// Handle of a producer.
#[derive(Clone)]
pub(super) struct Producer {
    jobs: mpsc::Sender<Job>,
    /// Maximum message size in bytes.
    largest: usize,
}

struct Job {
    message: Outgoing,
    done: oneshot::Sender<Result<()>>,
}

/// A sent, unconfirmed entry.
struct Sent {
    sequence: u64,
    since: Instant,
    done: Vec<oneshot::Sender<Result<()>>>,
}

struct Work {
    connection: Connection,
    topic: String,
    publishing: Publishing,
    /// Name assigned by the broker.
    name: String,
    sequence: u64,
    sent: VecDeque<Sent>,
    batch: Vec<Job>,
    /// Bytes of `batch`.
    bytes: usize,
    /// Deadline for sending `batch`.
    due: Option<Instant>,
}

impl Producer {
    pub(super) async fn open(shared: &BrokerState, topic: &str) -> Result<Self> {
        let settings = &shared.settings;
        let mut connection = lookup::open(settings, topic).await?;
        let request = connection.request();
        let what = format!("topic {topic}");
        let made = connection
            .ask(&what, command::producer(topic, request), |message| {
                let made = message.command.producer_success.as_ref()?;
                (made.request_id == request).then(|| made.clone())
            })
            .await?;
        let (jobs, taken) = mpsc::channel(QUEUE);
        let largest = connection.largest();
        let work = Work {
            connection,
            topic: topic.to_owned(),
            publishing: settings.publishing.clone(),
            name: made.producer_name,
            sequence: 0,
            sent: VecDeque::new(),
            batch: Vec::new(),
            bytes: 0,
            due: None,
        };
        shared.tasks.spawn(work.run(taken));
        Ok(Self { jobs, largest })
    }

    /// Whether its connection is lost.
    pub(super) fn has_ended(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Publishes a message; messages are sent in call order. Returns the message if it was never sent because
    /// the connection was lost.
    pub(super) async fn publish(&self, message: Outgoing) -> Result<Result<()>, Outgoing> {
        let size = message.size();
        if size > self.largest {
            let text = format!(
                "a message of {size} bytes is larger than the broker accepts: {} bytes",
                self.largest
            );
            return Ok(Err(Error::invalid_request(text)));
        }
        let (done, outcome) = oneshot::channel();
        if let Err(refused) = self.jobs.send(Job { message, done }).await {
            return Err(refused.0.message);
        }
        Ok(outcome.await.unwrap_or_else(|_| Err(connection_lost())))
    }
}

fn connection_lost() -> Error {
    let text = "the connection was lost before the broker confirmed a message";
    Error::new(Kind::Unavailable, text)
}

impl Work {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let failed = self.serve(&mut jobs).await.err();
        jobs.close();
        let text = failed.map_or_else(|| connection_lost().to_string(), |error| error.to_string());
        let error = || Error::new(Kind::Unavailable, text.clone());
        while let Some(job) = jobs.recv().await {
            let _ = job.done.send(Err(error()));
        }
        let unconfirmed = self.sent.into_iter().flat_map(|sent| sent.done);
        for done in unconfirmed.chain(self.batch.into_iter().map(|job| job.done)) {
            let _ = done.send(Err(error()));
        }
    }

    /// Serves until all publishers are gone and all messages are confirmed.
    async fn serve(&mut self, jobs: &mut mpsc::Receiver<Job>) -> Result<()> {
        let mut open = true;
        loop {
            if !open && self.sent.is_empty() && self.batch.is_empty() {
                let close = command::close_producer(self.connection.request());
                let closing = self.connection.ask("closing a producer", close, |message| {
                    message.command.success.as_ref().map(drop)
                });
                let _late = timeout(CALL_TIMEOUT, closing).await;
                return Ok(());
            }
            let late = self.sent.front().map(|sent| sent.since + CALL_TIMEOUT);
            let takes = open && self.sent.len() < MAX_UNCONFIRMED;
            tokio::select! {
                job = jobs.recv(), if takes => match job {
                    Some(job) => self.add(job).await?,
                    None => {
                        open = false;
                        self.flush().await?;
                    }
                },
                () = until(self.due) => self.flush().await?,
                () = until(late) => {
                    let text = format!("topic {}: no confirmation within {CALL_TIMEOUT:?}", self.topic);
                    return Err(Error::new(Kind::Timeout, text));
                }
                message = self.connection.next() => self.on_message(message?)?,
            }
        }
    }

    async fn add(&mut self, job: Job) -> Result<()> {
        let Some(batches) = self.publishing.batches.clone().filter(|_| job.message.joins()) else {
            // After the messages queued before it.
            self.flush().await?;
            return self.send_alone(job).await;
        };
        let size = job.message.size();
        if self.bytes + size > self.connection.largest() {
            self.flush().await?;
        }
        self.bytes += size;
        self.batch.push(job);
        if self.batch.len() >= batches.messages || self.bytes >= batches.bytes {
            return self.flush().await;
        }
        self.due.get_or_insert_with(|| Instant::now() + batches.delay);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        self.due = None;
        self.bytes = 0;
        let mut jobs = std::mem::take(&mut self.batch);
        if jobs.len() == 1
            && let Some(job) = jobs.pop()
        {
            return self.send_alone(job).await;
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let count = i32::try_from(jobs.len()).unwrap_or(i32::MAX);
        let (mut data, mut done) = (Vec::new(), Vec::new());
        for job in jobs {
            let single = SingleMessageMetadata {
                properties: job.message.properties,
                payload_size: i32::try_from(job.message.data.len()).unwrap_or(i32::MAX),
                ..SingleMessageMetadata::default()
            };
            data.put_u32(u32::try_from(single.encoded_len()).unwrap_or(u32::MAX));
            data.extend(single.encode_to_vec());
            data.extend_from_slice(&job.message.data);
            done.push(job.done);
        }
        let metadata = MessageMetadata {
            num_messages_in_batch: Some(count),
            ..MessageMetadata::default()
        };
        self.send(count, metadata, data, done).await
    }

    async fn send_alone(&mut self, job: Job) -> Result<()> {
        let message = job.message;
        let metadata = MessageMetadata {
            properties: message.properties,
            partition_key: message.key,
            deliver_at_time: message.deliver_at,
            ..MessageMetadata::default()
        };
        self.send(1, metadata, message.data.to_vec(), vec![job.done])
            .await
    }

    async fn send(
        &mut self,
        count: i32,
        mut metadata: MessageMetadata,
        data: Vec<u8>,
        done: Vec<oneshot::Sender<Result<()>>>,
    ) -> Result<()> {
        let sequence = self.sequence;
        self.sequence += 1;
        self.sent.push_back(Sent {
            sequence,
            since: Instant::now(),
            done,
        });
        metadata.producer_name.clone_from(&self.name);
        metadata.sequence_id = sequence;
        metadata.publish_time = u64::try_from(now()).unwrap_or(0);
        let compression = self.publishing.compression;
        let data = match compression.kind() {
            CompressionType::None => data,
            kind => {
                metadata.uncompressed_size = u32::try_from(data.len()).ok();
                metadata.compression = Some(kind as i32);
                let begun = Instant::now();
                let packed = compression.pack_offloaded(data).await;
                // It may have waited in the queue, and no confirmation was read during that time.
                let waited = begun.elapsed();
                self.sent.iter_mut().for_each(|sent| sent.since += waited);
                packed.map_err(|error| Error::new(Kind::Internal, format!("compression: {error}")))?
            }
        };
        let payload = Payload { metadata, data };
        self.connection
            .send(command::send(sequence, count, payload))
            .await
    }

    fn on_message(&mut self, message: Box<Message>) -> Result<()> {
        let command = message.command;
        if command.close_producer.is_some() {
            let text = format!("the broker no longer serves {}", self.topic);
            return Err(Error::new(Kind::Unavailable, text));
        }
        if let Some(receipt) = command.send_receipt {
            // Confirmations arrive in send order.
            while let Some(sent) = self
                .sent
                .pop_front_if(|sent| sent.sequence <= receipt.sequence_id)
            {
                for done in sent.done {
                    let _ = done.send(Ok(()));
                }
            }
        }
        if let Some(error) = command.send_error {
            let what = format!("topic {}", self.topic);
            let refused = || command::refused(&what, error.error, &error.message);
            while let Some(sent) = self.sent.pop_front_if(|sent| sent.sequence <= error.sequence_id) {
                for done in sent.done {
                    let _ = done.send(Err(refused()));
                }
            }
            // Later messages would be refused too, or be out of order.
            return Err(refused());
        }
        Ok(())
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
