//! `/v1.0/configuration/…`.

use http::{Response, StatusCode};
use outrigger_component::Pairs;
use serde_json::{Map, Value, json};

use super::route::Parameters;
use super::{Context, HttpApi, query_metadata};
use crate::api::error::{ApiError, empty_response, json_response};
use crate::blocks::configuration::item_json;
use crate::body::Body;

/// An answer; the error is one as well, to what could not be read.
type Answer = Result<Response<Body>, Box<Response<Body>>>;

fn either(answer: Answer) -> Response<Body> {
    answer.unwrap_or_else(|refusal| *refusal)
}

impl HttpApi {
    pub(super) async fn get_configuration(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        either(self.configuration_items(&parameters, context).await)
    }

    pub(super) async fn subscribe_configuration(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        either(self.configuration_subscription(&parameters, context).await)
    }

    pub(super) async fn unsubscribe_configuration(&self, parameters: Parameters) -> Response<Body> {
        either(self.end_of_subscription(&parameters).await)
    }

    async fn configuration_items(&self, parameters: &Parameters, context: Context<'_>) -> Answer {
        let store = self.parameter("storeName", &parameters[0])?;
        let (keys, metadata) = wanted(&context);
        Ok(
            match self.blocks.configuration.get(&store, keys, metadata).await {
                Ok(items) if items.is_empty() => empty_response(StatusCode::NO_CONTENT),
                Ok(items) => {
                    let items = items.iter().map(|(key, item)| (key.clone(), item_json(item)));
                    let items: Map<String, Value> = items.collect();
                    json_response(StatusCode::OK, &items.into())
                }
                Err(error) => self.error(error.into()),
            },
        )
    }

    async fn configuration_subscription(&self, parameters: &Parameters, context: Context<'_>) -> Answer {
        let store = self.parameter("storeName", &parameters[0])?;
        let (keys, metadata) = wanted(&context);
        Ok(
            match self
                .blocks
                .configuration
                .subscribe_app(&store, keys, metadata)
                .await
            {
                Ok(id) => json_response(StatusCode::OK, &json!({ "id": id })),
                Err(error) => self.error(error.into()),
            },
        )
    }

    async fn end_of_subscription(&self, parameters: &Parameters) -> Answer {
        use crate::blocks::configuration::ConfigurationError::Unsubscribe;
        let store = self.parameter("storeName", &parameters[0])?;
        let id = self.parameter("configurationSubscribeID", &parameters[1])?;
        Ok(match self.blocks.configuration.unsubscribe(&store, &id).await {
            Ok(()) => json_response(StatusCode::OK, &json!({ "ok": true })),
            // This one failure has a form of its own.
            Err(error @ Unsubscribe { .. }) => {
                let error = ApiError::from(error);
                self.metrics.error_code(error.counted_as(), error.category);
                json_response(error.http, &json!({ "message": error.message }))
            }
            Err(error) => self.error(error.into()),
        })
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
