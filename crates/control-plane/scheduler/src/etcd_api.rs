//! The part of etcd's API that `dapr scheduler` uses to list, export, import and delete jobs, on the client
//! port of the embedded store. As with etcd, any client that can connect may do all of this; so the port
//! listens on loopback by default.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::scheduler::v1::Host;
use prost::Message;
use prost_types::Any;
use rusqlite::Connection;
use tonic::{Request, Response, Status};

use crate::proto::etcd::{
    CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, KeyValue,
    PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse, compare, kv_server::Kv, request_op, response_op,
};
use crate::proto::stored::Leadership;
use crate::storage::embedded::pairs::{self, Pair, Range, Writing};
use crate::storage::embedded::{Embedded, refusal};
use crate::storage::{COUNTERS, JOBS, LEADERSHIP, StorageError};
use crate::stored;

/// Maximum number of operations and comparisons of a transaction; etcd's flag for it is `--etcd-max-txn-ops`.
const MAX_OPERATIONS: usize = 10_000;
/// Maximum size of a response, in bytes of keys and values, previous values included.
const MAX_ANSWER: usize = 256 << 20;
/// The store keeps the latest revision only.
const COMPACTED: &str =
    "etcdserver: mvcc: required revision has been compacted; this store keeps the latest only";

/// Serves calls of etcd clients.
#[derive(Clone)]
pub(crate) struct EtcdApi {
    store: Arc<Embedded>,
    /// Maximum size of a response in bytes.
    most: usize,
}

/// The bytes used so far by a response, over all its parts.
struct Answer {
    size: usize,
    most: usize,
}

impl Answer {
    fn new(most: usize) -> Self {
        Self { size: 0, most }
    }

    /// Counts a pair; returns whether it fits.
    fn reserve(&mut self, pair: &Pair, keys_only: bool) -> bool {
        self.size += pair.key.len() + if keys_only { 0 } else { pair.value.len() };
        self.size <= self.most
    }

    /// Fails if the response was too large. The error rolls back the writes of the same call, so that they
    /// match what the client sees.
    fn check(&self) -> rusqlite::Result<()> {
        match self.size <= self.most {
            true => Ok(()),
            false => Err(refusal(StorageError::AnswerTooLarge(self.most))),
        }
    }
}

/// Stores the name and address of this scheduler for clients of etcd's API.
///
/// # Errors
/// If the entry cannot be stored.
pub(crate) async fn announce(store: &Embedded, id: &str, address: &str) -> Result<(), StorageError> {
    let host = Host {
        address: address.to_owned(),
    };
    let leadership = Leadership {
        total: 1,
        uids: None,
        uid: rand::random(),
        replica_data: Some(Any {
            type_url: "type.googleapis.com/dapr.proto.scheduler.v1.Host".to_owned(),
            value: host.encode_to_vec(),
        }),
    };
    let key = [LEADERSHIP, id].concat();
    let write = move |writing: &mut Writing<'_>| {
        writing.delete(&Range::prefix(LEADERSHIP))?;
        writing.put(key.as_bytes(), &leadership.encode_to_vec())
    };
    store.write(write).await
}

impl EtcdApi {
    pub(crate) fn new(store: Arc<Embedded>) -> Self {
        Self {
            store,
            most: MAX_ANSWER,
        }
    }
}

#[tonic::async_trait]
impl Kv for EtcdApi {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        check_range(&request)?;
        let mut answer = Answer::new(self.most);
        let answer = self
            .store
            .read_much(move |connection| range(connection, &request, &mut answer))
            .await?;
        Ok(Response::new(answer))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        check_put(&request)?;
        let mut answer = Answer::new(self.most);
        let answer = self
            .store
            .write(move |writing| put(writing, &request, &mut answer))
            .await?;
        Ok(Response::new(answer))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        check_delete(&request)?;
        let mut answer = Answer::new(self.most);
        let answer = self
            .store
            .write(move |writing| delete(writing, &request, &mut answer))
            .await?;
        Ok(Response::new(answer))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        if request.compare.len() + request.success.len() + request.failure.len() > MAX_OPERATIONS {
            return Err(Status::invalid_argument(
                "etcdserver: too many operations in txn request",
            ));
        }
        request.compare.iter().try_for_each(check_compare)?;
        request
            .success
            .iter()
            .chain(&request.failure)
            .try_for_each(check_operation)?;
        let mut answer = Answer::new(self.most);
        let answer = self
            .store
            .write(move |writing| transaction(writing, request, &mut answer))
            .await?;
        Ok(Response::new(answer))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::out_of_range(COMPACTED))
    }
}

