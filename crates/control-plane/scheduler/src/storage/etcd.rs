//! An etcd cluster as the store.

mod client;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

pub use client::EndpointError;
pub(crate) use client::{Client, check};
use watch::EtcdWatch;

use super::StorageError;
use super::pair::{Pair, Range};
use super::shared::backend::{Backend, Condition, Scan, Watch, Write};
use crate::fault;
use crate::proto::etcd::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, compare, request_op,
    response_op,
};

/// Pairs per page.
const PAGE: i64 = 1000;
/// Pages read ahead.
const PAGES: usize = 2;
/// Attempts to read a page.
const ATTEMPTS: usize = 15;
const PAUSE: Duration = Duration::from_secs(1);
/// Keys per transaction; etcd allows 128 by default.
const READS: usize = 96;

/// A shared store on etcd.
pub(crate) struct Etcd {
    client: Arc<Client>,
}

impl Etcd {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client: Arc::new(client),
        }
    }
}

#[async_trait]
impl Backend for Etcd {
    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError> {
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READS) {
            let reads = keys.iter().map(|key| {
                operation(request_op::Request::RequestRange(RangeRequest {
                    key: key.clone().into(),
                    ..RangeRequest::default()
                }))
            });
            let answer = self.transact(Vec::new(), reads.collect()).await?;
            for response in answer.responses {
                let Some(response_op::Response::ResponseRange(range)) = response.response else {
                    return Err(StorageError::Failed(
                        "etcd sent a response of an unexpected kind".to_owned(),
                    ));
                };
                found.push(range.kvs.into_iter().next().map(pair));
            }
        }
        Ok(found)
    }

    async fn scan(&self, range: Range, at: Option<i64>) -> Result<Scan, StorageError> {
        let mut pages = Pages {
            client: Arc::clone(&self.client),
            from: range.from,
            below: range.below,
            at: at.unwrap_or(0),
            limit: PAGE,
        };
        let first = pages.next().await?;
        let revision = pages.at;
        let (send, chunks) = mpsc::channel(PAGES);
        let reading = tokio::spawn(async move {
            let mut page = Ok(first);
            loop {
                let more = page.as_ref().is_ok_and(|(_, more)| *more);
                let sent = send.send(page.map(|(pairs, _)| pairs)).await;
                if sent.is_err() || !more {
                    return;
                }
                page = pages.next_retried().await;
            }
        });
        Ok(Scan::new(revision, chunks, reading))
    }

    async fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool, StorageError> {
        let compares = conditions.iter().map(compare).collect();
        fault::point("before etcd is asked");
        let answer = self.transact(compares, writes.iter().map(step).collect()).await?;
        fault::point("etcd has answered");
        Ok(answer.succeeded)
    }

    fn watch(&self, range: Range, after: i64) -> Box<dyn Watch> {
        Box::new(EtcdWatch::new(Arc::clone(&self.client), range, after))
    }

    async fn grant(&self, lifetime: Duration) -> Result<i64, StorageError> {
        let request = LeaseGrantRequest {
            ttl: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
            id: 0,
        };
        let answer = self
            .client
            .call(request, |mut stubs, request| async move {
                stubs.lease.lease_grant(request).await
            })
            .await?;
        match answer.error.is_empty() {
            true => Ok(answer.id),
            false => Err(StorageError::Failed(answer.error)),
        }
    }

    async fn keep(&self, lease: i64) -> Result<bool, StorageError> {
        let answer = self
            .client
            .call((), move |mut stubs, request| async move {
                // A single request, so the stream of responses ends after one.
                let asked = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
                let request = request.map(|()| asked);
                let mut answers = stubs.lease.lease_keep_alive(request).await?.into_inner();
                let answer = answers.next().await.transpose()?;
                Ok(tonic::Response::new(answer))
            })
            .await?;
        match answer {
            Some(answer) => Ok(answer.ttl > 0),
            None => Err(StorageError::Unavailable(
                "etcd did not confirm the lease".to_owned(),
            )),
        }
    }

    async fn revoke(&self, lease: i64) -> Result<(), StorageError> {
        let request = LeaseRevokeRequest { id: lease };
        self.client
            .call(request, |mut stubs, request| async move {
                stubs.lease.lease_revoke(request).await
            })
            .await
            .map(drop)
    }
}

