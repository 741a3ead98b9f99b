//! Fast path for the most frequent calls, without the layers that streams need. A request that is fully in
//! memory, in one uncompressed message, is decoded, handled and encoded in one step. The generated server
//! handles everything else.

use std::pin::Pin;

use http::{HeaderMap, Request, Response};
use outrigger_transport::body::Body;
use outrigger_transport::grpc::{self, CONTENT_TYPE_GRPC, fields};
use outrigger_wire::runtime::v1::dapr_server::Dapr;
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::{DaprService, Trailers};

/// The future of a handler's response.
type ResponseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send + 'a>>;

/// Headers reserved for the protocol (gRPC over HTTP/2, "Responses").
const RESERVED: [&str; 5] = [
    "te",
    "content-type",
    "grpc-message",
    "grpc-message-type",
    "grpc-status",
];

/// Calls a method of the service by name.
///
/// # Errors
/// The request, if this path does not handle it.
pub(super) async fn call(
    service: &DaprService,
    name: &str,
    request: Request<Body>,
) -> Result<Response<Body>, Request<Body>> {
    let limit = service.max_message;
    match name {
        "InvokeService" => answer(request, limit, |request| service.invoke_service(request)).await,
        "GetState" => answer(request, limit, |request| service.get_state(request)).await,
        "PublishEvent" => answer(request, limit, |request| service.publish_event(request)).await,
        "SaveState" => answer(request, limit, |request| service.save_state(request)).await,
        "DeleteState" => answer(request, limit, |request| service.delete_state(request)).await,
        _ => Err(request),
    }
}

async fn answer<'a, M, T>(
    request: Request<Body>,
    limit: usize,
    call: impl FnOnce(tonic::Request<M>) -> ResponseFuture<'a, T>,
) -> Result<Response<Body>, Request<Body>>
where
    M: Message + Default,
    T: Message,
{
    let Some(message) = message(request.body(), limit) else {
        return Err(request);
    };
    let (head, _) = request.into_parts();
    let metadata = MetadataMap::from_headers(head.headers);
    let request = tonic::Request::from_parts(metadata, head.extensions, message);
    let response = call(request).await.and_then(|answer| response(answer, limit));
    Ok(response.unwrap_or_else(|status| {
        let mut response = grpc::status_response(&status);
        response.extensions_mut().insert(status);
        response
    }))
}

/// The message of a request; `None` if the generated server must handle it.
fn message<M: Message + Default>(body: &Body, limit: usize) -> Option<M> {
    let Body::Full(body) = body else { return None };
    let message = grpc::unframe(body.clone()).ok()?;
    if message.len() > limit || fields::check(&message, &fields::FLAT).is_err() {
        return None;
    }
    M::decode(message).ok()
}

fn response<T: Message>(answer: tonic::Response<T>, limit: usize) -> Result<Response<Body>, Status> {
    let (metadata, message, mut extensions) = answer.into_parts();
    let length = message.encoded_len();
    if length > limit {
        return Err(Status::resource_exhausted(format!(
            "grpc: trying to send message larger than max ({length} vs. {limit})"
        )));
    }
    let mut trailers = grpc::ok_trailers();
    if let Some(Trailers(more)) = extensions.remove() {
        trailers.extend(more);
    }
    let mut response = Response::new(Body::trailed(grpc::frame(&message), trailers));
    *response.headers_mut() = head(metadata.into_headers());
    Ok(response)
}

fn head(mut headers: HeaderMap) -> HeaderMap {
    if !headers.is_empty() {
        for name in RESERVED {
            headers.remove(name);
        }
    }
    headers.insert(http::header::CONTENT_TYPE, CONTENT_TYPE_GRPC);
    headers
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use outrigger_wire::runtime::v1::{GetStateRequest, GetStateResponse};

    use super::*;

    fn ask(key: &str) -> GetStateRequest {
        GetStateRequest {
            key: key.to_owned(),
            ..GetStateRequest::default()
        }
    }

    #[test]
    fn takes_single_plain_messages() {
        let framed = grpc::frame(&ask("k"));
        let whole = |body: Bytes| message::<GetStateRequest>(&body.into(), 100);
        assert_eq!(whole(framed.clone()), Some(ask("k")));
        let mut compressed = framed.to_vec();
        compressed[0] = 1;
        let twice = [&framed[..], &framed[..]].concat();
        let garbage = Bytes::from_static(b"\0\0\0\0\x01\xff");
        for other in [
            compressed.into(),
            twice.into(),
            framed.slice(..framed.len() - 1),
            garbage,
        ] {
            assert_eq!(whole(other), None);
        }
        assert_eq!(whole(grpc::frame(&ask(&"k".repeat(100)))), None);
        assert_eq!(message::<GetStateRequest>(&Body::Empty, 100), None);
        let many = [0x5a, 0].repeat(fields::MAX_FIELDS + 1);
        let body = [&[0, 0, 4, 0, 2][..], &many].concat();
        assert_eq!(
            message::<GetStateRequest>(&Bytes::from(body).into(), usize::MAX),
            None
        );
    }

    #[tokio::test]
    async fn response_drops_reserved_metadata() {
        let mut answer = tonic::Response::new(GetStateResponse::default());
        for (name, value) in [
            ("x-mine", "1"),
            ("grpc-status", "5"),
            ("content-type", "text/plain"),
        ] {
            answer.metadata_mut().insert(name, value.parse().unwrap());
        }
        let mut more = HeaderMap::new();
        more.insert("x-more", "2".parse().unwrap());
        answer.extensions_mut().insert(Trailers(more));
        let response = response(answer, 100).unwrap();
        assert_eq!(response.headers()["x-mine"], "1");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert!(!response.headers().contains_key("grpc-status"));
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-more"]),
            (&"0".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(body.to_bytes(), Bytes::from_static(&[0; 5]));
    }

    #[test]
    fn refuses_too_large_response() {
        let large = GetStateResponse {
            data: vec![0; 101].into(),
            ..GetStateResponse::default()
        };
        let status = response(tonic::Response::new(large), 100).err().unwrap();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    }
}
