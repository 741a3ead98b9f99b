//! Heads and trailers: blocks of fields become requests, or the ends of them.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};

use super::receive::{Block, depends_on};
use super::{Phase, Role, State};
use crate::error::{Broken, Cut, Reason};
use crate::frame::{Head, flag};
use crate::head::{Fields, Malformed};
use crate::limits::CONTINUATIONS;
use crate::server::Upgrade;
use crate::settings::FRAME;
use crate::stream::{Coming, Stream};

/// Bytes of compressed fields beyond the limit for the list they make: what is not taken must be decoded still.
const BLOCK_SLACK: usize = 256 * 1024;

impl State {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream.is_multiple_of(2) {
            return Err(Broken::protocol("HEADERS of a stream that a client cannot open"));
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

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        let Some(mut block) = self.incomplete.block.take() else {
            return Err(Broken::protocol("CONTINUATION without HEADERS"));
        };
        block.frames += 1;
        block.fields.extend_from_slice(payload);
        let most = (self.config.header_list as usize).saturating_add(BLOCK_SLACK);
        let frames = CONTINUATIONS + most / (FRAME / 2);
        if block.frames > frames || block.fields.len() > most {
            return Err(Broken::calm("a block of fields without end"));
        }
        if head.has(flag::END_HEADERS) {
            return self.fields(block.stream, block.ended, &block.fields);
        }
        self.incomplete.block = Some(block);
        Ok(())
    }

    /// A whole block: the head of a request, or trailers.
    fn fields(&mut self, number: u32, ended: bool, block: &[u8]) -> Result<(), Broken> {
        let mut fields = Fields::default();
        let left = self.config.header_memory.saturating_sub(self.header_memory);
        let limit = left.min(self.config.header_list as usize);
        let size = self.decoder.decode(block, limit, |field| fields.add(field));
        let size = size.map_err(|_| Broken {
            reason: Reason::COMPRESSION_ERROR,
            what: "fields that cannot be decompressed",
        })?;
        let memory = fields.memory(size);
        let list = List {
            ended,
            memory,
            too_large: size > limit || memory > left || fields.are_too_many(),
            fields,
        };
        if self.role == Role::Client {
            return self.answer(number, list);
        }
        if number > self.last {
            self.last = number;
            return self.open(number, list);
        }
        self.trailers(number, list)
    }

