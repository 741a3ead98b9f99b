//! Input: parses bytes to frames and dispatches them.

use super::{Role, State};
use crate::error::{ConnectionError, Reason};
use crate::frame::{HEAD, Head, Kind, PREFACE, flag};
use crate::settings::FRAME;
use crate::stream::{RecvEnd, RecvHead};

/// Partially received data.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    /// Bytes of the preface received.
    preface: usize,
    /// The first frame after the preface was received.
    begun: bool,
    /// A partial frame other than DATA.
    frame: Vec<u8>,
    /// A DATA frame whose payload is incomplete.
    data: Option<Data>,
    /// A field block without END_HEADERS.
    pub(super) block: Option<Block>,
}

impl Incomplete {
    /// Only clients send a preface.
    pub(super) fn new(role: Role) -> Self {
        Self {
            preface: match role {
                Role::Client => PREFACE.len(),
                Role::Server => 0,
            },
            ..Self::default()
        }
    }

    pub(super) fn awaits_preface(&self) -> bool {
        !self.begun
    }

    /// True if a frame or block is incomplete.
    pub(super) fn is_begun(&self) -> bool {
        !self.frame.is_empty() || self.data.is_some() || self.block.is_some()
    }
}

#[derive(Debug, Clone, Copy)]
struct Data {
    stream: u32,
    /// Payload bytes still to come, including padding.
    remaining: usize,
    /// Bytes of padding; `None` until the Pad Length, the first byte, was received.
    padding: Option<usize>,
    ended: bool,
}

/// A field block being received.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ended: bool,
    pub(super) fields: Vec<u8>,
    pub(super) frames: usize,
}

