//! `/v1.0/state/…`.

mod answer;
mod body;

#[cfg(feature = "fuzzing")]
pub use body::fuzz_bodies;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ETAG, IF_MATCH};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use outrigger_component::Pairs;
use outrigger_component::offload::offload;
use outrigger_component::state::{Concurrency, Consistency, Delete, Item};

use super::route::Parameters;
use super::{Context, HttpApi, json};
use crate::api::error::{ApiError, JSON, bytes_response, empty_response};
use crate::blocks::state::{StateError, Store};
use crate::body::Body;

impl HttpApi {
    pub(super) async fn get_state(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let (store, key) = match self.store_and_key(&parameters) {
            Ok(found) => found,
            Err(response) => return *response,
        };
        self.describe_database("state", store.name(), context.span, &context.request);
        let query = Query::parse(context.request.uri().query());
        // Unknown words are the store's own business, as if nothing was said.
        let consistency = Consistency::parse(&query.consistency).unwrap_or_default();
        match store.get(&key, consistency, query.metadata).await {
            Ok(Some(item)) => found(item),
            Ok(None) => empty_response(StatusCode::NO_CONTENT),
            Err(error) => self.state_error(error),
        }
    }

    pub(super) async fn save_state(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let (store, query, body) = match self
            .store_and_body(&parameters, context, ApiError::malformed)
            .await
        {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let read = json::read(body, move |body| body::sets(body, &query.metadata)).await;
        match read {
            Ok(Ok(sets)) => self.done(store.save(sets).await),
            Ok(Err(body::SetError::NoKey)) => self.error(ApiError::malformed("\"key\" is a required field")),
            Ok(Err(body::SetError::Option(error))) => self.state_error(store.not_saved(error)),
            Err(error) => self.error(ApiError::malformed(error.to_string())),
        }
    }

    pub(super) async fn delete_state(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let (store, key) = match self.store_and_key(&parameters) {
            Ok(found) => found,
            Err(response) => return *response,
        };
        self.describe_database("state", store.name(), context.span, &context.request);
        let query = Query::parse(context.request.uri().query());
        let etag = context.request.headers().get(IF_MATCH);
        let concurrency = Concurrency::parse(&query.concurrency);
        let consistency = Consistency::parse(&query.consistency);
        let (concurrency, consistency) = match (concurrency, consistency) {
            (Ok(concurrency), Ok(consistency)) => (concurrency, consistency),
            (Err(error), _) | (_, Err(error)) => {
                return self.state_error(StateError::Delete {
                    key,
                    cause: error.into(),
                });
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

    pub(super) async fn bulk_get_state(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        let (store, query, body) = match self.store_and_body(&parameters, context, json::undecoded).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let read = json::read(body, |body| json::parse::<json::Of<body::BulkGet>>(body));
        let mut request = match read.await {
            Ok(json::Of(request)) => request,
            Err(error) => return self.error(json::undecoded(error)),
        };
        request.metadata.extend(query.metadata);
        let found = store.bulk_get(&request.keys, request.parallelism, &request.metadata);
        match found.await {
            Ok(items) => {
                let answer = offload(answer::size(&items), move || answer::bulk(items)).await;
                bytes_response(StatusCode::OK, JSON, answer)
            }
            Err(error) => self.state_error(error),
        }
    }

    pub(super) async fn transact_state(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        let (store, query, body) = match self.store_and_body(&parameters, context, json::undecoded).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        if let Err(error) = store.check_transactional() {
            return self.state_error(error);
        }
        match json::read(body, move |body| body::steps(body, &query.metadata)).await {
            Ok(Ok((steps, metadata))) => self.done(store.transact(steps, metadata).await),
            Ok(Err(error)) => self.state_error(error),
            Err(error) => self.error(json::undecoded(error)),
        }
    }

    pub(super) async fn query_state(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let unread = |error: String| ApiError::body_read(&error);
        let (store, query, body) = match self.store_and_body(&parameters, context, unread).await {
            Ok(found) => found,
            Err(response) => return *response,
        };
        match store.query(&body, &query.metadata).await {
            Ok(page) if page.items.is_empty() => empty_response(StatusCode::NO_CONTENT),
            Ok(page) => {
                let size = page.items.iter().map(|item| item.data.len()).sum();
                let answer = offload(size, move || answer::page(page)).await;
                bytes_response(StatusCode::OK, JSON, answer)
            }
            Err(error) => self.state_error(error),
        }
    }

    fn store_and_key(&self, parameters: &Parameters) -> Result<(Arc<Store>, String), Box<Response<Body>>> {
        let name = self.parameter("storeName", &parameters[0])?;
        let key = self.parameter("key", &parameters[1])?;
        match self.blocks.state.store(&name) {
            Ok(store) => Ok((store, key)),
            Err(error) => Err(Box::new(self.state_error(error))),
        }
    }

    async fn store_and_body(
        &self,
        parameters: &Parameters,
        context: Context<'_>,
        unread: impl Fn(String) -> ApiError,
    ) -> Result<(Arc<Store>, Query, Bytes), Box<Response<Body>>> {
        let name = self.parameter("storeName", &parameters[0])?;
        let store = match self.blocks.state.store(&name) {
            Ok(store) => store,
            Err(error) => return Err(Box::new(self.state_error(error))),
        };
        self.describe_database("state", store.name(), context.span, &context.request);
        let query = Query::parse(context.request.uri().query());
        // The limit of the API is around the body already.
        match context.request.into_body().collect_up_to(usize::MAX).await {
            Ok(body) => Ok((store, query, body)),
            Err(error) => Err(Box::new(self.error(unread(error.to_string())))),
        }
    }

    fn done(&self, result: Result<(), StateError>) -> Response<Body> {
        match result {
            Ok(()) => empty_response(StatusCode::NO_CONTENT),
            Err(error) => self.state_error(error),
        }
    }

    fn state_error(&self, error: StateError) -> Response<Body> {
        self.error(ApiError::state(error, Some(&self.app_id)))
    }
}

/// A value as it is stored; the type is always JSON.
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

/// What a query string can say about a state request.
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

impl HttpApi {
    /// A path parameter without its escapes.
    pub(super) fn parameter(&self, name: &str, escaped: &str) -> Result<String, Box<Response<Body>>> {
        outrigger_policy::escape::query_unescape(escaped)
            .map(std::borrow::Cow::into_owned)
            .map_err(|error| {
                let text = format!("failed to unescape request parameter {name:?}. Error: {error}");
                Box::new(crate::api::error::text_response(StatusCode::BAD_REQUEST, &text))
            })
    }

    /// What a span says about a call of a store.
    pub(super) fn describe_database(
        &self,
        system: &'static str,
        store: &str,
        span: &mut outrigger_telemetry::trace::Span,
        request: &Request<Body>,
    ) {
        if span.is_recording() {
            let path = outrigger_policy::path::clean_escaped_path(request.uri().path());
            span.database(system, &format!("{} {path}", request.method()), store);
        }
    }
}