fn check_range(request: &RangeRequest) -> Result<(), Status> {
    if request.revision > 0 {
        return Err(Status::out_of_range(COMPACTED));
    }
    // Key order, ascending, is the only order supported.
    if request.sort_order > 1 || request.sort_target > 0 {
        return Err(Status::unimplemented("only ascending key order is supported"));
    }
    Ok(())
}

fn check_put(request: &PutRequest) -> Result<(), Status> {
    if request.lease != 0 || request.ignore_lease || request.ignore_value {
        return Err(Status::unimplemented(
            "leases are not supported, and a value is required",
        ));
    }
    let refused = |what: &str| Err(Status::invalid_argument(what.to_owned()));
    if request.key.starts_with(JOBS.as_bytes()) {
        if std::str::from_utf8(&request.key).is_err() {
            return refused("job names must be UTF-8");
        }
        return match stored::read(&request.value, None) {
            Ok(_) => Ok(()),
            Err(error) => refused(&format!("the value is not a valid job: {error}")),
        };
    }
    if request.key.starts_with(COUNTERS.as_bytes()) {
        return match crate::proto::stored::Counter::decode(request.value.clone()) {
            Ok(_) => Ok(()),
            Err(error) => refused(&format!("the value is not a valid counter: {error}")),
        };
    }
    refused("only keys below dapr/jobs/ and dapr/counters/ can be written")
}

fn check_delete(request: &DeleteRangeRequest) -> Result<(), Status> {
    let all = span(&request.key, &request.range_end);
    let leadership = Range::prefix(LEADERSHIP);
    let apart = all.from >= leadership.below.unwrap_or_default()
        || all.below.is_some_and(|below| below <= leadership.from);
    match apart {
        true => Ok(()),
        false => Err(Status::invalid_argument(
            "only keys below dapr/jobs/ and dapr/counters/ can be deleted",
        )),
    }
}

fn check_compare(compare: &Compare) -> Result<(), Status> {
    match compare.target() {
        compare::Target::Lease => Err(Status::unimplemented("leases are not supported")),
        _ => Ok(()),
    }
}

fn check_operation(operation: &RequestOp) -> Result<(), Status> {
    match &operation.request {
        Some(request_op::Request::RequestRange(request)) => check_range(request),
        Some(request_op::Request::RequestPut(request)) => check_put(request),
        Some(request_op::Request::RequestDeleteRange(request)) => check_delete(request),
        None => Err(Status::unimplemented(
            "a transaction may contain only ranges, puts and deletes",
        )),
    }
}

/// The key range of a request.
fn span(key: &Bytes, end: &Bytes) -> Range {
    match end.as_ref() {
        b"" => Range::one(key.to_vec()),
        b"\0" => Range {
            from: key.to_vec(),
            below: None,
        },
        end => Range {
            from: key.to_vec(),
            below: Some(end.to_vec()),
        },
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        cluster_id: 1,
        member_id: 1,
        revision,
        raft_term: 1,
    })
}

fn key_value(pair: Pair, keys_only: bool) -> KeyValue {
    KeyValue {
        key: pair.key.into(),
        create_revision: pair.created,
        mod_revision: pair.modified,
        version: pair.version,
        value: if keys_only {
            Bytes::new()
        } else {
            pair.value.into()
        },
        lease: 0,
    }
}

fn range(
    connection: &Connection,
    request: &RangeRequest,
    answer: &mut Answer,
) -> rusqlite::Result<RangeResponse> {
    let range = span(&request.key, &request.range_end);
    let count = pairs::count(connection, &range)?;
    let mut kvs = Vec::new();
    if !request.count_only {
        let limit = usize::try_from(request.limit)
            .ok()
            .filter(|limit| *limit > 0)
            .unwrap_or(usize::MAX);
        pairs::scan(connection, &range, |pair| {
            let has_capacity = answer.reserve(&pair, request.keys_only);
            kvs.push(key_value(pair, request.keys_only));
            kvs.len() < limit && has_capacity
        })?;
        answer.check()?;
    }
    let more = !request.count_only && i64::try_from(kvs.len()).unwrap_or(i64::MAX) < count;
    Ok(RangeResponse {
        header: header(pairs::revision(connection)?),
        kvs,
        more,
        count,
    })
}