impl Etcd {
    async fn transact(
        &self,
        compare: Vec<Compare>,
        success: Vec<RequestOp>,
    ) -> Result<TxnResponse, StorageError> {
        let request = TxnRequest {
            compare,
            success,
            failure: Vec::new(),
        };
        self.client
            .call(request, |mut stubs, request| async move {
                stubs.kv.txn(request).await
            })
            .await
    }
}

/// Reads a range page by page, at one revision.
struct Pages {
    client: Arc<Client>,
    from: Vec<u8>,
    below: Option<Vec<u8>>,
    /// 0 until the first page is read.
    at: i64,
    limit: i64,
}

impl Pages {
    /// Like [`Pages::next`], with retries: a failed scan would have to start over.
    async fn next_retried(&mut self) -> Result<(Vec<Pair>, bool), StorageError> {
        for _ in 0..ATTEMPTS {
            match self.next().await {
                Err(error) if error.is_passing() => tokio::time::sleep(PAUSE).await,
                page => return page,
            }
        }
        self.next().await
    }

    /// The next page, and whether more follow.
    async fn next(&mut self) -> Result<(Vec<Pair>, bool), StorageError> {
        let RangeResponse {
            header, kvs, more, ..
        } = loop {
            let request = RangeRequest {
                key: self.from.clone().into(),
                // In etcd `\0` as the end means all keys from the first on.
                range_end: self.below.clone().unwrap_or_else(|| vec![0]).into(),
                limit: self.limit,
                revision: self.at,
                ..RangeRequest::default()
            };
            let page = self
                .client
                .call(request, |mut stubs, request| async move {
                    stubs.kv.range(request).await
                })
                .await;
            match page {
                Err(StorageError::TooLarge(_)) if self.limit > 1 => self.limit /= 4,
                page => break page?,
            }
            self.limit = self.limit.max(1);
        };
        if self.at == 0 {
            self.at = header.map_or(0, |header| header.revision);
        }
        if let Some(last) = kvs.last() {
            self.from = last.key.to_vec();
            self.from.push(0);
        }
        Ok((kvs.into_iter().map(pair).collect(), more))
    }
}

fn pair(found: KeyValue) -> Pair {
    Pair {
        key: found.key.into(),
        created: found.create_revision,
        modified: found.mod_revision,
        version: found.version,
        value: found.value.into(),
    }
}

fn compare(condition: &Condition) -> Compare {
    let (key, target, given) = match condition {
        Condition::Modified(key, at) => (key, compare::Target::Mod, compare::TargetUnion::ModRevision(*at)),
        Condition::Created(key, at) => (
            key,
            compare::Target::Create,
            compare::TargetUnion::CreateRevision(*at),
        ),
    };
    Compare {
        result: compare::Result::Equal.into(),
        target: target.into(),
        key: key.clone().into(),
        target_union: Some(given),
    }
}

fn operation(request: request_op::Request) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn step(write: &Write) -> RequestOp {
    operation(match write {
        Write::Put { key, value, lease } => request_op::Request::RequestPut(PutRequest {
            key: key.clone().into(),
            value: value.clone().into(),
            lease: lease.unwrap_or(0),
            ..PutRequest::default()
        }),
        Write::Delete(range) => request_op::Request::RequestDeleteRange(DeleteRangeRequest {
            key: range.from.clone().into(),
            range_end: range.below.clone().unwrap_or_else(|| vec![0]).into(),
            prev_kv: false,
        }),
    })
}
