//! Output: heads, bodies as the windows allow, trailers.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};

use super::headers::{exhausted, resource_exhausted};
use super::{Phase, Role, State};
use crate::error::{Reason, StreamError};
use crate::fields::list_size;
use crate::frame::{HEAD, Head, Kind, flag};
use crate::hpack::Encoder;
use crate::limits::{MAX_UNREAD_FEW_STREAMS, UNREAD, UNREAD_STREAMS};
use crate::queue::Piece;
use crate::settings::MAX_WINDOW;
use crate::stream::{RecvHead, StreamState};

/// Bytes in the write buffer above which bodies wait in their streams.
const WRITE_TARGET: usize = 64 * 1024;

/// Entries tolerated in the queue for the connection's window beyond twice the number of streams: some may
/// be stale.
const STALE: usize = 64;

impl State {
    /// Sends the head of a response; false if the stream is gone or closed for sending.
    pub(crate) fn respond(&mut self, id: u32, head: &Response<()>, ended: bool) -> bool {
        let most = self.peer.max_header_list_size;
        // Most peers have a limit, but few responses come near it.
        let size = list_size(head.headers(), &[(":status", 3)]);
        if size <= most {
            return self.write_head(id, head, ended);
        }
        let error = StreamError::PeerHeaderListLimit { size, limit: most };
        if self.config.grpc {
            self.write_head(id, &resource_exhausted(error.to_string()), true);
        } else {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            self.write_head(id, &head, false);
            self.send_data(id, error.to_string().into(), true);
        }
        false
    }

