//! `middleware.http.uppercase`: uppercases bodies, for testing pipelines.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use outrigger_component::middleware::{Body, BoxError, Next, Outcome, full};
use outrigger_component::{Catalog, Entry, Middleware, catalog::Version};

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .middleware
        .add(Entry::new(&["uppercase"], Version::Only, |setup| async move {
            let direction = setup.metadata.text(&["direction"]).unwrap_or_default();
            // Like in Dapr, any other word means the request.
            let (request, response) = match direction.to_lowercase().as_str() {
                "response" => (false, true),
                "both" => (true, true),
                _ => (true, false),
            };
            Ok(Arc::new(Uppercase { request, response }) as Arc<dyn Middleware>)
        }));
}

struct Uppercase {
    request: bool,
    response: bool,
}

#[async_trait]
impl Middleware for Uppercase {
    async fn handle(&self, mut request: Request<Body>, next: Next<'_>) -> Outcome {
        if self.request {
            let (mut head, body) = request.into_parts();
            let body = uppercase_body(&mut head.headers, body).await?;
            request = Request::from_parts(head, body);
        }
        let mut response = next.run(request).await?;
        if self.response {
            let (mut head, body) = response.into_parts();
            let body = uppercase_body(&mut head.headers, body).await?;
            response = Response::from_parts(head, body);
        }
        Ok(response)
    }
}

/// Maximum body size that is buffered to keep its length known.
const MAX_BUFFERED: u64 = 4 * 1024 * 1024;

/// Uppercases a body, if any. Uppercasing may change the number of bytes, so the length of a large body is
/// unknown until its end.
async fn uppercase_body(headers: &mut HeaderMap, body: Body) -> Result<Body, BoxError> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    match body.size_hint().exact().or(announced) {
        Some(0) => Ok(body),
        Some(length) if length <= MAX_BUFFERED => {
            let whole = uppercase_frames(body).collect().await?;
            if whole.trailers().is_some() {
                headers.remove(CONTENT_LENGTH);
                return Ok(whole.map_err(|never| match never {}).boxed_unsync());
            }
            let whole = whole.to_bytes();
            if headers.contains_key(CONTENT_LENGTH) {
                headers.insert(CONTENT_LENGTH, whole.len().into());
            }
            Ok(full(whole))
        }
        _ => {
            headers.remove(CONTENT_LENGTH);
            Ok(uppercase_frames(body))
        }
    }
}

/// Uppercases data frames; trailers stay unchanged.
fn uppercase_frames(body: Body) -> Body {
    let start = (Some(body), Vec::new(), None);
    let frames = stream::try_unfold(start, |(mut body, mut rest, mut trailers)| async move {
        if let Some(trailers) = trailers.take() {
            return Ok(Some((trailers, (body, rest, None))));
        }
        while let Some(open) = &mut body {
            let frame = match open.frame().await {
                None => {
                    body = None;
                    Frame::data(Bytes::from(std::mem::take(&mut rest)))
                }
                Some(frame) => match frame?.into_data() {
                    Ok(data) => Frame::data(convert(&mut rest, &data)),
                    Err(frame) if rest.is_empty() => frame,
                    // Leftover data precedes them.
                    Err(frame) => {
                        trailers = Some(frame);
                        Frame::data(Bytes::from(std::mem::take(&mut rest)))
                    }
                },
            };
            // The start of a split letter produces no output yet.
            if frame.data_ref().is_none_or(|data| !data.is_empty()) {
                return Ok(Some((frame, (body, rest, trailers))));
            }
        }
        Ok::<_, BoxError>(None)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Uppercases the leftover and `piece`, and keeps the start of a split letter. Invalid UTF-8 stays unchanged.
fn convert(rest: &mut Vec<u8>, piece: &[u8]) -> Bytes {
    rest.extend_from_slice(piece);
    let given = std::mem::take(rest);
    let mut out = Vec::with_capacity(given.len());
    let mut left = given.as_slice();
    loop {
        let (valid, error) = match std::str::from_utf8(left) {
            Ok(text) => (text, None),
            Err(error) => (
                std::str::from_utf8(&left[..error.valid_up_to()]).unwrap_or_default(),
                Some(error),
            ),
        };
        let mut buffer = [0; 4];
        for letter in valid.chars() {
            out.extend_from_slice(uppercase_letter(letter).encode_utf8(&mut buffer).as_bytes());
        }
        let Some(error) = error else { break };
        left = &left[error.valid_up_to()..];
        let Some(length) = error.error_len() else {
            rest.extend_from_slice(left);
            break;
        };
        out.extend_from_slice(&left[..length]);
        left = &left[length..];
    }
    Bytes::from(out)
}

/// The uppercase letter; letters that expand to several stay unchanged.
fn uppercase_letter(letter: char) -> char {
    let mut uppercase_frames = letter.to_uppercase();
    match (uppercase_frames.next(), uppercase_frames.next()) {
        (Some(one), None) => one,
        _ => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_split_characters() {
        let text = "hello, größe ñandú!";
        for cut in 0..=text.len() {
            let mut rest = Vec::new();
            let mut out = convert(&mut rest, &text.as_bytes()[..cut]).to_vec();
            out.extend_from_slice(&convert(&mut rest, &text.as_bytes()[cut..]));
            assert_eq!(
                std::str::from_utf8(&out).unwrap(),
                "HELLO, GRÖßE ÑANDÚ!",
                "cut at {cut}"
            );
            assert!(rest.is_empty());
        }
    }

    #[tokio::test]
    async fn keeps_invalid_utf8() {
        let body = outrigger_component::middleware::full(&b"a\xffb\xc3"[..]);
        let out = uppercase_frames(body).collect().await.unwrap().to_bytes();
        assert_eq!(&out[..], b"A\xffB\xc3");
    }
}
