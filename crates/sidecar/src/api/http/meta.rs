//! Metadata, health and shutdown.

use http::{HeaderMap, Request, Response, StatusCode};
use outrigger_policy::escape::query_unescape;

use super::HttpApi;
use crate::api::error::{ApiError, empty_response, json_response, text_response};
use crate::blocks::metadata::{MAX_VALUE, MetadataError};
use crate::body::{Body, TooLarge};

impl HttpApi {
    pub(super) fn get_metadata(&self) -> Response<Body> {
        json_response(StatusCode::OK, &self.metadata.json())
    }

    pub(super) async fn put_metadata(&self, key: String, request: Request<Body>) -> Response<Body> {
        let key = match query_unescape(&key) {
            Ok(key) => key.into_owned(),
            Err(error) => {
                let text = format!("failed to unescape request parameter \"key\". Error: {error}");
                return text_response(StatusCode::BAD_REQUEST, &text);
            }
        };
        let value = match request.into_body().collect_up_to(MAX_VALUE).await {
            Ok(value) => String::from_utf8_lossy(&value).into_owned(),
            Err(error) => {
                let mut text = error.to_string();
                if matches!(error.downcast_ref(), Some(TooLarge { limit }) if *limit == MAX_VALUE) {
                    text = MetadataError::Value.to_string();
                }
                return self.error(ApiError::body_read(&text));
            }
        };
        match self.metadata.set(key, value) {
            Ok(()) => empty_response(StatusCode::NO_CONTENT),
            Err(error) => self.error(ApiError::metadata(&error)),
        }
    }

    pub(super) fn healthz(&self, query: Option<&str>) -> Response<Body> {
        let wanted = query.and_then(|query| {
            url::form_urlencoded::parse(query.as_bytes())
                .find(|(name, _)| name == "appid")
                .map(|(_, id)| id)
        });
        let unready = self.readiness.unready();
        if !unready.is_empty() {
            return self.error(ApiError::not_ready(&unready));
        }
        if wanted.is_some_and(|id| id != *self.app_id) {
            return self.error(ApiError::app_id_mismatch());
        }
        empty_response(StatusCode::NO_CONTENT)
    }

    pub(super) fn outbound_healthz(&self) -> Response<Body> {
        match self.readiness.outbound() {
            Ok(()) => empty_response(StatusCode::NO_CONTENT),
            Err(reason) => self.error(ApiError::outbound_not_ready(reason.as_deref())),
        }
    }

    pub(super) fn request_shutdown(&self, headers: &HeaderMap) -> Response<Body> {
        let forced = headers
            .get("dapr-force-shutdown")
            .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"true"));
        self.shutdown.request(forced);
        empty_response(StatusCode::NO_CONTENT)
    }
}