fn put(
    writing: &mut Writing<'_>,
    request: &PutRequest,
    answer: &mut Answer,
) -> rusqlite::Result<PutResponse> {
    let before = match request.prev_kv {
        true => pairs::get(writing.connection(), &request.key)?,
        false => None,
    };
    if let Some(pair) = &before {
        answer.reserve(pair, false);
        answer.check()?;
    }
    writing.put(&request.key, &request.value)?;
    Ok(PutResponse {
        header: header(writing.revision),
        prev_kv: before.map(|pair| key_value(pair, false)),
    })
}

fn delete(
    writing: &mut Writing<'_>,
    request: &DeleteRangeRequest,
    answer: &mut Answer,
) -> rusqlite::Result<DeleteRangeResponse> {
    let range = span(&request.key, &request.range_end);
    let mut before = Vec::new();
    if request.prev_kv {
        pairs::scan(writing.connection(), &range, |pair| {
            let has_capacity = answer.reserve(&pair, false);
            before.push(key_value(pair, false));
            has_capacity
        })?;
        answer.check()?;
    }
    let deleted = writing.delete(&range)?;
    Ok(DeleteRangeResponse {
        header: header(writing.revision),
        deleted: i64::try_from(deleted.len()).unwrap_or(i64::MAX),
        prev_kvs: before,
    })
}

fn transaction(
    writing: &mut Writing<'_>,
    request: TxnRequest,
    answer: &mut Answer,
) -> rusqlite::Result<TxnResponse> {
    use request_op::Request as Asked;
    use response_op::Response as Answered;
    let mut succeeded = true;
    for compare in &request.compare {
        let pair = pairs::get(writing.connection(), &compare.key)?;
        succeeded &= holds(compare, pair.as_ref());
    }
    let operations = if succeeded {
        request.success
    } else {
        request.failure
    };
    let mut responses = Vec::with_capacity(operations.len());
    for operation in operations {
        let response = match operation.request {
            Some(Asked::RequestRange(request)) => Some(Answered::ResponseRange(range(
                writing.connection(),
                &request,
                answer,
            )?)),
            Some(Asked::RequestPut(request)) => Some(Answered::ResponsePut(put(writing, &request, answer)?)),
            Some(Asked::RequestDeleteRange(request)) => {
                Some(Answered::ResponseDeleteRange(delete(writing, &request, answer)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse {
        header: header(writing.revision),
        succeeded,
        responses,
    })
}

/// Whether a comparison holds. A missing key has revision and version 0, as in etcd.
fn holds(compare: &Compare, pair: Option<&Pair>) -> bool {
    use compare::{Result as Wanted, TargetUnion as Given};
    let number = |of: fn(&Pair) -> i64| pair.map_or(0, of);
    let order = match &compare.target_union {
        Some(Given::Version(given)) => number(|pair| pair.version).cmp(given),
        Some(Given::CreateRevision(given)) => number(|pair| pair.created).cmp(given),
        Some(Given::ModRevision(given)) => number(|pair| pair.modified).cmp(given),
        Some(Given::Value(given)) => match pair {
            Some(pair) => pair.value.as_slice().cmp(given),
            None => return false,
        },
        Some(Given::Lease(_)) => return false,
        // An unset target value means 0.
        None => match compare.target() {
            compare::Target::Version => number(|pair| pair.version).cmp(&0),
            compare::Target::Create => number(|pair| pair.created).cmp(&0),
            compare::Target::Mod => number(|pair| pair.modified).cmp(&0),
            _ => return false,
        },
    };
    match compare.result() {
        Wanted::Equal => order.is_eq(),
        Wanted::Greater => order.is_gt(),
        Wanted::Less => order.is_lt(),
        Wanted::NotEqual => order.is_ne(),
    }
}

#[cfg(test)]
mod tests;
