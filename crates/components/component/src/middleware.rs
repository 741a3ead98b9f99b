//! HTTP middleware between a client and the API, or between the sidecar and the app.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// An error of a body or of the end of the pipeline.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A streaming body in a pipeline.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A response, or an error for the end of the pipeline.
pub type Outcome = Result<Response<Body>, BoxError>;

/// Remote address of the connection, a request extension if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Inspects, changes or answers requests.
#[async_trait]
pub trait Middleware: Send + Sync {
    /// Answers `request` or passes it to `next`. The target of a request is its path and query.
    ///
    /// # Errors
    /// Only errors from `next`.
    async fn handle(&self, request: Request<Body>, next: Next<'_>) -> Outcome;

    /// Stops the middleware's tasks.
    async fn close(&self) {}
}

type End<'a> = Box<dyn FnOnce(Request<Body>) -> BoxFuture<'a, Outcome> + Send + 'a>;

/// The rest of a pipeline.
pub struct Next<'a> {
    rest: &'a [Arc<dyn Middleware>],
    end: End<'a>,
}

impl<'a> Next<'a> {
    /// Middlewares around `end`, outermost first.
    pub fn new(
        chain: &'a [Arc<dyn Middleware>],
        end: impl FnOnce(Request<Body>) -> BoxFuture<'a, Outcome> + Send + 'a,
    ) -> Self {
        Self {
            rest: chain,
            end: Box::new(end),
        }
    }

    /// Passes the request on.
    pub async fn run(self, request: Request<Body>) -> Outcome {
        match self.rest.split_first() {
            Some((first, rest)) => first.handle(request, Next { rest, end: self.end }).await,
            None => (self.end)(request).await,
        }
    }
}

/// A body from bytes in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A plain-text response; the status name if there is no text.
pub fn answer(status: StatusCode, text: Option<&str>) -> Response<Body> {
    let text = text.unwrap_or_else(|| status.canonical_reason().unwrap_or_default());
    let mut response = Response::new(full(text.to_owned()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(CONTENT_LENGTH, text.len().into());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds its letter to the path of the request and to the header `seen` of the response.
    struct Mark(&'static str);

    #[async_trait]
    impl Middleware for Mark {
        async fn handle(&self, mut request: Request<Body>, next: Next<'_>) -> Outcome {
            let path = format!("{}{}", request.uri(), self.0);
            *request.uri_mut() = path.parse().unwrap();
            let mut response = next.run(request).await?;
            response
                .headers_mut()
                .append("seen", HeaderValue::from_static(self.0));
            Ok(response)
        }
    }

    struct Refuse;

    #[async_trait]
    impl Middleware for Refuse {
        async fn handle(&self, _request: Request<Body>, _next: Next<'_>) -> Outcome {
            Ok(answer(StatusCode::TOO_MANY_REQUESTS, None))
        }
    }

    async fn through(chain: &[Arc<dyn Middleware>]) -> (StatusCode, Vec<HeaderValue>, Bytes) {
        let end = |request: Request<Body>| -> BoxFuture<'_, Outcome> {
            Box::pin(async move { Ok(Response::new(full(request.uri().to_string()))) })
        };
        let request = Request::new(full(""));
        let (head, body) = Next::new(chain, end).run(request).await.unwrap().into_parts();
        let seen = head.headers.get_all("seen").iter().cloned().collect();
        (head.status, seen, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn first_middleware_is_outermost() {
        let (status, seen, body) = through(&[Arc::new(Mark("a")), Arc::new(Mark("b"))]).await;
        assert_eq!((status, &body[..]), (StatusCode::OK, &b"/ab"[..]));
        assert_eq!(seen, ["b", "a"]);
    }

    #[tokio::test]
    async fn answer_ends_the_pipeline() {
        let (status, seen, body) =
            through(&[Arc::new(Mark("a")), Arc::new(Refuse), Arc::new(Mark("b"))]).await;
        assert_eq!(
            (status, &body[..]),
            (StatusCode::TOO_MANY_REQUESTS, &b"Too Many Requests"[..])
        );
        assert_eq!(seen, ["a"]);
    }
}
