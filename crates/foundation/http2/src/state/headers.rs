//! Field blocks, decoded to heads and trailers.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::control::depends_on;
use super::receive::Block;
use super::{Phase, Role, State};
use crate::boundary::Upgrade;
use crate::error::{ConnectionError, Reason, StreamError};
use crate::fields::{Fields, Malformed};
use crate::frame::{Head, flag};
use crate::limits::CONTINUATIONS;
use crate::open_streams::TOO_MANY_CALLS;
use crate::settings::FRAME;
use crate::stream::{RecvEnd, RecvHead, StreamState};

/// Compressed bytes accepted beyond the limit for the decoded list: an oversized list must still be
/// decoded.
const BLOCK_SLACK: usize = 256 * 1024;

impl State {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream.is_multiple_of(2) {
            return Err(ConnectionError::protocol(
                "HEADERS on a stream that a client cannot open",
            ));
        }
        let fields = without_padding_and_priority(head, payload)?;
        let ended = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.fields(head.stream, ended, fields);
        }
        self.incomplete.block = Some(Block {
            stream: head.stream,
            ended,
            fields: fields.to_vec(),
            frames: 0,
        });
        Ok(())
    }

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        let Some(mut block) = self.incomplete.block.take() else {
            return Err(ConnectionError::protocol(
                "CONTINUATION without HEADERS before it",
            ));
        };
        block.frames += 1;
        block.fields.extend_from_slice(payload);
        let most = (self.config.header_list as usize).saturating_add(BLOCK_SLACK);
        let frames = CONTINUATIONS + most / (FRAME / 2);
        if block.frames > frames || block.fields.len() > most {
            return Err(ConnectionError::calm(
                "a field block with too many CONTINUATION frames or bytes",
            ));
        }
        if head.has(flag::END_HEADERS) {
            return self.fields(block.stream, block.ended, &block.fields);
        }
        self.incomplete.block = Some(block);
        Ok(())
    }

    /// Handles a complete block: the head of a request, or trailers.
    fn fields(&mut self, id: u32, ended: bool, block: &[u8]) -> Result<(), ConnectionError> {
        let mut fields = Fields::default();
        let left = self.config.header_memory.saturating_sub(self.header_memory);
        let limit = left.min(self.config.header_list as usize);
        let size = self.decoder.decode(block, limit, |field| fields.add(field));
        let size = size.map_err(|_| ConnectionError {
            reason: Reason::COMPRESSION_ERROR,
            detail: "a field block that cannot be decompressed",
        })?;
        let memory = fields.memory(size);
        let block = FieldBlock {
            ended,
            memory,
            too_large: size > limit || memory > left || fields.exceeds_count(),
            fields,
        };
        if self.role == Role::Client {
            return self.response(id, block);
        }
        if self.is_idle(id) {
            self.last_id = id;
            return self.open(id, block);
        }
        self.trailers(id, block)
    }

    /// Charges a retained header list to its stream.
    fn keep_fields(&mut self, id: u32, memory: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.header_memory += memory;
            self.header_memory += memory;
        }
    }

    /// Starts with an upgraded HTTP/1.1 request as stream 1.
    pub(crate) fn upgrade(&mut self, upgrade: Upgrade) {
        if upgrade.settings.header_table_size != self.peer.header_table_size {
            self.encoder.set_max_table(upgrade.settings.header_table_size);
        }
        self.peer = upgrade.settings;
        self.last_id = 1;
        let state = StreamState::HalfClosedRemote(RecvEnd::EndStream);
        let stream = self.new_stream(state, RecvHead::Taken);
        self.insert(1, stream);
        self.pending_accept.push_back((1, upgrade.request));
    }

    fn open(&mut self, id: u32, block: FieldBlock) -> Result<(), ConnectionError> {
        if self.phase == Phase::Closing {
            self.reset_history.insert(id);
            return Ok(());
        }
        if self.streams.len() >= self.config.max_streams as usize {
            self.charge("too many streams above SETTINGS_MAX_CONCURRENT_STREAMS")?;
            self.refuse_frame(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let state = if block.ended {
            StreamState::HalfClosedRemote(RecvEnd::EndStream)
        } else {
            StreamState::Open
        };
        let mut stream = self.new_stream(state, RecvHead::Taken);
        // A truncated list is not validated: the missing fields may be required.
        if block.too_large {
            self.charge("too many requests whose header list is too large")?;
            self.insert(id, stream);
            let limit = self.config.header_list;
            let why = format!(
                "the request's header list is larger than the limit of {limit} bytes (see --read-buffer-size)"
            );
            self.refuse_request(id, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why);
            return Ok(());
        }
        if !self.open_streams.has_room(self.streams.len()) {
            self.insert(id, stream);
            self.refuse_request(id, StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_CALLS.to_owned());
            return Ok(());
        }
        let fields = block.fields;
        let request = fields.length().and_then(|left| {
            stream.content_left = left;
            let short = block.ended && left.is_some_and(|left| left > 0);
            if short {
                return Err(Malformed);
            }
            fields.request(&mut self.uris)
        });
        let reason = match request {
            Ok(request) if request.method() != Method::CONNECT => {
                stream.progress.limited = !self.config.grpc;
                self.insert(id, stream);
                self.keep_fields(id, block.memory);
                self.pending_accept.push_back((id, request));
                return Ok(());
            }
            Ok(_) => Reason::REFUSED_STREAM,
            Err(Malformed) => Reason::PROTOCOL_ERROR,
        };
        self.charge("too many malformed requests")?;
        self.refuse_frame(id, reason);
        Ok(())
    }

    /// Handles the head of a response, or its trailers.
    fn response(&mut self, id: u32, block: FieldBlock) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::protocol("HEADERS on an idle stream"));
        }
        // Frames for a stream that we reset may still be in flight.
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.charge_idle_frame("too many responses on closed streams");
        };
        if !matches!(stream.recv_head, RecvHead::Awaited) || !stream.state.is_recv_open() {
            return self.trailers(id, block);
        }
        if block.too_large {
            self.refuse_response(id);
            return Ok(());
        }
        let (fields, ended) = (block.fields, block.ended);
        let head = fields.length().and_then(|left| Ok((fields.response()?, left)));
        match head {
            Ok((head, _)) if head.status().is_informational() && !ended => {
                self.charge_idle_frame("too many informational responses")?;
            }
            Ok((head, left)) if !head.status().is_informational() => {
                stream.recv_head = RecvHead::Received(head);
                // Without a body, as for HEAD, `content-length` is the length of the GET response.
                stream.content_left = left.filter(|_| !ended);
                stream.progress.limited = stream.content_left.is_some();
                self.keep_fields(id, block.memory);
                self.received(id, ended);
            }
            _ => self.reset(id, Reason::PROTOCOL_ERROR),
        }
        Ok(())
    }

    /// Answers a request without passing it to the service.
    fn refuse_request(&mut self, id: u32, status: StatusCode, why: String) {
        let response = if self.config.grpc {
            resource_exhausted(why)
        } else {
            let mut response = Response::new(());
            *response.status_mut() = status;
            response
        };
        self.respond(id, &response, true);
        self.drop_handles(id);
    }

    /// Resets a stream whose response has too many fields.
    fn refuse_response(&mut self, id: u32) {
        let error = StreamError::HeadersTooLarge(self.config.header_list);
        self.reset_with(id, Reason::ENHANCE_YOUR_CALM, error);
    }

    fn trailers(&mut self, id: u32, block: FieldBlock) -> Result<(), ConnectionError> {
        let was_reset_locally = self.was_reset_locally(id);
        let stream = match self.streams.get_mut(&id) {
            Some(stream) if stream.state.is_recv_open() => stream,
            Some(stream) if stream.state.recv_end() == Some(RecvEnd::EndStream) => {
                return Err(ConnectionError::closed("HEADERS after END_STREAM"));
            }
            _ if was_reset_locally => {
                return self.charge_idle_frame("too many HEADERS frames on streams that were reset");
            }
            _ => return Err(ConnectionError::closed("HEADERS on a closed stream")),
        };
        if block.too_large {
            self.charge("too many trailers whose list is too large")?;
            self.refuse_response(id);
            return Ok(());
        }
        let whole = block.ended && stream.count_content(0, true);
        match block.fields.trailers() {
            Ok(trailers) if whole => {
                if stream.receiver.is_held() {
                    stream.recv_queue.push_trailers(trailers);
                    self.keep_fields(id, block.memory);
                }
                self.received(id, true);
                Ok(())
            }
            _ => {
                self.charge("too many malformed trailers")?;
                self.reset(id, Reason::PROTOCOL_ERROR);
                Ok(())
            }
        }
    }
}

