//! Watches a range in etcd; a new stream resumes where the previous one ended.

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

/// Pause before an ended stream is reopened.
const PAUSE: Duration = Duration::from_millis(300);

pub(super) struct EtcdWatch {
    client: Arc<Client>,
    range: Range,
    /// Revision from which to resume.
    next: i64,
    stream: Option<Open>,
}

struct Open {
    answers: Streaming<WatchResponse>,
    /// Dropping this ends the stream.
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
                // A member without a leader ends the stream instead of going silent.
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
                        // All events up to this revision have been received.
                        let upto = answer.header.map_or(0, |header| header.revision);
                        self.next = self.next.max(upto.saturating_add(1));
                    }
                    let events = self.events(answer.events);
                    if !events.is_empty() {
                        return Ok(events);
                    }
                }
                ended => {
                    // A stale token is reported in a message of an otherwise healthy stream.
                    let why = match &ended {
                        Ok(answer) => answer.as_ref().map_or("", |answer| answer.cancel_reason.as_str()),
                        Err(status) => status.message(),
                    };
                    self.client.check_token(why);
                    self.stream = None;
                    self.client.switch_member();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tokio_util::task::AbortOnDropHandle;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::config::EtcdAccess;
    use crate::proto::etcd::{
        AuthenticateRequest, AuthenticateResponse, KeyValue, auth_server, watch_server,
    };

    /// An etcd whose accounts have changed since it issued its first token.
    struct Accounts {
        /// Its message for that token.
        refusal: &'static str,
        /// Number of tokens issued.
        given: AtomicUsize,
    }

    #[tonic::async_trait]
    impl auth_server::Auth for Accounts {
        async fn authenticate(
            &self,
            _: Request<AuthenticateRequest>,
        ) -> Result<Response<AuthenticateResponse>, Status> {
            let before = self.given.fetch_add(1, Ordering::Relaxed);
            Ok(Response::new(AuthenticateResponse {
                token: format!("token-{before}"),
                ..AuthenticateResponse::default()
            }))
        }
    }

    #[tonic::async_trait]
    impl watch_server::Watch for Accounts {
        type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

        async fn watch(
            &self,
            request: Request<Streaming<WatchRequest>>,
        ) -> Result<Response<Self::WatchStream>, Status> {
            let token = request.metadata().get("token");
            let is_old = token.is_none_or(|token| token.as_bytes() == b"token-0");
            let answer = match is_old {
                true => WatchResponse {
                    created: true,
                    canceled: true,
                    cancel_reason: self.refusal.to_owned(),
                    ..WatchResponse::default()
                },
                false => WatchResponse {
                    events: vec![EtcdEvent {
                        kv: Some(KeyValue {
                            key: "key".into(),
                            mod_revision: 2,
                            ..KeyValue::default()
                        }),
                        ..EtcdEvent::default()
                    }],
                    ..WatchResponse::default()
                },
            };
            let (answers, stream) = mpsc::channel(1);
            answers.send(Ok(answer)).await.unwrap();
            Ok(Response::new(ReceiverStream::new(stream)))
        }
    }

    /// Regression: the stream was reopened with the same stale token forever, and no events arrived.
    #[tokio::test]
    async fn watch_renews_stale_token() {
        for refusal in [
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old",
        ] {
            let accounts = Arc::new(Accounts {
                refusal,
                given: AtomicUsize::new(0),
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let access = EtcdAccess {
                endpoints: vec![listener.local_addr().unwrap().to_string()],
                username: "user".to_owned(),
                ..EtcdAccess::default()
            };
            let serving = Server::builder()
                .add_service(auth_server::AuthServer::from_arc(Arc::clone(&accounts)))
                .add_service(watch_server::WatchServer::from_arc(accounts))
                .serve_with_incoming(TcpListenerStream::new(listener));
            let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
            let client = Arc::new(Client::new(&access).unwrap());
            let mut watch = EtcdWatch::new(client, Range::prefix("key"), 1);
            let told = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
            let told = told.expect("nothing is told").unwrap();
            assert!(matches!(&*told, [Event::Put(_)]), "{told:?}");
        }
    }
}
