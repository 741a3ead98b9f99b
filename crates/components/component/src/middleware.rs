//! HTTP middleware: what stands between a client and an API, or between the sidecar and the app.

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

/// Whatever goes wrong with a body or behind the last middleware.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A body on its way through a pipeline: it streams.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// How a request ended: answered, or broken off by an error that only the end of the pipeline understands.
pub type Outcome = Result<Response<Body>, BoxError>;

/// The other end of the connection a request came over; an extension of the request where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Sees, changes or answers requests.
#[async_trait]
pub trait Middleware: Send + Sync {
    /// Answers `request` itself, or passes it on to `next`. The target of a request is its path and query.
    ///
    /// # Errors
    /// Only what `next` reports.
    async fn handle(&self, request: Request<Body>, next: Next<'_>) -> Outcome;

    /// Ends what the middleware runs.
    async fn close(&self) {}
}

type End<'a> = Box<dyn FnOnce(Request<Body>) -> BoxFuture<'a, Outcome> + Send + 'a>;

/// What comes after a middleware.
pub struct Next<'a> {
    rest: &'a [Arc<dyn Middleware>],
    end: End<'a>,
}

impl<'a> Next<'a> {
    /// Middlewares, outermost first, around `end`.
    pub fn new(
        chain: &'a [Arc<dyn Middleware>],
        end: impl FnOnce(Request<Body>) -> BoxFuture<'a, Outcome> + Send + 'a,
    ) -> Self {
        Self {
            rest: chain,
            end: Box::new(end),
        }
    }

    /// Passes a request on.
    pub async fn run(self, request: Request<Body>) -> Outcome {
        match self.rest.split_first() {
            Some((first, rest)) => first.handle(request, Next { rest, end: self.end }).await,
            None => (self.end)(request).await,
        }
    }
}

/// A body of bytes at hand.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// An answer of a middleware: plain text, the name of the status where nothing else is to be said.
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

    /// Adds its letter to the path on the way in and to the header `seen` on the way out.
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
    async fn the_first_is_the_outermost() {
        let (status, seen, body) = through(&[Arc::new(Mark("a")), Arc::new(Mark("b"))]).await;
        assert_eq!((status, &body[..]), (StatusCode::OK, &b"/ab"[..]));
        assert_eq!(seen, ["b", "a"]);
    }

    #[tokio::test]
    async fn what_one_answers_the_rest_does_not_see() {
        let (status, seen, body) =
            through(&[Arc::new(Mark("a")), Arc::new(Refuse), Arc::new(Mark("b"))]).await;
        assert_eq!(
            (status, &body[..]),
            (StatusCode::TOO_MANY_REQUESTS, &b"Too Many Requests"[..])
        );
        assert_eq!(seen, ["a"]);
    }
}