/// A decoded field block.
struct FieldBlock {
    fields: Fields,
    /// END_STREAM was set.
    ended: bool,
    /// The list is truncated, or there is no memory for it.
    too_large: bool,
    /// Bytes to charge if the list is retained.
    memory: usize,
}

/// A gRPC error as a response without a body.
pub(super) fn resource_exhausted(message: String) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    exhausted(headers, message);
    response
}

/// gRPC's status RESOURCE_EXHAUSTED; `message` is plain ASCII.
pub(super) fn exhausted(to: &mut HeaderMap, message: String) {
    to.insert(
        HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("8"),
    );
    if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
        to.insert(HeaderName::from_static("grpc-message"), message);
    }
}

fn without_padding_and_priority(head: Head, mut payload: &[u8]) -> Result<&[u8], ConnectionError> {
    let mut padding = 0;
    if head.has(flag::PADDED) {
        let padded = payload.split_first();
        let (length, rest) =
            padded.ok_or_else(|| ConnectionError::size("padded HEADERS without a Pad Length"))?;
        (padding, payload) = (usize::from(*length), rest);
    }
    if head.has(flag::PRIORITY) {
        let priority = payload.split_at_checked(5);
        let (priority, rest) =
            priority.ok_or_else(|| ConnectionError::size("HEADERS too short for their priority"))?;
        if depends_on(priority) == Some(head.stream) {
            return Err(ConnectionError::protocol("a stream that depends on itself"));
        }
        payload = rest;
    }
    let length = payload.len().checked_sub(padding);
    length
        .map(|length| &payload[..length])
        .ok_or_else(|| ConnectionError::protocol("more padding than payload"))
}
