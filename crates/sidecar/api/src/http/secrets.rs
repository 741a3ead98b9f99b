//! `/v1.0/secrets/…`.

use http::{Method, StatusCode};
use outrigger_transport::response::empty_response;
use serde_json::json;

use super::route::{Endpoint, HandlerResult};
use super::{Context, HttpApi, query_metadata};
use crate::error::json_response;

/// A secret named `bulk` cannot be read alone: the first matching route wins.
pub(super) static ROUTES: &[Endpoint] = &[
    Endpoint::v1(
        Method::GET,
        "secrets",
        &["secrets", "{secretStoreName}", "bulk"],
        "GetBulkSecret",
        |api, context| Box::pin(api.get_bulk_secret(context)),
    ),
    Endpoint::v1(
        Method::GET,
        "secrets",
        &["secrets", "{secretStoreName}", "{key}"],
        "GetSecret",
        |api, context| Box::pin(api.get_secret(context)),
    ),
];

impl HttpApi {
    async fn get_secret(&self, mut context: Context<'_>) -> HandlerResult {
        let (store, key) = (context.parameter(0)?, context.parameter(1)?);
        context.describe_database("secrets", &store);
        let metadata = query_metadata(context.request.uri().query());
        let secret = self.blocks.secrets.get(&store, &key, &metadata).await?;
        if secret.is_empty() {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        }
        Ok(json_response(StatusCode::OK, &json!(secret)))
    }

    async fn get_bulk_secret(&self, mut context: Context<'_>) -> HandlerResult {
        let store = context.parameter(0)?;
        context.describe_database("secrets", &store);
        let metadata = query_metadata(context.request.uri().query());
        let secrets = self.blocks.secrets.bulk_get(&store, &metadata).await?;
        Ok(json_response(StatusCode::OK, &json!(secrets)))
    }
}
