//! A body on its way out.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body;

use crate::encode::Framing;
use crate::out::Out;

/// Any failure of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is being sent.
#[derive(Debug)]
pub(crate) struct Sending {
    framing: Framing,
    /// Once there is no more to send.
    pub(crate) result: Option<Result<(), BoxError>>,
}

impl Sending {
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            framing,
            result: framing.is_complete().then_some(Ok(())),
        }
    }

    /// Adds what the body has at hand. Whether more has to be waited for.
    pub(crate) fn gather<B>(&mut self, body: &mut B, out: &mut Out, cx: &mut Context<'_>) -> bool
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        while self.result.is_none() && !out.must_be_written() {
            if body.is_end_stream() {
                self.end(None, out);
                continue;
            }
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(mismatch) = self.framing.data(data, out) {
                            self.result = Some(Err(mismatch.into()));
                        }
                    }
                    Err(frame) => self.end(frame.trailers_ref(), out),
                },
                Poll::Ready(Some(Err(error))) => self.result = Some(Err(error.into())),
                Poll::Ready(None) => self.end(None, out),
                Poll::Pending => return true,
            }
        }
        false
    }

    fn end(&mut self, trailers: Option<&HeaderMap>, out: &mut Out) {
        let ended = self.framing.end(trailers, out);
        self.result = Some(ended.map_err(Into::into));
    }
}
