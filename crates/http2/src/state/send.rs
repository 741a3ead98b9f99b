//! What leaves: heads, bodies as the windows allow, trailers.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};

use super::{Phase, State};
use crate::error::Cut;
use crate::frame::{HEAD, Head, Kind, flag};
use crate::hpack::Encoder;
use crate::settings::MAX_WINDOW;
use crate::stream::{Piece, Stream};

/// Bytes on their way out beyond which bodies wait in their streams.
const ENOUGH: usize = 64 * 1024;

impl State {
    /// Sends the head of an answer; false when the stream is gone.
    pub(crate) fn respond(&mut self, number: u32, head: &Response<()>, ended: bool) -> bool {
        let Some(stream) = self.streams.get_mut(&number).filter(|s| !s.sent) else {
            return false;
        };
        stream.ends = ended;
        stream.sent = ended;
        self.write_block(number, ended, |encoder, out| {
            encoder.status(head.status(), out);
            for (name, value) in head.headers() {
                encoder.field(name, value, out);
            }
        });
        if ended {
            self.settle(number);
        }
        true
    }

    /// Sends the head of a request, as soon as the server allows one more stream; the number of its stream.
    ///
    /// # Errors
    /// The connection takes no more requests.
    pub(crate) fn poll_open(
        &mut self,
        head: &Request<()>,
        ended: bool,
        cx: &Context<'_>,
    ) -> Poll<Result<u32, Cut>> {
        if self.phase == Phase::Left {
            return Poll::Ready(Err(Cut::Connection));
        }
        if self.streams.len() >= self.asked.streams as usize {
            if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                self.waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let number = if self.last == 0 { 1 } else { self.last + 2 };
        if number > MAX_WINDOW {
            self.finish();
            return Poll::Ready(Err(Cut::Connection));
        }
        self.last = number;
        let mut stream = Stream::new(self.config.stream_window, self.asked.window);
        stream.ends = ended;
        stream.sent = ended;
        self.insert(number, stream);
        self.write_block(number, ended, |encoder, out| {
            let uri = head.uri();
            encoder.method(head.method(), out);
            encoder.scheme(uri.scheme_str().unwrap_or("http"), out);
            if let Some(authority) = uri.authority() {
                encoder.authority(authority.as_str().as_bytes(), out);
            }
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            encoder.path(path.as_bytes(), out);
            for (name, value) in head.headers() {
                encoder.field(name, value, out);
            }
        });
        Poll::Ready(Ok(number))
    }

    /// Sends data, or queues it until there is room; false when the stream takes no more.
    pub(crate) fn send_data(&mut self, number: u32, data: Bytes, ended: bool) -> bool {
        let Some(stream) = self.streams.get_mut(&number).filter(|s| !s.ends && !s.sent) else {
            return false;
        };
        stream.ends = ended;
        let length = data.len();
        let fits = length <= self.asked.frame
            && stream.queue.is_empty()
            && stream.window >= length as i64
            && self.window >= length as i64
            && self.out.len() < ENOUGH;
        if !fits {
            stream.queued += length;
            stream.queue.push(Piece::Data(data));
            self.stand_in_line(number);
            self.send_line();
            return true;
        }
        stream.window -= length as i64;
        self.window -= length as i64;
        stream.sent = ended;
        self.out.data(number, data, ended);
        if ended {
            self.settle(number);
        }
        true
    }

    /// Sends trailers behind what is queued; false when the stream takes no more.
    pub(crate) fn send_trailers(&mut self, number: u32, trailers: HeaderMap) -> bool {
        let Some(stream) = self.streams.get_mut(&number).filter(|s| !s.ends && !s.sent) else {
            return false;
        };
        stream.ends = true;
        if stream.queue.is_empty() {
            stream.sent = true;
            self.write_trailers(number, &trailers);
            self.settle(number);
        } else {
            stream.queue.push(Piece::Trailers(trailers));
            self.stand_in_line(number);
        }
        true
    }

    fn write_trailers(&mut self, number: u32, trailers: &HeaderMap) {
        self.write_block(number, true, |encoder, out| {
            for (name, value) in trailers {
                encoder.field(name, value, out);
            }
        });
    }

    /// Writes a block of fields as one HEADERS frame, or as many frames as the peer's limit makes of it.
    fn write_block(&mut self, stream: u32, ended: bool, fields: impl FnOnce(&mut Encoder, &mut BytesMut)) {
        let (out, limit) = (self.out.tail(), self.asked.frame);
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        self.encoder.begin(out);
        fields(&mut self.encoder, out);
        let length = out.len() - start - HEAD;
        let ended = if ended { flag::END_STREAM } else { 0 };
        if length > limit {
            let block = out.split_off(start + HEAD);
            out.truncate(start);
            return continued(out, stream, ended, &block, limit);
        }
        let head = Head {
            length,
            kind: Kind::Headers,
            flags: ended | flag::END_HEADERS,
            stream,
        };
        out[start..start + HEAD].copy_from_slice(&head.bytes());
    }

    pub(super) fn stand_in_line(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && stream.can_send()
            && !stream.in_line
        {
            stream.in_line = true;
            self.line.push_back(number);
        }
    }

    /// Sends what the windows have room for, a frame of each stream in turn.
    pub(crate) fn send_line(&mut self) {
        // Streams that wait for nothing but the connection's window stay in line.
        let mut without_room = 0;
        while self.out.len() < ENOUGH && without_room < self.line.len() {
            let Some(number) = self.line.pop_front() else {
                break;
            };
            let Some(stream) = self.streams.get_mut(&number) else {
                continue;
            };
            if !stream.can_send() {
                stream.in_line = false;
            } else if self.window <= 0 && stream.queued > 0 {
                self.line.push_back(number);
                without_room += 1;
            } else {
                stream.in_line = false;
                without_room = 0;
                self.send_next(number);
                self.stand_in_line(number);
            }
        }
    }

    /// Sends one frame of a stream.
    fn send_next(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        match stream.queue.pop() {
            Some(Piece::Data(mut data)) => {
                let room = usize::try_from(stream.window.min(self.window)).unwrap_or(0);
                let now = data.split_to(room.min(self.asked.frame).min(data.len()));
                if !data.is_empty() {
                    stream.queue.unpop(Piece::Data(data));
                }
                let ended = stream.ends && stream.queue.is_empty();
                stream.window -= now.len() as i64;
                self.window -= now.len() as i64;
                stream.queued -= now.len();
                stream.sent = ended;
                stream.wake_writer();
                self.out.data(number, now, ended);
                if ended {
                    self.settle(number);
                }
            }
            Some(Piece::Trailers(trailers)) => {
                stream.sent = true;
                self.write_trailers(number, &trailers);
                self.settle(number);
            }
            None => {}
        }
    }
}

/// Writes a block that is too large for one frame.
fn continued(out: &mut BytesMut, stream: u32, ended: u8, block: &[u8], limit: usize) {
    let pieces = block.chunks(limit);
    let last = pieces.len() - 1;
    for (n, piece) in pieces.enumerate() {
        let (kind, flags) = match n {
            0 => (Kind::Headers, ended),
            _ if n == last => (Kind::Continuation, flag::END_HEADERS),
            _ => (Kind::Continuation, 0),
        };
        let head = Head {
            length: piece.len(),
            kind,
            flags,
            stream,
        };
        out.extend_from_slice(&head.bytes());
        out.extend_from_slice(piece);
    }
}