    /// Charges a list that is kept to its stream.
    fn keep_fields(&mut self, number: u32, memory: usize) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.header_memory += memory;
            self.header_memory += memory;
        }
    }

    /// Begins with a request that came another way, as stream 1.
    pub(crate) fn upgrade(&mut self, upgrade: Upgrade) {
        if upgrade.asked.header_table != self.asked.header_table {
            self.encoder.set_max_table(upgrade.asked.header_table);
        }
        self.asked = upgrade.asked;
        self.last = 1;
        let mut stream = Stream::new(self.config.stream_window, self.asked.window);
        stream.begun = true;
        stream.coming = Coming::Ended;
        self.insert(1, stream);
        self.opened.push_back((1, upgrade.request));
    }

    fn open(&mut self, number: u32, list: List) -> Result<(), Broken> {
        if self.phase == Phase::Left {
            self.remember(number);
            return Ok(());
        }
        if self.streams.len() >= self.config.max_streams as usize {
            self.charge("more streams than we allow")?;
            self.refuse_frame(number, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let mut stream = Stream::new(self.config.stream_window, self.asked.window);
        stream.begun = true;
        if list.ended {
            stream.coming = Coming::Ended;
        }
        // A list that was cut off is not looked at: what is missing may be what makes it right.
        if list.too_large {
            self.charge("requests with too many fields")?;
            self.insert(number, stream);
            self.refuse_head(number);
            return Ok(());
        }
        let fields = list.fields;
        let request = fields.length().and_then(|left| {
            stream.left = left;
            let short = list.ended && left.is_some_and(|left| left > 0);
            if short {
                return Err(Malformed);
            }
            fields.request(&mut self.known)
        });
        let reason = match request {
            Ok(request) if request.method() != Method::CONNECT => {
                stream.watched = !self.config.grpc && !is_grpc(&request);
                self.insert(number, stream);
                self.keep_fields(number, list.memory);
                self.opened.push_back((number, request));
                return Ok(());
            }
            Ok(_) => Reason::REFUSED_STREAM,
            Err(Malformed) => Reason::PROTOCOL_ERROR,
        };
        self.charge("requests that nobody can answer")?;
        self.refuse_frame(number, reason);
        Ok(())
    }

    /// The head of an answer to us, or its trailers.
    fn answer(&mut self, number: u32, list: List) -> Result<(), Broken> {
        if number > self.last {
            return Err(Broken::protocol("HEADERS of a stream that was never opened"));
        }
        // What we gave up may be on its way still.
        let Some(stream) = self.streams.get_mut(&number) else {
            return self.charge_idle_frame("answers that nobody waits for");
        };
        if stream.begun || stream.coming != Coming::More {
            return self.trailers(number, list);
        }
        if list.too_large {
            self.refuse_answer(number);
            return Ok(());
        }
        let (fields, ended) = (list.fields, list.ended);
        let head = fields.length().and_then(|left| Ok((fields.response()?, left)));
        match head {
            Ok((head, _)) if head.status().is_informational() && !ended => {
                self.charge_idle_frame("answers that are none yet")?;
            }
            Ok((head, left)) if !head.status().is_informational() => {
                stream.begun = true;
                stream.head = Some(head);
                // Where nothing follows, the length is that of what a GET would have brought.
                stream.left = left.filter(|_| !ended);
                stream.watched = stream.left.is_some();
                self.keep_fields(number, list.memory);
                self.arrived(number, ended);
            }
            _ => self.reset(number, Reason::PROTOCOL_ERROR),
        }
        Ok(())
    }

    /// Answers a head that is too large.
    fn refuse_head(&mut self, number: u32) {
        let limit = self.config.header_list;
        let response = if self.config.grpc {
            let message = format!(
                "the request's header fields are larger than the {limit} bytes that are taken (see --read-buffer-size)"
            );
            resource_exhausted(message)
        } else {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            response
        };
        self.respond(number, &response, true);
        self.abandon(number);
    }

    /// Ends a stream whose answer has more fields than we take.
    fn refuse_answer(&mut self, number: u32) {
        let why = Cut::Fields(self.config.header_list);
        self.reset_as(number, Reason::ENHANCE_YOUR_CALM, why);
    }

    fn trailers(&mut self, number: u32, list: List) -> Result<(), Broken> {
        let gave_up = self.gave_up(number);
        let stream = match self.streams.get_mut(&number) {
            Some(stream) if stream.coming == Coming::More => stream,
            Some(stream) if stream.coming == Coming::Ended => {
                return Err(Broken::closed("HEADERS behind the end of a stream"));
            }
            _ if gave_up => return self.charge_idle_frame("fields of streams that were given up"),
            _ => return Err(Broken::closed("HEADERS of a stream that has ended")),
        };
        if list.too_large {
            self.charge("trailers with too many fields")?;
            self.refuse_answer(number);
            return Ok(());
        }
        let whole = list.ended && stream.count(0, true);
        match list.fields.trailers() {
            Ok(trailers) if whole => {
                if stream.read {
                    stream.arrived.push_trailers(trailers);
                    self.keep_fields(number, list.memory);
                }
                self.arrived(number, true);
                Ok(())
            }
            _ => {
                self.charge("trailers that are malformed")?;
                self.reset(number, Reason::PROTOCOL_ERROR);
                Ok(())
            }
        }
    }
}

/// A list of fields that has come.
struct List {
    fields: Fields,
    /// Nothing follows on its stream.
    ended: bool,
    /// It is not complete, or there is no memory for it.
    too_large: bool,
    /// What it is charged where it is kept, bytes.
    memory: usize,
}

fn is_grpc(request: &Request<()>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// gRPC's words for an error, in a response that has no body.
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

fn without_padding_and_priority(head: Head, mut payload: &[u8]) -> Result<&[u8], Broken> {
    let mut padding = 0;
    if head.has(flag::PADDED) {
        let padded = payload.split_first();
        let (length, rest) =
            padded.ok_or_else(|| Broken::size("padded HEADERS without the length of the padding"))?;
        (padding, payload) = (usize::from(*length), rest);
    }
    if head.has(flag::PRIORITY) {
        let priority = payload.split_at_checked(5);
        let (priority, rest) = priority.ok_or_else(|| Broken::size("HEADERS with less than a priority"))?;
        if depends_on(priority) == Some(head.stream) {
            return Err(Broken::protocol("a stream that depends on itself"));
        }
        payload = rest;
    }
    let length = payload.len().checked_sub(padding);
    length
        .map(|length| &payload[..length])
        .ok_or_else(|| Broken::protocol("more padding than payload"))
}
