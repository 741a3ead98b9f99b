//! What leaves: heads, bodies as the windows allow, trailers.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};

use super::open::{exhausted, resource_exhausted};
use super::{Phase, Role, State};
use crate::error::{Cut, Reason};
use crate::frame::{HEAD, Head, Kind, flag};
use crate::head::list_size;
use crate::hpack::Encoder;
use crate::queue::Piece;
use crate::settings::MAX_WINDOW;
use crate::stream::Stream;

/// Bytes on their way out beyond which bodies wait in their streams.
const ENOUGH: usize = 64 * 1024;

/// Streams beyond twice those there are that may wait for the connection's window: some may be over.
const STALE: usize = 64;

impl State {
    /// Sends the head of an answer; false when the stream is gone, or takes nothing more.
    pub(crate) fn respond(&mut self, number: u32, head: &Response<()>, ended: bool) -> bool {
        let most = self.asked.header_list;
        // Most peers have a limit, and hardly any answer comes near it.
        let size = list_size(head.headers(), &[(":status", 3)]);
        if size <= most {
            return self.write_head(number, head, ended);
        }
        let why = Cut::PeerFields { size, limit: most };
        let head = if self.config.grpc {
            resource_exhausted(why.to_string())
        } else {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            head
        };
        self.write_head(number, &head, true);
        false
    }

    fn write_head(&mut self, number: u32, head: &Response<()>, ended: bool) -> bool {
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

    /// Sends the head of a request, as soon as the server allows one more stream; the number of its stream. Who has to
    /// wait gets a `ticket`, which keeps its place, and for which it owes [`Self::stop_waiting`].
    ///
    /// # Errors
    /// The connection takes no more requests, or not such a large head.
    pub(crate) fn poll_open(
        &mut self,
        head: &Request<()>,
        ended: bool,
        ticket: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<Result<u32, Cut>> {
        if self.phase == Phase::Left {
            return Poll::Ready(Err(Cut::Connection));
        }
        let (size, limit) = (request_size(head), self.asked.header_list);
        if size > limit {
            return Poll::Ready(Err(Cut::PeerFields { size, limit }));
        }
        if self.streams.len() >= self.asked.streams as usize {
            self.waited += u64::from(ticket.is_none());
            let ticket = ticket.get_or_insert(self.waited);
            self.waiting.insert(*ticket, cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(ticket) = ticket.take() {
            self.waiting.remove(&ticket);
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
        stream.seen = true;
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
            stream.queue.push(data);
            self.queued += length;
            self.stand_in_line(number);
            self.send_line();
            return true;
        }
        stream.window -= length as i64;
        self.window -= length as i64;
        stream.sent = ended;
        stream.moved = true;
        self.budget.sent(length);
        self.out.data(number, data, ended);
        if ended {
            self.settle(number);
        }
        true
    }

    /// Sends trailers behind what is queued; false when the stream takes no more.
    pub(crate) fn send_trailers(&mut self, number: u32, mut trailers: HeaderMap) -> bool {
        let (size, limit) = (list_size(&trailers, &[]), self.asked.header_list);
        if size > limit {
            let why = Cut::PeerFields { size, limit };
            if self.role == Role::Client || !self.config.grpc {
                self.reset_as(number, Reason::INTERNAL_ERROR, why);
                return false;
            }
            trailers.clear();
            exhausted(&mut trailers, why.to_string());
        }
        let Some(stream) = self.streams.get_mut(&number).filter(|s| !s.ends && !s.sent) else {
            return false;
        };
        stream.ends = true;
        if stream.queue.is_empty() {
            stream.sent = true;
            self.write_trailers(number, &trailers);
            self.settle(number);
        } else {
            stream.queue.push_trailers(trailers);
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

    /// Sends what the windows have room for, a frame of each stream in turn. Streams that wait for the connection's
    /// window are looked at only while it is open: what is done here is in proportion to what is sent, and to what came
    /// into line since.
    pub(crate) fn send_line(&mut self) {
        while self.out.len() < ENOUGH {
            let waited = if self.window > 0 {
                self.without_window.pop_front()
            } else {
                None
            };
            let Some(number) = waited.or_else(|| self.line.pop_front()) else {
                break;
            };
            #[cfg(test)]
            {
                self.visited += 1;
            }
            let Some(stream) = self.streams.get_mut(&number) else {
                continue;
            };
            if !stream.can_send() {
                stream.in_line = false;
            } else if self.window <= 0 && stream.queued > 0 {
                self.wait_for_window(number);
            } else {
                stream.in_line = false;
                self.send_next(number);
                self.stand_in_line(number);
            }
        }
    }

    fn wait_for_window(&mut self, number: u32) {
        self.without_window.push_back(number);
        // Those that are over leave when there are many of them.
        if self.without_window.len() > 2 * self.streams.len() + STALE {
            let streams = &self.streams;
            self.without_window.retain(|number| streams.contains_key(number));
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
                    stream.queue.unpop(data);
                }
                let ended = stream.ends && stream.queue.is_empty();
                stream.window -= now.len() as i64;
                self.window -= now.len() as i64;
                stream.queued -= now.len();
                self.queued -= now.len();
                stream.sent = ended;
                stream.moved = true;
                stream.wake_writer();
                self.budget.sent(now.len());
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

/// Bytes of a request's list of fields.
fn request_size(head: &Request<()>) -> usize {
    let uri = head.uri();
    let pseudo = [
        (":method", head.method().as_str().len()),
        (":scheme", uri.scheme_str().map_or(4, str::len)),
        (
            ":authority",
            uri.authority().map_or(0, |name| name.as_str().len()),
        ),
        (
            ":path",
            uri.path_and_query().map_or(1, |path| path.as_str().len()),
        ),
    ];
    list_size(head.headers(), &pseudo)
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
