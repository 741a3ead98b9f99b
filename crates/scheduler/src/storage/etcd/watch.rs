//! Follows a range of an etcd, over streams that begin where the one before ended.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::metadata::MetadataValue;

use super::client::Client;
use super::pair;
use crate::proto::etcd::{
    Event as EtcdEvent, WatchCreateRequest, WatchRequest, WatchResponse, event::EventType, watch_request,
};
use crate::storage::StorageError;
use crate::storage::pair::Range;
use crate::storage::shared::backend::{Event, Watch};

/// Until a stream that ended is opened again.
const PAUSE: Duration = Duration::from_millis(300);

pub(super) struct EtcdWatch {
    client: Arc<Client>,
    range: Range,
    /// The first revision that was not told.
    next: i64,
    stream: Option<Open>,
}

struct Open {
    answers: Streaming<WatchResponse>,
    /// The stream ends when this is dropped.
    _requests: mpsc::Sender<WatchRequest>,
}

impl EtcdWatch {
    pub(super) fn new(client: Arc<Client>, range: Range, after: i64) -> Self {
        Self {
            client,
            range,
            next: after.saturating_add(1),
            stream: None,
        }
    }

    async fn open(&self) -> Result<Open, StorageError> {
        let create = WatchCreateRequest {
            key: self.range.from.clone().into(),
            range_end: self.range.below.clone().unwrap_or_else(|| vec![0]).into(),
            start_revision: self.next,
            progress_notify: true,
        };
        let (requests, stream) = mpsc::channel(1);
        let first = WatchRequest {
            request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
        };
        requests.send(first).await.map_err(|_| StorageError::Closed)?;
        let answers = self
            .client
            .call((), |mut stubs, request| async move {
                let mut request = request.map(|()| ReceiverStream::new(stream));
                // A member without a leader ends the stream in place of falling silent.
                request
                    .metadata_mut()
                    .insert("hasleader", MetadataValue::from_static("true"));
                stubs.watch.watch(request).await
            })
            .await?;
        Ok(Open {
            answers,
            _requests: requests,
        })
    }

    fn events(&mut self, received: Vec<EtcdEvent>) -> Vec<Event> {
        let mut events = Vec::with_capacity(received.len());
        for event in received {
            let is_delete = event.r#type() == EventType::Delete;
            let Some(kv) = event.kv else { continue };
            self.next = self.next.max(kv.mod_revision.saturating_add(1));
            events.push(match is_delete {
                true => Event::Deleted {
                    key: kv.key.into(),
                    revision: kv.mod_revision,
                },
                false => Event::Put(pair(kv)),
            });
        }
        events
    }
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<Event>, StorageError> {
        loop {
            let Some(open) = &mut self.stream else {
                match self.open().await {
                    Ok(open) => self.stream = Some(open),
                    Err(error) if error.is_passing() => tokio::time::sleep(PAUSE).await,
                    Err(error) => return Err(error),
                }
                continue;
            };
            match open.answers.message().await {
                Ok(Some(answer)) if answer.canceled && answer.compact_revision > 0 => {
                    return Err(StorageError::Failed(format!(
                        "etcd has compacted the changes before its revision {}",
                        answer.compact_revision
                    )));
                }
                Ok(Some(answer)) if !answer.canceled => {
                    if answer.events.is_empty() && !answer.created {
                        // Up to here there is nothing else.
                        let upto = answer.header.map_or(0, |header| header.revision);
                        self.next = self.next.max(upto.saturating_add(1));
                    }
                    let events = self.events(answer.events);
                    if !events.is_empty() {
                        return Ok(events);
                    }
                }
                Ok(_) | Err(_) => {
                    self.stream = None;
                    self.client.pass_on();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}
