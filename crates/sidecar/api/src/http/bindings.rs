//! `/v1.0/bindings/{name}`.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use outrigger_blocks::bindings::attach_trace;
use outrigger_component::Pairs;
use outrigger_component::bindings::Invoke;
use outrigger_go_json::{Html, Strings, canonical};
use outrigger_transport::response::{bytes_response, empty_response};
use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::json::{JsonObject, Object, parse, read, undecoded, value};
use super::route::{Endpoint, HandlerResult};
use super::unread::unread;
use super::{Context, HttpApi};
use crate::error::{ApiError, JSON};

pub(super) static ROUTES: &[Endpoint] = &[invoke(Method::POST), invoke(Method::PUT)];

const fn invoke(method: Method) -> Endpoint {
    let path = &["bindings", "{name}"];
    Endpoint::v1(method, "bindings", path, "InvokeBinding", |api, context| {
        Box::pin(api.invoke_binding(context))
    })
}

/// The request body.
#[derive(Default)]
struct Request<'de> {
    data: Option<&'de RawValue>,
    metadata: Pairs,
    operation: String,
}

impl<'de> Object<'de> for Request<'de> {
    const NAME: &'static str = "an object with operation, data and metadata";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("data") {
            self.data = Some(map.next_value()?);
        } else if is("metadata") {
            Strings(self.metadata) = value(map)?;
        } else if is("operation") {
            self.operation = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Parses a body; the payload is re-encoded as Dapr's encoder does.
fn call(body: &Bytes) -> Result<Invoke, serde_json::Error> {
    let JsonObject(request) = parse::<JsonObject<Request<'_>>>(body)?;
    let data = request.data.map_or("null", RawValue::get);
    Ok(Invoke {
        operation: request.operation,
        data: canonical(data.as_bytes(), Html::Escape)?,
        metadata: request.metadata,
    })
}

impl HttpApi {
    async fn invoke_binding(&self, mut context: Context<'_>) -> HandlerResult {
        let name = context.parameter(0)?;
        context.describe_database("bindings", &name);
        let baggage = super::baggage(context.request.headers())
            .map_err(|error| ApiError::malformed(error.to_string()))?;
        // The API has already limited the body.
        let body = context.request.into_body().collect_up_to(usize::MAX).await;
        let body = body.map_err(|error| unread(&error, ApiError::malformed))?;
        let mut call = read(body, call).await.map_err(undecoded)?;
        attach_trace(&mut call.metadata, &context.span.as_parent(), true);
        if let Some(baggage) = baggage.as_ref().and_then(|value| value.to_str().ok()) {
            call.metadata.insert("baggage".to_owned(), baggage.to_owned());
        }
        match self.blocks.bindings.invoke(&name, &call).await {
            Ok(None) => Ok(empty_response(StatusCode::NO_CONTENT)),
            Ok(Some(answer)) => {
                let mut response = bytes_response(StatusCode::OK, JSON, answer.data);
                add_metadata(&answer.metadata, response.headers_mut());
                Ok(response)
            }
            Err(error) => {
                let mut response = self.error(ApiError::output_binding(&name, &error));
                add_metadata(error.metadata(), response.headers_mut());
                Ok(response)
            }
        }
    }
}

/// Response metadata as headers `metadata.KEY`; invalid headers are dropped.
fn add_metadata(metadata: &Pairs, headers: &mut HeaderMap) {
    for (name, value) in metadata {
        let name = HeaderName::try_from(format!("metadata.{name}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value.as_str())) {
            headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_any_json() {
        let call = |body: &'static str| call(&Bytes::from_static(body.as_bytes()));
        let data = |body| call(body).unwrap().data;
        assert_eq!(
            data(r#"{"operation":"create","data":{"b":1, "a":"<"}}"#),
            r#"{"a":"\u003c","b":1}"#
        );
        assert_eq!(data(r#"{"Data":"text"}"#), r#""text""#);
        assert_eq!(data("{}"), "null");
        assert!(call("{").is_err());
        assert_eq!(
            call(r#"{"metadata":{"path":null}}"#).unwrap().metadata["path"],
            ""
        );
        assert!(call(r#"{"metadata":{"a":1}}"#).is_err());
        assert!(call(r#"{"data":1E400}"#).is_err());
    }
}
