//! `/v1.0/configuration/…`.

use http::{Response, StatusCode};
use outrigger_component::Pairs;
use serde_json::{Map, Value, json};

use super::route::Parameters;
use super::{Context, HttpApi, query_metadata};
use crate::api::error::{ApiError, empty_response, json_response};
use crate::blocks::configuration::item_json;
use crate::body::Body;

impl HttpApi {
    pub(super) async fn get_configuration(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        let store = match self.parameter("storeName", &parameters[0]) {
            Ok(store) => store,
            Err(response) => return *response,
        };
        let (keys, metadata) = wanted(&context);
        match self.configuration.get(&store, keys, metadata).await {
            Ok(items) if items.is_empty() => empty_response(StatusCode::NO_CONTENT),
            Ok(items) => {
                let items = items.iter().map(|(key, item)| (key.clone(), item_json(item)));
                let items: Map<String, Value> = items.collect();
                json_response(StatusCode::OK, &items.into())
            }
            Err(error) => self.error(error.into()),
        }
    }

    pub(super) async fn subscribe_configuration(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        let store = match self.parameter("storeName", &parameters[0]) {
            Ok(store) => store,
            Err(response) => return *response,
        };
        let (keys, metadata) = wanted(&context);
        match self.configuration.subscribe_app(&store, keys, metadata).await {
            Ok(id) => json_response(StatusCode::OK, &json!({ "id": id })),
            Err(error) => self.error(error.into()),
        }
    }

    pub(super) async fn unsubscribe_configuration(&self, parameters: Parameters) -> Response<Body> {
        use crate::blocks::configuration::ConfigurationError::Unsubscribe;
        let names = self
            .parameter("storeName", &parameters[0])
            .and_then(|store| Ok((store, self.parameter("configurationSubscribeID", &parameters[1])?)));
        let (store, id) = match names {
            Ok(names) => names,
            Err(response) => return *response,
        };
        match self.configuration.unsubscribe(&store, &id).await {
            Ok(()) => json_response(StatusCode::OK, &json!({ "ok": true })),
            // This one failure has a form of its own.
            Err(error @ Unsubscribe { .. }) => {
                let error = ApiError::from(error);
                self.metrics.error_code(error.counted_as(), error.category);
                json_response(error.http, &json!({ "message": error.message }))
            }
            Err(error) => self.error(error.into()),
        }
    }
}

/// The keys and the metadata of a query string.
fn wanted(context: &Context<'_>) -> (Vec<String>, Pairs) {
    let query = context.request.uri().query().unwrap_or_default();
    let keys = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| name == "key")
        .map(|(_, key)| key.into_owned());
    (keys.collect(), query_metadata(Some(query)))
}
