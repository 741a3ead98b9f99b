//! State stores in other processes.

mod messages;

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Pairs, Result, Setup, StateStore,
    state::{Bounds, BulkError, BulkItem, Delete, Feature, Get, Item, Query, QueryPage, Set, Transaction},
};
use outrigger_wire::components::v1::{
    BulkDeleteRequest, BulkDeleteRequestOptions, BulkGetRequest, BulkGetRequestOptions, BulkSetRequest,
    BulkSetRequestOptions, FeaturesRequest, InitRequest, MultiMaxSizeRequest, PingRequest, QueryRequest,
    TransactionalStateRequest, queriable_state_store_client::QueriableStateStoreClient,
    state_store_client::StateStoreClient, transactional_state_store_client::TransactionalStateStoreClient,
    transactional_store_multi_max_size_client::TransactionalStoreMultiMaxSizeClient,
};
use tokio::{sync::OnceCell, time::timeout};
use tonic::Status;

use super::{
    Opened, Options, Process,
    discovery::LOG,
    link::{Caller, Link, origin},
    status,
};

/// Timeout of querying the transaction limit.
const MULTI_MAX_SIZE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let entry = super::entry(name, socket, options, |process, setup| async move {
        let opened = Store::open(&process, &setup).await?;
        Ok(Arc::new(opened) as Arc<dyn StateStore>)
    });
    catalog.state.add(entry);
}

struct Store {
    name: Arc<str>,
    link: Arc<Link>,
    limit: usize,
    features: Vec<Feature>,
    max_operations: OnceCell<Option<usize>>,
}

impl Store {
    async fn open(process: &Process, setup: &Setup) -> Result<Self> {
        let init = |conn, metadata| async move {
            let mut client = StateStoreClient::with_origin(conn, origin());
            client.init(InitRequest { metadata }).await.map(drop)
        };
        let Opened { name, link, limit } = process.open(setup, init).await?;
        let mut store = Self {
            name,
            link,
            limit,
            features: Vec::new(),
            max_operations: OnceCell::new(),
        };
        let answer = store.client().features(FeaturesRequest {}).await;
        let names = answer
            .map_err(|status| status::error(&status))?
            .into_inner()
            .features;
        for name in names {
            match Feature::named(&name) {
                // The contract has no calls for these two.
                Some(Feature::KeysLike | Feature::DeleteWithPrefix) => {}
                Some(feature) if !store.features.contains(&feature) => store.features.push(feature),
                Some(_) => {}
                None => tracing::debug!(target: LOG, "state store {}: unknown feature {name:?}", store.name),
            }
        }
        Ok(store)
    }

    fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.link))
    }

    fn client(&self) -> StateStoreClient<Caller> {
        StateStoreClient::with_origin(self.caller(), origin()).max_decoding_message_size(self.limit)
    }

    async fn ask_max_operations(&self) -> Option<usize> {
        let mut client = TransactionalStoreMultiMaxSizeClient::with_origin(self.caller(), origin());
        let answer = timeout(
            MULTI_MAX_SIZE_TIMEOUT,
            client.multi_max_size(MultiMaxSizeRequest {}),
        )
        .await;
        match answer {
            Ok(Ok(answer)) => usize::try_from(answer.into_inner().max_size)
                .ok()
                .filter(|most| *most > 0),
            Ok(Err(status)) => {
                let text = status::text(&status);
                tracing::debug!(target: LOG, "state store {}: no limit to transactions: {text}", self.name);
                None
            }
            Err(_) => {
                tracing::warn!(
                    target: LOG,
                    "state store {}: no answer within {MULTI_MAX_SIZE_TIMEOUT:?} about the transaction \
                     limit; assuming there is none",
                    self.name
                );
                None
            }
        }
    }
}

fn parallelism(given: usize) -> i64 {
    i64::try_from(given).unwrap_or(i64::MAX)
}

/// A bulk call succeeds or fails as a whole.
fn whole(count: usize, result: Result<(), outrigger_component::Error>) -> Result<(), BulkError> {
    result.map_err(|error| BulkError::all(count, error))
}

#[async_trait]
impl StateStore for Store {
    fn features(&self) -> &[Feature] {
        &self.features
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        let answer = self.client().get(messages::get(request)).await;
        let answer = answer.map_err(|status| status::read_error(&status))?.into_inner();
        Ok(messages::item(
            answer.data,
            answer.etag,
            answer.metadata,
            answer.content_type,
        ))
    }

    async fn set(&self, request: &Set) -> Result<()> {
        written(self.client().set(messages::set(request)?).await)
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        written(self.client().delete(messages::delete(request)).await)
    }

    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let request = BulkGetRequest {
            items: requests.iter().map(messages::get).collect(),
            options: Some(BulkGetRequestOptions {
                parallelism: parallelism(bounds.parallelism),
            }),
        };
        let answer = self.client().bulk_get(request).await;
        let answer = answer.map_err(|status| status::read_error(&status))?.into_inner();
        messages::in_order(requests, answer.items, bounds)
    }

    async fn bulk_set(&self, requests: &[Set], limit: usize) -> Result<(), BulkError> {
        if requests.is_empty() {
            return Ok(());
        }
        let items = requests.iter().map(messages::set).collect::<Result<_>>();
        let items = items.map_err(|error| BulkError::all(requests.len(), error))?;
        let options = Some(BulkSetRequestOptions {
            parallelism: parallelism(limit),
        });
        let answer = self.client().bulk_set(BulkSetRequest { items, options }).await;
        whole(requests.len(), written(answer))
    }

    async fn bulk_delete(&self, requests: &[Delete], limit: usize) -> Result<(), BulkError> {
        if requests.is_empty() {
            return Ok(());
        }
        let request = BulkDeleteRequest {
            items: requests.iter().map(messages::delete).collect(),
            options: Some(BulkDeleteRequestOptions {
                parallelism: parallelism(limit),
            }),
        };
        let answer = self.client().bulk_delete(request).await;
        let result = answer
            .map(drop)
            .map_err(|status| status::bulk_delete_error(&status));
        whole(requests.len(), result)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        let operations = transaction.operations.iter().map(messages::operation);
        let request = TransactionalStateRequest {
            operations: operations.collect::<Result<_>>()?,
            metadata: transaction.metadata.clone(),
        };
        let mut client = TransactionalStateStoreClient::with_origin(self.caller(), origin());
        written(client.transact(request).await)
    }

    async fn max_operations(&self) -> Option<usize> {
        *self
            .max_operations
            .get_or_init(|| self.ask_max_operations())
            .await
    }

    // Only a query's answer shows whether the component supports queries; the feature is informational.
    fn can_query(&self) -> bool {
        true
    }

    async fn query(&self, query: &Query, metadata: &Pairs, bounds: Bounds) -> Result<QueryPage> {
        let request = QueryRequest {
            query: Some(messages::query(query)),
            metadata: metadata.clone(),
        };
        let mut client = QueriableStateStoreClient::with_origin(self.caller(), origin())
            .max_decoding_message_size(self.limit);
        let answer = client.query(request).await;
        let answer = answer.map_err(|status| status::read_error(&status))?.into_inner();
        let (page, tally) = (messages::page(answer), bounds.query_tally());
        page.items.iter().try_for_each(|item| tally.matched(item))?;
        Ok(page)
    }

    async fn ping(&self) -> Result<()> {
        let answer = self.client().ping(PingRequest {}).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn close(&self) {
        self.link.close();
    }
}

fn written<T>(answer: Result<T, Status>) -> Result<()> {
    answer.map(drop).map_err(|status| status::write_error(&status))
}