impl State {
    /// Processes bytes read from the socket. Returns the number of frames seen, including partial ones.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection must end.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<usize, ConnectionError> {
        let mut frames = 0;
        if self.incomplete.preface < PREFACE.len() {
            bytes = self.preface(bytes)?;
        }
        while !bytes.is_empty() {
            bytes = match self.incomplete.data {
                Some(data) => self.data(data, bytes)?,
                None => self.frame(bytes)?,
            };
            frames += 1;
            if self.output.is_flooded() {
                return Err(ConnectionError::calm(
                    "too many frames that require an answer while none is read",
                ));
            }
        }
        Ok(frames)
    }

    fn preface<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let wanted = &PREFACE[self.incomplete.preface..];
        let length = wanted.len().min(bytes.len());
        if bytes[..length] != wanted[..length] {
            return Err(ConnectionError::protocol("no HTTP/2 connection preface"));
        }
        self.incomplete.preface += length;
        Ok(&bytes[length..])
    }

    /// Processes one frame, possibly partial. Returns the remaining bytes.
    fn frame<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        if !self.incomplete.frame.is_empty() {
            return self.continue_frame(bytes);
        }
        let Some(head) = self.head(bytes)? else {
            self.incomplete.frame.extend_from_slice(bytes);
            return Ok(&[]);
        };
        let rest = &bytes[HEAD..];
        if head.kind == Kind::Data {
            return self.begin_data(head).map(|()| rest);
        }
        match rest.split_at_checked(head.length) {
            Some((payload, rest)) => self.dispatch(head, payload).map(|()| rest),
            None => {
                self.incomplete.frame.extend_from_slice(bytes);
                Ok(&[])
            }
        }
    }

    /// Continues a frame of which a part was received before.
    fn continue_frame<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let mut frame = std::mem::take(&mut self.incomplete.frame);
        let mut bytes = fill(&mut frame, HEAD, bytes);
        if let Some(head) = self.head(&frame)? {
            if head.kind == Kind::Data {
                return self.begin_data(head).map(|()| bytes);
            }
            let whole = HEAD + head.length;
            bytes = fill(&mut frame, whole, bytes);
            if frame.len() == whole {
                return self.dispatch(head, &frame[HEAD..]).map(|()| bytes);
            }
        }
        self.incomplete.frame = frame;
        Ok(bytes)
    }

    /// Parses the next frame header, and checks that the frame is allowed now.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<Head>, ConnectionError> {
        let Some(head) = Head::read(bytes) else {
            return Ok(None);
        };
        if head.length > FRAME {
            return Err(ConnectionError::size(
                "a frame larger than SETTINGS_MAX_FRAME_SIZE",
            ));
        }
        if !self.incomplete.begun {
            if head.kind != Kind::Settings || head.has(flag::ACK) {
                return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
            }
            self.incomplete.begun = true;
        }
        let expected = self.incomplete.block.as_ref().map(|block| block.stream);
        let continues = (head.kind == Kind::Continuation).then_some(head.stream);
        if expected != continues {
            return Err(ConnectionError::protocol(
                "a field block that is interrupted, or a CONTINUATION without HEADERS",
            ));
        }
        Ok(Some(head))
    }

    fn dispatch(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        self.timers.complete += u64::from(head.kind != Kind::Continuation || head.has(flag::END_HEADERS));
        match head.kind {
            Kind::Headers => self.headers(head, payload),
            Kind::Continuation => self.continuation(head, payload),
            Kind::Priority => self.priority(head, payload),
            Kind::Reset => self.rst_stream(head, payload),
            Kind::Settings => self.settings(head, payload),
            Kind::PushPromise => Err(ConnectionError::protocol("PUSH_PROMISE, which is disabled")),
            Kind::Ping => self.ping(head, payload),
            Kind::GoAway => self.go_away(head, payload),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::Data => Ok(()),
            Kind::Unknown => self.charge_idle_frame("too many frames of unknown types"),
        }
    }

    fn begin_data(&mut self, head: Head) -> Result<(), ConnectionError> {
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(ConnectionError::protocol("DATA on an idle stream"));
        }
        let length = u32::try_from(head.length).unwrap_or(u32::MAX);
        let window = self.recv_window.checked_sub(length);
        self.recv_window =
            window.ok_or_else(|| ConnectionError::flow("more DATA than the connection's window allows"))?;
        let padded = head.has(flag::PADDED);
        if padded && head.length == 0 {
            return Err(ConnectionError::size("padded DATA without a Pad Length"));
        }
        let data = Data {
            stream: head.stream,
            remaining: head.length,
            padding: (!padded).then_some(0),
            ended: head.has(flag::END_STREAM),
        };
        self.admit_data(data, length)?;
        if data.remaining == 0 {
            return self.piece(data, &[]);
        }
        self.incomplete.data = Some(data);
        Ok(())
    }

    /// Checks that a stream may receive this DATA.
    fn admit_data(&mut self, data: Data, length: u32) -> Result<(), ConnectionError> {
        if length == 0 && !data.ended {
            self.charge("too many empty DATA frames")?;
        }
        let wrong = match self.streams.get_mut(&data.stream) {
            Some(stream) if matches!(stream.recv_head, RecvHead::Awaited) && stream.state.is_recv_open() => {
                Some(Reason::PROTOCOL_ERROR)
            }
            Some(stream) if stream.state.is_recv_open() => match stream.recv_window.checked_sub(length) {
                Some(window) => {
                    stream.recv_window = window;
                    return Ok(());
                }
                None => Some(Reason::FLOW_CONTROL_ERROR),
            },
            Some(stream) if stream.state.recv_end() == Some(RecvEnd::EndStream) => {
                Some(Reason::STREAM_CLOSED)
            }
            _ => None,
        };
        let reason = match wrong {
            Some(reason) => reason,
            None if self.was_reset_locally(data.stream) => {
                return self.charge_idle_frame("too much DATA on streams that were reset");
            }
            None => Reason::STREAM_CLOSED,
        };
        self.charge("too much DATA on closed streams or beyond their windows")?;
        self.refuse_frame(data.stream, reason);
        Ok(())
    }

    /// Processes received payload of a DATA frame. Returns the remaining bytes.
    fn data<'a>(&mut self, mut data: Data, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let Some(padding) = data.padding else {
            return self.begin_padded(data, bytes);
        };
        let (now, rest) = bytes.split_at(data.remaining.min(bytes.len()));
        let before = data.remaining.saturating_sub(padding);
        data.remaining -= now.len();
        self.incomplete.data = (data.remaining > 0).then_some(data);
        self.timers.complete += u64::from(data.remaining == 0);
        let useful = &now[..before.min(now.len())];
        if !useful.is_empty() {
            data.remaining = before - useful.len();
            self.piece(data, useful)?;
        }
        Ok(rest)
    }

    fn begin_padded<'a>(&mut self, mut data: Data, bytes: &'a [u8]) -> Result<&'a [u8], ConnectionError> {
        let Some((padding, rest)) = bytes.split_first() else {
            return Ok(bytes);
        };
        let padding = usize::from(*padding);
        data.remaining -= 1;
        if padding > data.remaining {
            return Err(ConnectionError::protocol("more padding than payload"));
        }
        data.padding = Some(padding);
        // Padding is never read, so its bytes return to the windows at once.
        self.release_capacity(data.stream, padding + 1);
        self.incomplete.data = (data.remaining > 0).then_some(data);
        if data.remaining == padding {
            if !data.ended {
                self.charge("too many DATA frames of nothing but padding")?;
            }
            data.remaining = 0;
            self.piece(data, &[])?;
        }
        Ok(rest)
    }

    /// Queues a piece of a body. It is the last of its frame if `data.remaining` is zero.
    fn piece(&mut self, data: Data, bytes: &[u8]) -> Result<(), ConnectionError> {
        let stream = self.streams.get_mut(&data.stream);
        let Some(stream) = stream.filter(|stream| stream.state.is_recv_open()) else {
            self.release_connection_capacity(bytes.len());
            return Ok(());
        };
        let ended = data.ended && data.remaining == 0;
        if !stream.count_content(bytes.len() as u64, ended) {
            self.release_connection_capacity(bytes.len());
            self.charge("too many bodies that contradict their content-length")?;
            self.reset(data.stream, Reason::PROTOCOL_ERROR);
            return Ok(());
        }
        if !stream.receiver.is_held() {
            self.release_capacity(data.stream, bytes.len());
            self.received(data.stream, ended);
            return Ok(());
        }
        if !bytes.is_empty() {
            let before = stream.recv_queue.slack();
            stream.recv_queue.push_copy(bytes);
            stream.progress.since_check = true;
            self.slack = self.slack + stream.recv_queue.slack() - before;
        }
        if stream.received(ended) {
            self.close_if_unused(data.stream);
        }
        Ok(())
    }

    /// Notifies a stream's reader; `ended` is true for END_STREAM.
    pub(super) fn received(&mut self, id: u32, ended: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.received(ended) {
            self.close_if_unused(id);
        }
    }
}

/// Extends a partial frame to `wanted` bytes; returns the remaining input.
fn fill<'a>(frame: &mut Vec<u8>, wanted: usize, bytes: &'a [u8]) -> &'a [u8] {
    let missing = wanted.saturating_sub(frame.len());
    let (more, rest) = bytes.split_at(missing.min(bytes.len()));
    frame.extend_from_slice(more);
    rest
}