    fn write_head(&mut self, id: u32, head: &Response<()>, ended: bool) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.is_send_open()) else {
            return false;
        };
        stream.end_queued = ended;
        if ended {
            stream.state.close_send();
        }
        self.write_block(id, ended, |encoder, out| {
            encoder.status(head.status(), out);
            for (name, value) in head.headers() {
                encoder.field(name, value, out);
            }
        });
        if ended {
            self.close_if_unused(id);
        }
        true
    }

    /// Sends the head of a request once the server allows another stream, and returns the stream's
    /// identifier. While it waits, the caller holds a `ticket` for its place, and must call
    /// [`Self::cancel_open`] to give it up.
    ///
    /// # Errors
    /// The connection accepts no new requests, or the head is too large.
    pub(crate) fn poll_open(
        &mut self,
        head: &Request<()>,
        ended: bool,
        ticket: &mut Option<u64>,
        cx: &Context<'_>,
    ) -> Poll<Result<u32, StreamError>> {
        if self.phase == Phase::Closing {
            return Poll::Ready(Err(StreamError::ConnectionClosed));
        }
        let (size, limit) = (request_size(head), self.peer.max_header_list_size);
        if size > limit {
            return Poll::Ready(Err(StreamError::PeerHeaderListLimit { size, limit }));
        }
        if self.streams.len() >= self.peer.max_concurrent_streams as usize {
            self.last_ticket += u64::from(ticket.is_none());
            let ticket = ticket.get_or_insert(self.last_ticket);
            self.pending_open.insert(*ticket, cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(ticket) = ticket.take() {
            self.pending_open.remove(&ticket);
        }
        let id = if self.last_id == 0 { 1 } else { self.last_id + 2 };
        if id > MAX_WINDOW {
            self.close();
            return Poll::Ready(Err(StreamError::ConnectionClosed));
        }
        self.last_id = id;
        let state = if ended {
            StreamState::HalfClosedLocal
        } else {
            StreamState::Open
        };
        let mut stream = self.new_stream(state, RecvHead::Awaited);
        stream.end_queued = ended;
        stream.accepted = true;
        self.insert(id, stream);
        self.write_block(id, ended, |encoder, out| {
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
        Poll::Ready(Ok(id))
    }

    /// Sends data, or queues it while the windows are full; false if the stream is closed for sending.
    pub(crate) fn send_data(&mut self, id: u32, data: Bytes, ended: bool) -> bool {
        let most = match self.role {
            Role::Client => usize::MAX,
            Role::Server if self.streams.len() > UNREAD_STREAMS => UNREAD,
            Role::Server => MAX_UNREAD_FEW_STREAMS,
        };
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.accepts_data()) else {
            return false;
        };
        stream.end_queued = ended;
        let length = data.len();
        let fits = length <= self.peer.max_frame_size
            && stream.send_queue.is_empty()
            && stream.send_window >= length as i64
            && self.send_window >= length as i64
            && self.output.len() < WRITE_TARGET;
        if !fits {
            let has_room = self.buffered.bytes() + length <= most && self.buffered.has_room(length);
            if length > 0 && !has_room {
                self.reset(id, Reason::ENHANCE_YOUR_CALM);
                return false;
            }
            stream.buffered += length;
            stream.send_queue.push(data);
            self.buffered.add(length);
            self.schedule(id);
            self.send_scheduled();
            return true;
        }
        stream.send_window -= length as i64;
        self.send_window -= length as i64;
        stream.progress.since_check = true;
        stream.progress.sent += length;
        if ended {
            stream.state.close_send();
        }
        self.budget.credit_data(length);
        self.output.data(id, data, ended);
        if ended {
            self.close_if_unused(id);
        }
        true
    }

    /// Queues trailers after the data; false if the stream is closed for sending.
    pub(crate) fn send_trailers(&mut self, id: u32, mut trailers: HeaderMap) -> bool {
        let (size, limit) = (list_size(&trailers, &[]), self.peer.max_header_list_size);
        if size > limit {
            let error = StreamError::PeerHeaderListLimit { size, limit };
            if self.role == Role::Client || !self.config.grpc {
                self.reset_with(id, Reason::INTERNAL_ERROR, error);
                return false;
            }
            trailers.clear();
            exhausted(&mut trailers, error.to_string());
        }
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.accepts_data()) else {
            return false;
        };
        stream.end_queued = true;
        if stream.send_queue.is_empty() {
            stream.state.close_send();
            self.write_trailers(id, &trailers);
            self.close_if_unused(id);
        } else {
            stream.send_queue.push_trailers(trailers);
            self.schedule(id);
        }
        true
    }

    fn write_trailers(&mut self, id: u32, trailers: &HeaderMap) {
        self.write_block(id, true, |encoder, out| {
            for (name, value) in trailers {
                encoder.field(name, value, out);
            }
        });
    }

    /// Writes a field block as one HEADERS frame, split into CONTINUATION frames by the peer's limit.
    fn write_block(&mut self, stream: u32, ended: bool, fields: impl FnOnce(&mut Encoder, &mut BytesMut)) {
        let (out, limit) = (self.output.tail(), self.peer.max_frame_size);
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

    pub(super) fn schedule(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.can_send()
            && !stream.is_scheduled
        {
            stream.is_scheduled = true;
            self.scheduled.push_back(id);
        }
    }

    /// Sends as much as the windows allow, one frame per stream in turn. Streams that wait for the
    /// connection's window are visited only while it is open, so the work is proportional to the output and
    /// to newly scheduled streams.
    pub(crate) fn send_scheduled(&mut self) {
        self.buffered.written(self.output.written());
        while self.output.len() < WRITE_TARGET {
            let waited = if self.send_window > 0 {
                self.awaiting_window.pop_front()
            } else {
                None
            };
            let Some(id) = waited.or_else(|| self.scheduled.pop_front()) else {
                break;
            };
            #[cfg(test)]
            {
                self.visited += 1;
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            if !stream.can_send() {
                stream.is_scheduled = false;
            } else if self.send_window <= 0 && stream.buffered > 0 {
                self.wait_for_window(id);
            } else {
                stream.is_scheduled = false;
                self.send_next(id);
                self.schedule(id);
            }
        }
    }

    fn wait_for_window(&mut self, id: u32) {
        self.awaiting_window.push_back(id);
        // Removes closed streams once there are many of them.
        if self.awaiting_window.len() > 2 * self.streams.len() + STALE {
            let streams = &self.streams;
            self.awaiting_window.retain(|id| streams.contains_key(id));
        }
    }

    /// Sends one frame of a stream.
    fn send_next(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        match stream.send_queue.pop() {
            Some(Piece::Data(mut data)) => {
                let window = usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0);
                let chunk = data.split_to(window.min(self.peer.max_frame_size).min(data.len()));
                stream.front_sent += chunk.len();
                let mut whole = 0;
                if data.is_empty() {
                    whole = std::mem::take(&mut stream.front_sent);
                } else {
                    stream.send_queue.push_front(data);
                }
                let ended = stream.end_queued && stream.send_queue.is_empty();
                stream.send_window -= chunk.len() as i64;
                self.send_window -= chunk.len() as i64;
                stream.buffered -= chunk.len();
                stream.progress.since_check = true;
                stream.progress.sent += chunk.len();
                stream.sender.wake();
                if ended {
                    stream.state.close_send();
                }
                self.budget.credit_data(chunk.len());
                self.output.data(id, chunk, ended);
                self.buffered.remove_at(whole, self.output.end());
                if ended {
                    self.close_if_unused(id);
                }
            }
            Some(Piece::Trailers(trailers)) => {
                stream.state.close_send();
                self.write_trailers(id, &trailers);
                self.close_if_unused(id);
            }
            None => {}
        }
    }
}

/// Size of a request's header list in bytes.
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

/// Splits a block that is too large for one frame.
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
