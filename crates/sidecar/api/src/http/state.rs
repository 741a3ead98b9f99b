//! `/v1.0/state/…`.

mod answer;
mod body;

pub(super) use body::Operation;
#[cfg(feature = "fuzzing")]
pub use body::fuzz_bodies;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ETAG, IF_MATCH};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use outrigger_blocks::state::{MAX_BULK, StateError, Store};
use outrigger_component::Pairs;
use outrigger_component::state::{Concurrency, Consistency, Delete, Item};
use outrigger_transport::body::Body;
use outrigger_transport::response::{bytes_response, empty_response};

use super::route::{Endpoint, Handler, HandlerResult};
use super::unread::unread;
use super::{Context, HttpApi, json};
use crate::error::{ApiError, JSON};

pub(super) static ROUTES: &[Endpoint] = &[
    stable(Method::GET, ITEM, "GetState", |api, context| {
        Box::pin(api.get_state(context))
    }),
    stable(Method::POST, STORE, "SaveState", SAVE),
    stable(Method::PUT, STORE, "SaveState", SAVE),
    stable(Method::DELETE, ITEM, "DeleteState", |api, context| {
        Box::pin(api.delete_state(context))
    }),
    stable(Method::POST, BULK, "GetBulkState", GET_BULK),
    stable(Method::PUT, BULK, "GetBulkState", GET_BULK),
    stable(Method::POST, TRANSACTION, "ExecuteStateTransaction", TRANSACT),
    stable(Method::PUT, TRANSACTION, "ExecuteStateTransaction", TRANSACT),
    query(Method::POST),
    query(Method::PUT),
];

const ITEM: &[&str] = &["state", "{storeName}", "{key}"];
const STORE: &[&str] = &["state", "{storeName}"];
const BULK: &[&str] = &["state", "{storeName}", "bulk"];
const TRANSACTION: &[&str] = &["state", "{storeName}", "transaction"];
const SAVE: Handler = |api, context| Box::pin(api.save_state(context));
const GET_BULK: Handler = |api, context| Box::pin(api.bulk_get_state(context));
const TRANSACT: Handler = |api, context| Box::pin(api.transact_state(context));

const fn stable(
    method: Method,
    path: &'static [&'static str],
    name: &'static str,
    handler: Handler,
) -> Endpoint {
    Endpoint::v1(method, "state", path, name, handler)
}

const fn query(method: Method) -> Endpoint {
    let path = &["state", "{storeName}", "query"];
    Endpoint::alpha1(method, "state", path, "QueryStateAlpha1", |api, context| {
        Box::pin(api.query_state(context))
    })
}

impl HttpApi {
    async fn get_state(&self, mut context: Context<'_>) -> HandlerResult {
        let (store, key) = self.store_and_key(&context)?;
        context.describe_database("state", store.name());
        let query = Query::parse(context.request.uri().query());
        // Unknown words are ignored, as the store may define them.
        let consistency = Consistency::parse(&query.consistency).unwrap_or_default();
        let item = store.get(&key, consistency, query.metadata).await;
        let item = item.map_err(|error| self.state_error(error))?;
        Ok(item.map_or_else(|| empty_response(StatusCode::NO_CONTENT), found))
    }

    async fn save_state(&self, context: Context<'_>) -> HandlerResult {
        let (store, query, body) = self.store_and_body(context, ApiError::malformed).await?;
        let read = json::read(body, move |body| body::sets(body, &query.metadata)).await;
        match read.map_err(|error| ApiError::malformed(error.to_string()))? {
            Ok(sets) => self.done(store.save(sets).await),
            Err(body::SetError::NoKey) => Err(ApiError::malformed(body::NO_KEY)),
            Err(body::SetError::Option(error)) => Err(self.state_error(store.not_saved(error))),
        }
    }

    async fn delete_state(&self, mut context: Context<'_>) -> HandlerResult {
        let (store, key) = self.store_and_key(&context)?;
        context.describe_database("state", store.name());
        let query = Query::parse(context.request.uri().query());
        let etag = context.request.headers().get(IF_MATCH);
        let concurrency = Concurrency::parse(&query.concurrency);
        let consistency = Consistency::parse(&query.consistency);
        let (concurrency, consistency) = match (concurrency, consistency) {
            (Ok(concurrency), Ok(consistency)) => (concurrency, consistency),
            (Err(error), _) | (_, Err(error)) => {
                let cause = error.into();
                return Err(self.state_error(StateError::Delete { key, cause }));
            }
        };
        let delete = Delete {
            key,
            etag: etag.map(|etag| String::from_utf8_lossy(etag.as_bytes()).into_owned()),
            concurrency,
            consistency,
            metadata: query.metadata,
        };
        self.done(store.delete(delete).await)
    }

