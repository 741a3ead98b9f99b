//! `/v1.0-alpha1/crypto/…`: documents.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use outrigger_blocks::crypto::{CryptoError, EncryptOptions, MissingOption, Output, Provider};
use outrigger_resources::value::truthy;
use outrigger_transport::body::{Body, BoxError};
use outrigger_transport::response::bytes_response;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::route::{Endpoint, Handler, HandlerResult};
use super::{Context, HttpApi};
use crate::error::ApiError;

const KEY: &str = "dapr-key-name";
const ALGORITHM: &str = "dapr-key-wrap-algorithm";
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Output buffered before the response begins, bytes. Until then an error has its own status; later it
/// truncates the response.
const HELD: usize = 1 << 20;

/// How long reading ahead waits for a client that does not read its response.
const READ_AHEAD_WAIT: Duration = Duration::from_millis(100);

pub(super) static ROUTES: &[Endpoint] = &[
    document(&["crypto", "{name}", "encrypt"], "Encrypt", |api, context| {
        Box::pin(api.encrypt(context))
    }),
    document(&["crypto", "{name}", "decrypt"], "Decrypt", |api, context| {
        Box::pin(api.decrypt(context))
    }),
];

const fn document(path: &'static [&'static str], name: &'static str, handler: Handler) -> Endpoint {
    Endpoint::alpha1(Method::PUT, "crypto", path, name, handler)
}

impl HttpApi {
    async fn encrypt(&self, context: Context<'_>) -> HandlerResult {
        let provider = self.provider(&context)?;
        let options = options(context.request.headers())?;
        let output = provider.encrypt(&options, pieces(context.request)).await?;
        self.document(output).await
    }

    async fn decrypt(&self, context: Context<'_>) -> HandlerResult {
        let provider = self.provider(&context)?;
        let key = header(context.request.headers(), KEY).to_owned();
        let output = provider.decrypt(&key, pieces(context.request)).await?;
        self.document(output).await
    }

    fn provider(&self, context: &Context<'_>) -> Result<Arc<Provider>, ApiError> {
        Ok(self.blocks.crypto.provider(&context.parameter(0)?)?)
    }

    /// The whole output if it is small, else a stream.
    async fn document(&self, output: Output) -> HandlerResult {
        let mut output = ahead(output);
        let mut held = BytesMut::new();
        loop {
            match output.next().await {
                Some(Ok(piece)) => held.extend_from_slice(&piece),
                Some(Err(error)) => return Err(ApiError::broken_document(error)),
                None => return Ok(bytes_response(StatusCode::OK, OCTETS, held.freeze())),
            }
            if held.len() > HELD {
                break;
            }
        }
        let begun = stream::iter([Ok(held.freeze())]);
        let rest = output.map(|piece| {
            piece.map_err(|error| -> BoxError {
                let text = ApiError::broken_document(error).message;
                tracing::debug!(target: "dapr.runtime.http", "document truncated: {text}");
                text.into()
            })
        });
        let frames = begun.chain(rest).map(|piece| piece.map(Frame::data));
        let mut response = Response::new(Body::Stream(Box::pin(StreamBody::new(frames))));
        response.headers_mut().insert(http::header::CONTENT_TYPE, OCTETS);
        Ok(response)
    }
}

/// Reads ahead of a client that sends. Many clients send the whole document before they read the response,
/// and would deadlock with a server that stops reading. For them the output waits in memory, up to the body
/// limit. For clients that read while they send, at most [`HELD`] bytes wait.
fn ahead(mut output: Output) -> Output {
    let (sender, receiver) = mpsc::unbounded_channel();
    let places = Arc::new(Semaphore::new(HELD));
    let reading = tokio::spawn(async move {
        let mut may_wait = true;
        while let Some(piece) = output.next().await {
            let size = piece
                .as_ref()
                .map_or(0, |piece| u32::try_from(piece.len()).unwrap_or(u32::MAX));
            let place = Arc::clone(&places);
            let place = if may_wait {
                let waiting = tokio::time::timeout(READ_AHEAD_WAIT, place.acquire_many_owned(size)).await;
                waiting.ok().and_then(Result::ok)
            } else {
                place.try_acquire_many_owned(size).ok()
            };
            may_wait = place.is_some();
            if sender.send((piece, place)).is_err() {
                return;
            }
        }
    });
    // Dropping the output aborts the reading task.
    let held = (receiver, AbortOnDropHandle::new(reading));
    let pieces = stream::unfold(held, |(mut receiver, reading)| async move {
        let (piece, _place) = receiver.recv().await?;
        Some((piece, (receiver, reading)))
    });
    pieces.boxed()
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn options(headers: &HeaderMap) -> Result<EncryptOptions, CryptoError> {
    let with = EncryptOptions::new(header(headers, KEY), header(headers, ALGORITHM));
    let mut with = with.map_err(|missing| {
        let name = match missing {
            MissingOption::Key => KEY,
            MissingOption::Algorithm => ALGORITHM,
        };
        CryptoError::BadRequest(format!("missing header '{name}'"))
    })?;
    header(headers, "dapr-data-encryption-cipher").clone_into(&mut with.cipher);
    with.omit_key = truthy(header(headers, "dapr-omit-decryption-key-name"));
    header(headers, "dapr-decryption-key-name").clone_into(&mut with.decryption_key);
    Ok(with)
}

fn pieces(
    request: Request<Body>,
) -> impl futures::Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static {
    let frames = BodyStream::new(request.into_body().map_err(BoxError::from));
    Box::pin(frames.filter_map(|frame| async {
        match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(error)),
        }
    }))
}
