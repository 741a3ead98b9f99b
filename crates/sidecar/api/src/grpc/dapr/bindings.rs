//! Bindings.

use http::{HeaderMap, HeaderName, HeaderValue};
use outrigger_blocks::bindings::attach_trace;
use outrigger_component::Pairs;
use outrigger_component::bindings::Invoke;
use outrigger_telemetry::trace::Baggage;
use outrigger_transport::headers::names;
use outrigger_wire::runtime::v1::{InvokeBindingRequest, InvokeBindingResponse};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;
use crate::grpc::{CurrentSpan, describe_database};

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of("bindings", "v1", &["InvokeBinding"])];

impl DaprService {
    pub(super) async fn binding_invoke(
        &self,
        request: Request<InvokeBindingRequest>,
    ) -> Result<Response<InvokeBindingResponse>, Status> {
        describe_database(&request, "bindings", &request.get_ref().name);
        let span = request.extensions().get::<CurrentSpan>();
        let trace = span.map(|span| span.0.clone()).unwrap_or_default();
        let (metadata, _, message) = request.into_parts();
        let mut call = Invoke {
            operation: message.operation,
            data: message.data,
            metadata: message.metadata,
        };
        attach_trace(&mut call.metadata, &trace, false);
        add_headers(&mut call.metadata, &metadata.into_headers())?;
        match self.blocks.bindings.invoke(&message.name, &call).await {
            Ok(answer) => {
                let answer = answer.unwrap_or_default();
                let headers = response_headers(&answer.metadata);
                let message = InvokeBindingResponse {
                    data: answer.data,
                    metadata: answer.metadata,
                };
                let headers = MetadataMap::from_headers(headers);
                Ok(Response::from_parts(headers, message, http::Extensions::new()))
            }
            Err(error) => {
                let mut status = self.fail(&ApiError::output_binding(&message.name, &error));
                let headers = response_headers(error.metadata());
                *status.metadata_mut() = MetadataMap::from_headers(headers);
                Err(status)
            }
        }
    }
}

/// Adds the caller's gRPC metadata to the request metadata. Request metadata win, except over trace metadata.
fn add_headers(metadata: &mut Pairs, headers: &HeaderMap) -> Result<(), Status> {
    let baggage = Baggage::from_headers(headers);
    if let Some((baggage, _)) = baggage.map_err(|error| Status::invalid_argument(error.to_string()))? {
        metadata.insert(names::BAGGAGE.as_str().to_owned(), baggage);
    }
    for name in headers.keys() {
        let Some(value) = headers.get(name) else { continue };
        let of_trace = *name == names::TRACEPARENT || *name == names::TRACESTATE;
        let key = if name.as_str().starts_with("grpc-") {
            format!("dapr-{name}")
        } else {
            name.as_str().to_owned()
        };
        if of_trace || !metadata.contains_key(&key) {
            metadata.insert(key, text(value));
        }
    }
    Ok(())
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Response metadata as gRPC metadata `metadata.KEY`.
fn response_headers(metadata: &Pairs) -> HeaderMap {
    let items = metadata.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(format!("metadata.{name}")).ok()?;
        Some((name, HeaderValue::try_from(value.as_str()).ok()?))
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_grpc_metadata() {
        let mut metadata = Pairs::from([
            ("mine".to_owned(), "1".to_owned()),
            ("traceparent".to_owned(), "span".to_owned()),
        ]);
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("mine", "2"),
            ("other", "3"),
            ("grpc-timeout", "1S"),
            ("traceparent", "caller"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.append(names::BAGGAGE, HeaderValue::from_static("a=1"));
        headers.append(names::BAGGAGE, HeaderValue::from_static("b=2"));
        add_headers(&mut metadata, &headers).unwrap();
        assert_eq!(metadata["mine"], "1");
        assert_eq!(metadata["other"], "3");
        assert_eq!(metadata["dapr-grpc-timeout"], "1S");
        assert_eq!(metadata["traceparent"], "caller");
        assert_eq!(metadata["baggage"], "a=1,b=2");
        headers.insert(names::BAGGAGE, HeaderValue::from_static("="));
        assert!(add_headers(&mut metadata, &headers).is_err());
    }
}
