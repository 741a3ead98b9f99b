use std::sync::Arc;

use outrigger_component::{
    Catalog, Error, Kind, Metadata, Pairs, Setup, StateStore,
    state::{
        Bounds, BulkError, Concurrency, Consistency, Delete, Get, Item, Operation, Set, Transaction, Value,
    },
};
use outrigger_wire::components::v1::{
    self as wire, BulkDeleteRequest, BulkDeleteResponse, BulkGetRequest, BulkGetResponse, BulkSetRequest,
    BulkSetResponse, BulkStateItem, DeleteRequest, DeleteResponse, Etag, FeaturesRequest, FeaturesResponse,
    GetRequest, GetResponse, InitRequest, InitResponse, MultiMaxSizeRequest, MultiMaxSizeResponse,
    PingRequest, PingResponse, QueryRequest, QueryResponse, SetRequest, SetResponse, StateOptions,
    TransactionalStateRequest, TransactionalStateResponse, queriable_state_store_server::QueriableStateStore,
    state_store_server, transactional_state_operation::Request as Step,
    transactional_state_store_server::TransactionalStateStore,
    transactional_store_multi_max_size_server::TransactionalStoreMultiMaxSize,
};
use tonic::{Code, Request, Response, Status, async_trait};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Answer, Services, instance};

impl Services {
    /// The store of the call's instance, which must have been initialised in this process.
    async fn store<T>(&self, request: &Request<T>) -> Result<Arc<dyn StateStore>, Status> {
        self.desk.fault().await?;
        let name = instance(request);
        let store = self.stores.lock().unwrap().get(&name).cloned();
        store.ok_or_else(|| Status::failed_precondition(format!("{name} was not initialised")))
    }
}

/// Converts errors to the contract's form.
fn status(error: Error) -> Status {
    let code = match error.kind() {
        Kind::EtagMismatch => Code::FailedPrecondition,
        Kind::InvalidEtag => Code::InvalidArgument,
        Kind::InvalidRequest => return Status::invalid_argument(error.to_string()),
        _ => return Status::internal(error.to_string()),
    };
    let details = ErrorDetails::with_bad_request_violation("etag", "another one is stored");
    Status::with_error_details(code, "etag", details)
}

/// A bulk call fails with its first failure.
fn first(mut error: BulkError) -> Status {
    status(error.failures.swap_remove(0).1)
}

fn get(request: GetRequest) -> Get {
    Get {
        key: request.key,
        consistency: Consistency::Unspecified,
        metadata: request.metadata,
    }
}

fn concurrency(options: Option<StateOptions>) -> Concurrency {
    match options.unwrap_or_default().concurrency {
        1 => Concurrency::FirstWrite,
        2 => Concurrency::LastWrite,
        _ => Concurrency::Unspecified,
    }
}

fn set(request: SetRequest) -> Set {
    Set {
        key: request.key,
        value: Value::Bytes(request.value),
        etag: request.etag.map(|etag| etag.value),
        concurrency: concurrency(request.options),
        metadata: request.metadata,
        ..Set::default()
    }
}

fn delete(request: DeleteRequest) -> Delete {
    Delete {
        key: request.key,
        etag: request.etag.map(|etag| etag.value),
        concurrency: concurrency(request.options),
        metadata: request.metadata,
        ..Delete::default()
    }
}

fn etag(item: &Item) -> Option<Etag> {
    let value = item.etag.clone()?;
    Some(Etag { value })
}

#[async_trait]
impl state_store_server::StateStore for Services {
    async fn init(&self, request: Request<InitRequest>) -> Answer<InitResponse> {
        self.initialised(&request, &request.get_ref().metadata).await?;
        let setup = Setup {
            metadata: Metadata::new("inner", []).unwrap(),
            app_id: "app".to_owned(),
        };
        let mut catalog = Catalog::empty();
        outrigger_components_local::add(&mut catalog);
        let entry = catalog.state.find("state.in-memory", "v1").unwrap();
        let store = entry.build(setup).await.unwrap();
        self.stores.lock().unwrap().insert(instance(&request), store);
        Ok(Response::new(Default::default()))
    }

