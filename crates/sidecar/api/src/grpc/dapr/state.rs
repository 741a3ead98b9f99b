//! State methods.

use std::sync::Arc;

use outrigger_blocks::state::{MAX_BULK, StateError, StepKind, Store};
use outrigger_component::state::{Concurrency, Consistency, Delete, Operation, Set, Value};
use outrigger_wire::common::v1::StateItem;
use outrigger_wire::common::v1::state_options::{StateConcurrency, StateConsistency};
use outrigger_wire::runtime::v1::{
    BulkStateItem, DeleteBulkStateRequest, DeleteStateRequest, ExecuteStateTransactionRequest,
    GetBulkStateRequest, GetBulkStateResponse, GetStateRequest, GetStateResponse, QueryStateItem,
    QueryStateRequest, QueryStateResponse, SaveStateRequest,
};
use tonic::{Request, Response, Status};

use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;
use crate::grpc::{CurrentSpan, describe_database};

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of(
        "state",
        "v1",
        &[
            "GetState",
            "GetBulkState",
            "SaveState",
            "DeleteState",
            "DeleteBulkState",
            "ExecuteStateTransaction",
        ],
    ),
    Group::of("state", "v1alpha1", &["QueryStateAlpha1"]),
];

const SYSTEM: &str = "state";
/// The metadata key that marks a value as JSON.
const CONTENT_TYPE: &str = "contentType";
const JSON: &str = "application/json";

impl DaprService {
    pub(super) async fn state_get(
        &self,
        request: Request<GetStateRequest>,
    ) -> Result<Response<GetStateResponse>, Status> {
        describe_database(&request, SYSTEM, &request.get_ref().store_name);
        let request = request.into_inner();
        let store = self.state_store(&request.store_name)?;
        let consistency = consistency(request.consistency());
        let found = store.get(&request.key, consistency, request.metadata).await;
        let item = found
            .map_err(|error| self.state_error(error))?
            .unwrap_or_default();
        Ok(Response::new(GetStateResponse {
            data: item.data,
            etag: item.etag.unwrap_or_default(),
            metadata: item.metadata,
        }))
    }

    pub(super) async fn state_bulk_get(
        &self,
        request: GetBulkStateRequest,
    ) -> Result<Response<GetBulkStateResponse>, Status> {
        let store = self.state_store(&request.store_name)?;
        let most = most_in_bulk(self.max_message);
        let found = store.bulk_get(&request.keys, request.parallelism, most, &request.metadata);
        let found = found.await.map_err(|error| self.state_error(error))?;
        let items = found.into_iter().map(|found| {
            let (item, error) = match found.item {
                Ok(item) => (item.unwrap_or_default(), String::new()),
                Err(error) => (Default::default(), error),
            };
            BulkStateItem {
                key: found.key,
                data: item.data,
                etag: item.etag.unwrap_or_default(),
                error,
                metadata: item.metadata,
            }
        });
        Ok(Response::new(GetBulkStateResponse {
            items: items.collect(),
        }))
    }

