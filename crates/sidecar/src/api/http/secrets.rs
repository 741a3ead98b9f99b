//! `/v1.0/secrets/…`.

use http::{Response, StatusCode};
use serde_json::json;

use super::route::Parameters;
use super::{Context, HttpApi, query_metadata};
use crate::api::error::{empty_response, json_response};
use crate::body::Body;

impl HttpApi {
    pub(super) async fn get_secret(&self, parameters: Parameters, context: Context<'_>) -> Response<Body> {
        let names = self
            .parameter("secretStoreName", &parameters[0])
            .and_then(|store| Ok((store, self.parameter("key", &parameters[1])?)));
        let (store, key) = match names {
            Ok(names) => names,
            Err(response) => return *response,
        };
        self.describe_database("secrets", &store, context.span, &context.request);
        let metadata = query_metadata(context.request.uri().query());
        match self.blocks.secrets.get(&store, &key, &metadata).await {
            Ok(secret) if secret.is_empty() => empty_response(StatusCode::NO_CONTENT),
            Ok(secret) => json_response(StatusCode::OK, &json!(secret)),
            Err(error) => self.error(error.into()),
        }
    }

    pub(super) async fn get_bulk_secret(
        &self,
        parameters: Parameters,
        context: Context<'_>,
    ) -> Response<Body> {
        let store = match self.parameter("secretStoreName", &parameters[0]) {
            Ok(store) => store,
            Err(response) => return *response,
        };
        self.describe_database("secrets", &store, context.span, &context.request);
        let metadata = query_metadata(context.request.uri().query());
        match self.blocks.secrets.bulk_get(&store, &metadata).await {
            Ok(secrets) => json_response(StatusCode::OK, &json!(secrets)),
            Err(error) => self.error(error.into()),
        }
    }
}