    async fn features(&self, _request: Request<FeaturesRequest>) -> Answer<FeaturesResponse> {
        let features = self.desk.features.lock().unwrap().clone();
        let features = features.into_iter().map(str::to_owned).collect();
        Ok(Response::new(FeaturesResponse { features }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        let store = self.store(&request).await?;
        if let Some(size) = self.desk.fault().await? {
            let data = vec![0; size].into();
            return Ok(Response::new(GetResponse {
                data,
                ..GetResponse::default()
            }));
        }
        let item = store.get(&get(request.into_inner())).await.map_err(status)?;
        Ok(Response::new(item.map_or_else(GetResponse::default, |item| {
            GetResponse {
                etag: etag(&item),
                data: item.data,
                metadata: item.metadata,
                content_type: String::new(),
            }
        })))
    }

    async fn set(&self, request: Request<SetRequest>) -> Answer<SetResponse> {
        let store = self.store(&request).await?;
        store.set(&set(request.into_inner())).await.map_err(status)?;
        Ok(Response::new(Default::default()))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Answer<DeleteResponse> {
        let store = self.store(&request).await?;
        store
            .delete(&delete(request.into_inner()))
            .await
            .map_err(status)?;
        Ok(Response::new(Default::default()))
    }

    async fn bulk_get(&self, request: Request<BulkGetRequest>) -> Answer<BulkGetResponse> {
        let store = self.store(&request).await?;
        let gets: Vec<_> = request.into_inner().items.into_iter().map(get).collect();
        let found = store.bulk_get(&gets, Bounds::default()).await.map_err(status)?;
        let items = found.into_iter().map(|found| {
            let item = found.item.unwrap().unwrap_or_default();
            BulkStateItem {
                key: found.key,
                etag: etag(&item),
                data: item.data,
                metadata: item.metadata,
                ..BulkStateItem::default()
            }
        });
        // In a different order.
        let items = items.rev().collect();
        Ok(Response::new(BulkGetResponse { items }))
    }

    async fn bulk_set(&self, request: Request<BulkSetRequest>) -> Answer<BulkSetResponse> {
        let store = self.store(&request).await?;
        let sets: Vec<_> = request.into_inner().items.into_iter().map(set).collect();
        store.bulk_set(&sets, 0).await.map_err(first)?;
        Ok(Response::new(Default::default()))
    }

    async fn bulk_delete(&self, request: Request<BulkDeleteRequest>) -> Answer<BulkDeleteResponse> {
        let store = self.store(&request).await?;
        let deletes: Vec<_> = request.into_inner().items.into_iter().map(delete).collect();
        store.bulk_delete(&deletes, 0).await.map_err(first)?;
        Ok(Response::new(Default::default()))
    }

    async fn ping(&self, request: Request<PingRequest>) -> Answer<PingResponse> {
        self.store(&request).await?.ping().await.map_err(status)?;
        Ok(Response::new(Default::default()))
    }
}

#[async_trait]
impl TransactionalStateStore for Services {
    async fn transact(
        &self,
        request: Request<TransactionalStateRequest>,
    ) -> Answer<TransactionalStateResponse> {
        let store = self.store(&request).await?;
        let operations = request.into_inner().operations.into_iter();
        let operations = operations.map(|operation| match operation.request.unwrap() {
            Step::Set(request) => Operation::Set(set(request)),
            Step::Delete(request) => Operation::Delete(delete(request)),
        });
        let transaction = Transaction {
            operations: operations.collect(),
            metadata: Pairs::new(),
        };
        store.transact(&transaction).await.map_err(status)?;
        Ok(Response::new(Default::default()))
    }
}

#[async_trait]
impl QueriableStateStore for Services {
    /// Records the filter and returns one value.
    async fn query(&self, request: Request<QueryRequest>) -> Answer<QueryResponse> {
        self.store(&request).await?;
        let query = request.into_inner().query.unwrap();
        let filter = query
            .filter
            .iter()
            .map(|(name, operand)| format!("{name} {}", String::from_utf8(operand.value.clone()).unwrap()));
        self.desk.queries.lock().unwrap().extend(filter);
        Ok(Response::new(QueryResponse {
            items: vec![wire::QueryItem {
                key: "me||found".to_owned(),
                data: "{\"a\":1}".into(),
                ..wire::QueryItem::default()
            }],
            token: query.pagination.unwrap().token,
            ..QueryResponse::default()
        }))
    }
}

#[async_trait]
impl TransactionalStoreMultiMaxSize for Services {
    async fn multi_max_size(&self, _request: Request<MultiMaxSizeRequest>) -> Answer<MultiMaxSizeResponse> {
        let size = *self.desk.max_size.lock().unwrap();
        let max_size = size.ok_or_else(|| Status::unimplemented("no limit"))?;
        Ok(Response::new(MultiMaxSizeResponse { max_size }))
    }
}
