//! Messages of the contract in HTTP requests and responses, as proto3 JSON.

use bytes::Bytes;
use http::{Request, StatusCode};
use outrigger_go_json::check_values;
use outrigger_offload::offload;
use outrigger_protojson as protojson;
use outrigger_transport::body::Body;
use outrigger_transport::response::bytes_response;
use prost::Message;

use super::HttpApi;
use super::route::HandlerResult;
use super::unread::body_read;
use crate::error::{ApiError, JSON};

/// Cost per byte here, relative to JSON that is read and written directly.
const REFLECTION: usize = 4;

/// The message `name` from its JSON.
fn decode<M: Message + Default>(name: &str, json: &[u8]) -> Result<M, String> {
    check_values(json)?;
    protojson::decode(name, json)
}

/// As [`decode`], off the serving thread if it is large.
async fn decoded<M: Message + Default + 'static>(name: &'static str, json: Bytes) -> Result<M, String> {
    offload(REFLECTION * json.len(), move || decode(name, &json)).await
}

/// The JSON of a message, written off the serving thread if it is large.
async fn encoded<M: Message + 'static>(name: &'static str, message: M) -> Result<Bytes, String> {
    let size = REFLECTION * message.encoded_len();
    offload(size, move || protojson::encode(name, &message).map(Bytes::from)).await
}

impl HttpApi {
    /// The message in a request.
    pub(super) async fn message<M: Message + Default + 'static>(
        &self,
        name: &'static str,
        request: Request<Body>,
    ) -> Result<M, ApiError> {
        let limit = self.max_body.unwrap_or(usize::MAX);
        let body = request.into_body().collect_up_to(limit).await;
        let body = body.map_err(|error| body_read(&error))?;
        let decoded = decoded(name, body).await;
        decoded.map_err(|cause| ApiError::malformed_message(&cause))
    }

    pub(super) async fn message_response<M: Message + 'static>(
        &self,
        name: &'static str,
        message: M,
    ) -> HandlerResult {
        let json = encoded(name, message).await;
        let json = json.map_err(|cause| ApiError::malformed_response(&cause))?;
        Ok(bytes_response(StatusCode::OK, JSON, json))
    }
}

#[cfg(test)]
mod tests {
    use outrigger_go_json::MAX_VALUES;
    use outrigger_offload::{INLINE, done_at_once};
    use outrigger_transport::grpc::fields;
    use outrigger_wire::internals::v1::JobHttpRequest;
    use outrigger_wire::runtime::v1 as proto;

    use super::*;

    #[tokio::test]
    async fn converts_large_messages_off_thread() {
        let name = "ConversationRequest";
        for (length, at_once) in [(INLINE / REFLECTION / 2, true), (INLINE / REFLECTION, false)] {
            let json = format!(r#"{{"name":"{}"}}"#, "x".repeat(length));
            let (was_at_once, message) = done_at_once(decoded(name, json.into())).await;
            assert_eq!(was_at_once, at_once, "{length} bytes to read");
            let message: proto::ConversationRequest = message.unwrap();
            assert_eq!(message.name.len(), length);
            let (was_at_once, written) = done_at_once(encoded(name, message)).await;
            assert_eq!(was_at_once, at_once, "{length} bytes to write");
            assert!(written.unwrap().len() >= length);
        }
    }

    #[test]
    fn bounds_number_of_values() {
        let job = |count: usize| {
            let text = format!(r#"{{"dueTime":"1h","data":[{}]}}"#, vec!["0"; count].join(","));
            decode::<JobHttpRequest>("JobHTTPRequest", text.as_bytes())
        };
        let read = job(MAX_VALUES - 10).unwrap();
        assert_eq!(read.due_time(), "1h");
        let value = read.data.unwrap().encode_to_vec();
        assert_eq!(
            fields::check(&value, &fields::VALUE),
            Ok(()),
            "it can be scheduled"
        );
        let refused = job(MAX_VALUES).unwrap_err();
        assert!(refused.starts_with("it has more than 65536 values"), "{refused}");
        let text = format!(r#"{{"inputs":[{{"content":"{}"}}]}}"#, "[0,".repeat(MAX_VALUES));
        decode::<proto::ConversationRequest>("ConversationRequest", text.as_bytes()).unwrap();
    }
}
