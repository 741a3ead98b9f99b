//! Metadata, health and shutdown.

mod metadata;

use futures::future::{BoxFuture, FutureExt, ready};
use http::{HeaderMap, Method, StatusCode};
use outrigger_transport::body::TooLarge;
use outrigger_transport::response::empty_response;

use super::route::{Endpoint, HandlerResult};
use super::unread::unread;
use super::{Context, HttpApi};
use crate::error::{ApiError, json_response};
use crate::metadata::{MAX_VALUE, MetadataError};

/// The group of health in allow and deny lists.
pub(super) const HEALTH: &str = "healthz";

pub(super) static ROUTES: &[Endpoint] = &[
    Endpoint::v1(Method::GET, HEALTH, &["healthz"], "Healthz", |api, context| {
        now(api.healthz(context.request.uri().query()))
    })
    .public(),
    Endpoint::v1(
        Method::GET,
        HEALTH,
        &["healthz", "outbound"],
        "HealthzOutbound",
        |api, _| now(api.outbound_healthz()),
    )
    .public(),
    Endpoint::v1(Method::GET, "metadata", &["metadata"], "GetMetadata", |api, _| {
        now(api.get_metadata())
    })
    .public(),
    Endpoint::v1(
        Method::PUT,
        "metadata",
        &["metadata", "{key}"],
        "PutMetadata",
        |api, context| Box::pin(api.put_metadata(context)),
    ),
    Endpoint::v1(
        Method::POST,
        "shutdown",
        &["shutdown"],
        "Shutdown",
        |api, context| now(api.request_shutdown(context.request.headers())),
    ),
];

/// A response that is ready at once.
fn now<'a>(answer: HandlerResult) -> BoxFuture<'a, HandlerResult> {
    ready(answer).boxed()
}

impl HttpApi {
    fn get_metadata(&self) -> HandlerResult {
        Ok(json_response(
            StatusCode::OK,
            &metadata::json(self.metadata.message()),
        ))
    }

    async fn put_metadata(&self, context: Context<'_>) -> HandlerResult {
        let key = context.parameter(0)?;
        let value = match context.request.into_body().collect_up_to(MAX_VALUE).await {
            Ok(value) => String::from_utf8_lossy(&value).into_owned(),
            Err(error) => {
                let mut text = error.to_string();
                if matches!(error.downcast_ref(), Some(TooLarge { limit }) if *limit == MAX_VALUE) {
                    text = MetadataError::Value.to_string();
                }
                return Err(unread(&error, |_| ApiError::body_read(&text)));
            }
        };
        self.metadata
            .set(key, value)
            .map_err(|error| ApiError::metadata(&error))?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    fn healthz(&self, query: Option<&str>) -> HandlerResult {
        let wanted = query.and_then(|query| {
            url::form_urlencoded::parse(query.as_bytes())
                .find(|(name, _)| name == "appid")
                .map(|(_, id)| id)
        });
        let unready = self.readiness.unready();
        if !unready.is_empty() {
            return Err(ApiError::not_ready(&unready));
        }
        if wanted.is_some_and(|id| id != *self.app_id) {
            return Err(ApiError::app_id_mismatch());
        }
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    fn outbound_healthz(&self) -> HandlerResult {
        self.readiness
            .outbound()
            .map_err(|reason| ApiError::outbound_not_ready(reason.as_deref()))?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    fn request_shutdown(&self, headers: &HeaderMap) -> HandlerResult {
        let forced = headers
            .get("dapr-force-shutdown")
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"true"));
        self.shutdown.request(forced);
        Ok(empty_response(StatusCode::NO_CONTENT))
    }
}