    pub(super) async fn state_save(
        &self,
        request: Request<SaveStateRequest>,
    ) -> Result<Response<()>, Status> {
        describe_database(&request, SYSTEM, &request.get_ref().store_name);
        let SaveStateRequest { store_name, states } = request.into_inner();
        let store = self.state_store(&store_name)?;
        if states.iter().any(|item| item.key.is_empty()) {
            return Err(self.fail(&ApiError::state_key_missing()));
        }
        let sets = states.into_iter().map(|item| {
            let json = item.metadata.get(CONTENT_TYPE).is_some_and(|kind| kind == JSON);
            set(item, json && !store.encrypts())
        });
        let saved = store.save(sets.collect()).await;
        saved.map_err(|error| self.state_error(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn state_delete(
        &self,
        request: Request<DeleteStateRequest>,
    ) -> Result<Response<()>, Status> {
        describe_database(&request, SYSTEM, &request.get_ref().store_name);
        let request = request.into_inner();
        let store = self.state_store(&request.store_name)?;
        let deleted = store.delete(delete(StateItem {
            key: request.key,
            etag: request.etag,
            options: request.options,
            metadata: request.metadata,
            ..StateItem::default()
        }));
        deleted.await.map_err(|error| self.state_error(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn state_bulk_delete(
        &self,
        request: DeleteBulkStateRequest,
    ) -> Result<Response<()>, Status> {
        let store = self.state_store(&request.store_name)?;
        let deletes = request.states.into_iter().map(delete);
        let deleted = store.bulk_delete(deletes.collect()).await;
        deleted.map_err(|error| self.state_error(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn state_transact(
        &self,
        request: Request<ExecuteStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        let span = request.extensions().get::<CurrentSpan>();
        let trace = span.map(|span| span.0.clone()).unwrap_or_default();
        let request = request.into_inner();
        let store = self.state_store(&request.store_name)?;
        let transactional = store.check_transactional();
        transactional.map_err(|error| self.state_error(error))?;
        let steps = request.operations.into_iter().map(|operation| {
            let item = operation.request.unwrap_or_default();
            StepKind::named(&operation.operation_type).map(|kind| match kind {
                StepKind::Upsert => Operation::Set(set(item, false)),
                StepKind::Delete => Operation::Delete(delete(item)),
            })
        });
        let steps = steps.collect::<Result<Vec<_>, _>>();
        let steps = steps.map_err(|error| self.state_error(error))?;
        let done = store.transact(steps, request.metadata, &trace).await;
        done.map_err(|error| self.state_error(error))?;
        Ok(Response::new(()))
    }

    pub(super) async fn state_query(
        &self,
        request: QueryStateRequest,
    ) -> Result<Response<QueryStateResponse>, Status> {
        let store = self.state_store(&request.store_name)?;
        let page = store.query(request.query.into(), &request.metadata).await;
        let page = page.map_err(|error| self.state_error(error))?;
        if page.items.is_empty() {
            return Ok(Response::new(QueryStateResponse::default()));
        }
        let results = page.items.into_iter().map(|item| QueryStateItem {
            key: item.key,
            data: item.data,
            etag: item.etag.unwrap_or_default(),
            error: item.error.unwrap_or_default(),
        });
        Ok(Response::new(QueryStateResponse {
            results: results.collect(),
            token: page.token,
            metadata: page.metadata,
        }))
    }

    fn state_store(&self, name: &str) -> Result<Arc<Store>, Status> {
        self.blocks
            .state
            .store(name)
            .map_err(|error| self.state_error(error))
    }

    fn state_error(&self, error: StateError) -> Status {
        self.fail(&ApiError::state(error, None))
    }
}

/// Largest sum of values in a bulk get, bytes, for messages of at most `max_message`: more could not be sent.
/// Without a message limit it still bounds memory against small requests for large values.
fn most_in_bulk(max_message: usize) -> usize {
    if max_message == usize::MAX {
        MAX_BULK
    } else {
        max_message
    }
}

fn set(item: StateItem, json: bool) -> Set {
    let (concurrency, consistency) = options(&item);
    Set {
        key: item.key,
        value: if json {
            Value::Json(item.value)
        } else {
            Value::Bytes(item.value)
        },
        etag: item.etag.map(|etag| etag.value),
        concurrency,
        only_new: false,
        consistency,
        metadata: item.metadata,
        content_type: None,
    }
}

fn delete(item: StateItem) -> Delete {
    let (concurrency, consistency) = options(&item);
    Delete {
        key: item.key,
        etag: item.etag.map(|etag| etag.value),
        concurrency,
        consistency,
        metadata: item.metadata,
    }
}

fn options(item: &StateItem) -> (Concurrency, Consistency) {
    let options = item.options.as_ref();
    let concurrency = options.map_or(StateConcurrency::ConcurrencyUnspecified, |o| o.concurrency());
    let consistent = options.map_or(StateConsistency::ConsistencyUnspecified, |o| o.consistency());
    let concurrency = match concurrency {
        StateConcurrency::ConcurrencyUnspecified => Concurrency::Unspecified,
        StateConcurrency::ConcurrencyFirstWrite => Concurrency::FirstWrite,
        StateConcurrency::ConcurrencyLastWrite => Concurrency::LastWrite,
    };
    (concurrency, consistency(consistent))
}

fn consistency(given: StateConsistency) -> Consistency {
    match given {
        StateConsistency::ConsistencyUnspecified => Consistency::Unspecified,
        StateConsistency::ConsistencyEventual => Consistency::Eventual,
        StateConsistency::ConsistencyStrong => Consistency::Strong,
    }
}
