//! Heads and trailers: blocks of fields become requests, or the ends of them.

use http::{Method, Response, StatusCode};

use super::receive::{Block, depends_on};
use super::{Phase, Role, State};
use crate::error::{Broken, Reason};
use crate::frame::{Head, flag};
use crate::head::{Fields, Malformed};
use crate::stream::{Coming, Piece, Stream};

/// CONTINUATION frames behind one HEADERS frame at most.
const CONTINUATIONS: usize = 32;
/// Bytes of compressed fields beyond the limit for the list they make: what is not taken must be decoded still.
const BLOCK_SLACK: usize = 16 * 1024;

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
        if block.frames > CONTINUATIONS || block.fields.len() > most {
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
        let limit = self.config.header_list as usize;
        let size = self.decoder.decode(block, limit, |field| fields.add(field));
        let size = size.map_err(|_| Broken {
            reason: Reason::COMPRESSION_ERROR,
            what: "fields that cannot be decompressed",
        })?;
        let too_large = size > limit;
        if self.role == Role::Client {
            return self.answer(number, ended, fields, too_large);
        }
        if number > self.last {
            self.last = number;
            return self.open(number, ended, fields, too_large);
        }
        self.trailers(number, ended, fields, too_large)
    }

    fn open(&mut self, number: u32, ended: bool, fields: Fields, too_large: bool) -> Result<(), Broken> {
        if self.phase == Phase::Left {
            self.remember(number);
            return Ok(());
        }
        if self.streams.len() >= self.config.max_streams as usize {
            self.lose_patience("more streams than we allow")?;
            self.refuse_frame(number, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let mut stream = Stream::new(self.config.stream_window, self.asked.window);
        stream.begun = true;
        if ended {
            stream.coming = Coming::Ended;
        }
        // A list that was cut off is not looked at: what is missing may be what makes it right.
        if too_large {
            self.insert(number, stream);
            self.refuse_head(number);
            return Ok(());
        }
        let request = fields.length().and_then(|left| {
            stream.left = left;
            let short = ended && left.is_some_and(|left| left > 0);
            if short {
                return Err(Malformed);
            }
            fields.request(&mut self.known)
        });
        let reason = match request {
            Ok(request) if request.method() != Method::CONNECT => {
                self.insert(number, stream);
                self.opened.push((number, request));
                return Ok(());
            }
            Ok(_) => Reason::REFUSED_STREAM,
            Err(Malformed) => Reason::PROTOCOL_ERROR,
        };
        self.lose_patience("requests that nobody can answer")?;
        self.refuse_frame(number, reason);
        Ok(())
    }

    /// The head of an answer to us, or its trailers.
    fn answer(&mut self, number: u32, ended: bool, fields: Fields, too_large: bool) -> Result<(), Broken> {
        if number > self.last {
            return Err(Broken::protocol("HEADERS of a stream that was never opened"));
        }
        // What we gave up may be on its way still.
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        if stream.begun || stream.coming != Coming::More {
            return self.trailers(number, ended, fields, too_large);
        }
        let head = fields.length().and_then(|left| Ok((fields.response()?, left)));
        match head {
            Ok((head, _)) if head.status().is_informational() && !ended => {}
            Ok((head, left)) if !too_large && !head.status().is_informational() => {
                stream.begun = true;
                stream.head = Some(head);
                // Where nothing follows, the length is that of what a GET would have brought.
                stream.left = left.filter(|_| !ended);
                self.arrived(number, ended);
            }
            _ => self.reset(number, Reason::PROTOCOL_ERROR),
        }
        Ok(())
    }

    /// Answers a head that is too large.
    fn refuse_head(&mut self, number: u32) {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        self.respond(number, &response, true);
        self.unread(number);
        self.answered(number);
    }

    fn trailers(&mut self, number: u32, ended: bool, fields: Fields, too_large: bool) -> Result<(), Broken> {
        let gave_up = self.gave_up(number);
        let stream = match self.streams.get_mut(&number) {
            Some(stream) if stream.coming == Coming::More => stream,
            Some(stream) if stream.coming == Coming::Ended => {
                return Err(Broken::closed("HEADERS behind the end of a stream"));
            }
            _ if gave_up => return Ok(()),
            _ => return Err(Broken::closed("HEADERS of a stream that has ended")),
        };
        let whole = ended && !too_large && stream.count(0, true);
        let read = stream.read;
        match fields.trailers() {
            Ok(trailers) if whole => {
                if read {
                    stream.arrived.push(Piece::Trailers(trailers));
                }
                self.arrived(number, true);
                Ok(())
            }
            _ => {
                self.lose_patience("trailers that are malformed")?;
                self.reset(number, Reason::PROTOCOL_ERROR);
                Ok(())
            }
        }
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