    async fn bulk_get_state(&self, context: Context<'_>) -> HandlerResult {
        let (store, query, body) = self.store_and_body(context, json::undecoded).await?;
        let read = json::read(body, |body| json::parse::<json::JsonObject<body::BulkGet>>(body));
        let json::JsonObject(mut request) = read.await.map_err(json::undecoded)?;
        request.metadata.extend(query.metadata);
        let found = store.bulk_get(&request.keys, request.parallelism, MAX_BULK, &request.metadata);
        let items = found.await.map_err(|error| self.state_error(error))?;
        Ok(bytes_response(StatusCode::OK, JSON, answer::bulk(items).await))
    }

    async fn transact_state(&self, context: Context<'_>) -> HandlerResult {
        let trace = context.span.as_parent();
        let (store, query, body) = self.store_and_body(context, json::undecoded).await?;
        store
            .check_transactional()
            .map_err(|error| self.state_error(error))?;
        let read = json::read(body, move |body| body::steps(body, &query.metadata)).await;
        let (steps, metadata) = read
            .map_err(json::undecoded)?
            .map_err(|error| self.state_error(error))?;
        self.done(store.transact(steps, metadata, &trace).await)
    }

    async fn query_state(&self, context: Context<'_>) -> HandlerResult {
        let unread = |error: String| ApiError::body_read(&error);
        let (store, query, body) = self.store_and_body(context, unread).await?;
        let page = store.query(body, &query.metadata).await;
        let page = page.map_err(|error| self.state_error(error))?;
        if page.items.is_empty() {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        }
        Ok(bytes_response(StatusCode::OK, JSON, answer::page(page).await))
    }

    fn store_and_key(&self, context: &Context<'_>) -> Result<(Arc<Store>, String), ApiError> {
        let (name, key) = (context.parameter(0)?, context.parameter(1)?);
        let store = self.blocks.state.store(&name);
        Ok((store.map_err(|error| self.state_error(error))?, key))
    }

    async fn store_and_body(
        &self,
        mut context: Context<'_>,
        of_route: impl Fn(String) -> ApiError,
    ) -> Result<(Arc<Store>, Query, Bytes), ApiError> {
        let store = self.blocks.state.store(&context.parameter(0)?);
        let store = store.map_err(|error| self.state_error(error))?;
        context.describe_database("state", store.name());
        let query = Query::parse(context.request.uri().query());
        // The API has already limited the body.
        let body = context.request.into_body().collect_up_to(usize::MAX).await;
        let body = body.map_err(|error| unread(&error, of_route))?;
        Ok((store, query, body))
    }

    fn done(&self, result: Result<(), StateError>) -> HandlerResult {
        result.map_err(|error| self.state_error(error))?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    fn state_error(&self, error: StateError) -> ApiError {
        ApiError::state(error, Some(&self.app_id))
    }
}

/// A stored value; the content type is always JSON.
fn found(item: Item) -> Response<Body> {
    let mut response = bytes_response(StatusCode::OK, JSON, item.data);
    let headers = response.headers_mut();
    if let Some(etag) = item.etag
        && let Ok(etag) = HeaderValue::try_from(etag)
    {
        headers.insert(ETAG, etag);
    }
    for (name, value) in item.metadata {
        let name = HeaderName::try_from(format!("metadata.{name}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    response
}

/// Query parameters of a state request.
#[derive(Default)]
struct Query {
    consistency: String,
    concurrency: String,
    metadata: Pairs,
}

impl Query {
    fn parse(query: Option<&str>) -> Self {
        let mut parsed = Self {
            metadata: super::query_metadata(query),
            ..Self::default()
        };
        if let Some(query) = query {
            for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
                let wanted = match &*name {
                    "consistency" => &mut parsed.consistency,
                    "concurrency" => &mut parsed.concurrency,
                    _ => continue,
                };
                if wanted.is_empty() {
                    *wanted = value.into_owned();
                }
            }
        }
        parsed
    }
}
