//! `/v1.0/configuration/…`.

use http::{Method, StatusCode};
use outrigger_blocks::configuration::{ConfigurationError, item_json};
use outrigger_component::Pairs;
use outrigger_transport::response::empty_response;
use serde_json::{Map, Value, json};

use super::route::{Endpoint, Handler, HandlerResult};
use super::{Context, HttpApi, query_metadata};
use crate::error::{ApiError, json_response};

/// Each route in both versions, which are equivalent.
pub(super) static ROUTES: &[Endpoint] = &[
    stable(ITEMS, "GetConfiguration", GET),
    alpha(ITEMS, "GetConfiguration", GET),
    stable(SUBSCRIBE, "SubscribeConfiguration", START),
    alpha(SUBSCRIBE, "SubscribeConfiguration", START),
    stable(UNSUBSCRIBE, "UnsubscribeConfiguration", END),
    alpha(UNSUBSCRIBE, "UnsubscribeConfiguration", END),
];

const ITEMS: &[&str] = &["configuration", "{storeName}"];
const SUBSCRIBE: &[&str] = &["configuration", "{storeName}", "subscribe"];
const UNSUBSCRIBE: &[&str] = &[
    "configuration",
    "{storeName}",
    "{configurationSubscribeID}",
    "unsubscribe",
];
const GET: Handler = |api, context| Box::pin(api.get_configuration(context));
const START: Handler = |api, context| Box::pin(api.subscribe_configuration(context));
const END: Handler = |api, context| Box::pin(api.unsubscribe_configuration(context));

const fn stable(path: &'static [&'static str], name: &'static str, handler: Handler) -> Endpoint {
    Endpoint::v1(Method::GET, "configuration", path, name, handler)
}

const fn alpha(path: &'static [&'static str], name: &'static str, handler: Handler) -> Endpoint {
    Endpoint::alpha1(Method::GET, "configuration", path, name, handler)
}

impl HttpApi {
    async fn get_configuration(&self, context: Context<'_>) -> HandlerResult {
        let store = context.parameter(0)?;
        let (keys, metadata) = wanted(&context);
        let items = self.blocks.configuration.get(&store, keys, metadata).await?;
        if items.is_empty() {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        }
        let items = items.iter().map(|(key, item)| (key.clone(), item_json(item)));
        let items: Map<String, Value> = items.collect();
        Ok(json_response(StatusCode::OK, &items.into()))
    }

    async fn subscribe_configuration(&self, context: Context<'_>) -> HandlerResult {
        let store = context.parameter(0)?;
        let (keys, metadata) = wanted(&context);
        let subscribed = self.blocks.configuration.subscribe_app(&store, keys, metadata);
        Ok(json_response(StatusCode::OK, &json!({ "id": subscribed.await? })))
    }

    async fn unsubscribe_configuration(&self, context: Context<'_>) -> HandlerResult {
        let (store, id) = (context.parameter(0)?, context.parameter(1)?);
        match self.blocks.configuration.unsubscribe(&store, &id).await {
            Ok(()) => Ok(json_response(StatusCode::OK, &json!({ "ok": true }))),
            // This error has its own form.
            Err(error @ ConfigurationError::Unsubscribe { .. }) => {
                let error = ApiError::from(error);
                self.metrics.error_code(error.counted_as(), error.category);
                Ok(json_response(error.http, &json!({ "message": error.message })))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The keys and metadata of a query string.
fn wanted(context: &Context<'_>) -> (Vec<String>, Pairs) {
    let query = context.request.uri().query().unwrap_or_default();
    let keys = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == "key")
        .map(|(_, key)| key.into_owned());
    (keys.collect(), query_metadata(Some(query)))
}
