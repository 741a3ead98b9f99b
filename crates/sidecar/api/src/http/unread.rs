//! Errors of request bodies that cannot be read.

use http::StatusCode;
use outrigger_transport::body::{BoxError, TooMuchUnfinished};
use outrigger_transport::error::is_malformed;
use tonic::Code;

use crate::error::ApiError;

/// The error for a body that cannot be read: usually `of_route`. If the sidecar buffers too many incomplete
/// requests it is 503, which is not the client's fault; if the body is malformed it is 400.
pub(super) fn unread(error: &BoxError, of_route: impl FnOnce(String) -> ApiError) -> ApiError {
    if let Some(cause) = error.downcast_ref::<TooMuchUnfinished>() {
        return ApiError::too_much_unfinished(*cause);
    }
    let refused = of_route(error.to_string());
    if !is_malformed(error.as_ref()) {
        return refused;
    }
    ApiError {
        http: StatusCode::BAD_REQUEST,
        grpc: Code::InvalidArgument,
        ..refused
    }
}

/// The same for a route without its own error.
pub(super) fn body_read(error: &BoxError) -> ApiError {
    unread(error, |cause| ApiError::body_read(&cause))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::Arc;

    use bytes::Bytes;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use outrigger_transport::body::{Body, Unfinished, UnfinishedBounds, UnfinishedMemory};

    use super::*;

    static MEMORY: UnfinishedMemory = UnfinishedMemory::new();

    fn pieces(connection: &Arc<Unfinished>, count: usize) -> Body {
        let pieces = (0..count).map(|_| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"piece"))));
        let body = Body::stream(StreamBody::new(stream::iter(pieces.collect::<Vec<_>>())));
        body.counted(Some(Arc::clone(connection)))
    }

    #[tokio::test]
    async fn buffer_limit_is_not_client_error() {
        let bounds = UnfinishedBounds {
            connection: 12,
            process: 100,
        };
        let connection = Unfinished::new(bounds, &MEMORY);
        for _ in 0..3 {
            let whole = pieces(&connection, 2).collect_up_to(100).await.unwrap();
            assert_eq!(whole, "piecepiece");
            let error = pieces(&connection, 3).collect_up_to(100).await.unwrap_err();
            let refused = unread(&error, ApiError::malformed);
            assert_eq!(
                (refused.http, refused.grpc),
                (StatusCode::SERVICE_UNAVAILABLE, Code::ResourceExhausted)
            );
            assert!(refused.message.contains("12 bytes"), "{}", refused.message);
        }
        let too_large = pieces(&connection, 2).collect_up_to(9).await.unwrap_err();
        assert_eq!(body_read(&too_large).http, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn malformed_body_is_client_error() {
        let failed = |kind| BoxError::from(std::io::Error::new(kind, "a cause"));
        let of_route = |cause: String| ApiError::invoke("a", StatusCode::INTERNAL_SERVER_ERROR, &cause);
        for (kind, http) in [
            (ErrorKind::InvalidData, StatusCode::BAD_REQUEST),
            (ErrorKind::InvalidInput, StatusCode::BAD_REQUEST),
            (ErrorKind::TimedOut, StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            assert_eq!(unread(&failed(kind), of_route).http, http, "{kind}");
        }
    }
}
