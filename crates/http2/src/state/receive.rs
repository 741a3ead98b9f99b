//! What arrives: bytes become frames, and frames go to whom they concern.

use super::{LEAVE, Phase, Role, State};
use crate::error::{Broken, Cut, Reason};
use crate::frame::{HEAD, Head, Kind, PREFACE, flag};
use crate::settings::{FRAME, MAX_WINDOW};
use crate::stream::Coming;

/// What has not arrived whole.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    /// Bytes of the preface that have come.
    preface: usize,
    /// The first frame after the preface has come.
    begun: bool,
    /// A part of a frame that is not DATA.
    frame: Vec<u8>,
    /// DATA whose payload is coming.
    data: Option<Data>,
    /// A block of fields without its end.
    pub(super) block: Option<Block>,
}

impl Incomplete {
    /// Only clients have a preface.
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

    /// A part of something has come.
    pub(super) fn is_begun(&self) -> bool {
        !self.frame.is_empty() || self.data.is_some() || self.block.is_some()
    }
}

#[derive(Debug, Clone, Copy)]
struct Data {
    stream: u32,
    /// Bytes of the payload to come, padding included.
    left: usize,
    /// Bytes at the end that mean nothing; `None` until their number, the first byte, is here.
    padding: Option<usize>,
    ended: bool,
}

/// Fields as they arrive.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) ended: bool,
    pub(super) fields: Vec<u8>,
    pub(super) frames: usize,
}

impl State {
    /// Takes what the socket gave. Returns how many frames it made, parts of some among them.
    ///
    /// # Errors
    /// [`Broken`]: the connection must end.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<usize, Broken> {
        self.heard = true;
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
            if self.out.is_flooded() {
                return Err(Broken::calm(
                    "frames that want an answer, and nobody who reads it",
                ));
            }
        }
        Ok(frames)
    }

    fn preface<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        let wanted = &PREFACE[self.incomplete.preface..];
        let length = wanted.len().min(bytes.len());
        if bytes[..length] != wanted[..length] {
            return Err(Broken::protocol("it does not speak HTTP/2"));
        }
        self.incomplete.preface += length;
        Ok(&bytes[length..])
    }

    /// Takes one frame, or what there is of it; returns what follows.
    fn frame<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        if !self.incomplete.frame.is_empty() {
            return self.rest_of_frame(bytes);
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

    /// As [`Self::frame`], for one of which a part came before.
    fn rest_of_frame<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
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

    /// The head of the next frame, if it may come now.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<Head>, Broken> {
        let Some(head) = Head::read(bytes) else {
            return Ok(None);
        };
        if head.length > FRAME {
            return Err(Broken::size("a frame larger than 16,384 bytes"));
        }
        if !self.incomplete.begun {
            if head.kind != Kind::Settings || head.has(flag::ACK) {
                return Err(Broken::protocol("the first frame is not SETTINGS"));
            }
            self.incomplete.begun = true;
        }
        let expected = self.incomplete.block.as_ref().map(|block| block.stream);
        let continues = (head.kind == Kind::Continuation).then_some(head.stream);
        if expected != continues {
            return Err(Broken::protocol(
                "a block of fields that is interrupted, or goes on without a beginning",
            ));
        }
        Ok(Some(head))
    }

    fn dispatch(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        self.watch.whole += u64::from(head.kind != Kind::Continuation || head.has(flag::END_HEADERS));
        match head.kind {
            Kind::Headers => self.headers(head, payload),
            Kind::Continuation => self.continuation(head, payload),
            Kind::Priority => self.priority(head, payload),
            Kind::Reset => self.was_reset(head, payload),
            Kind::Settings => self.settings(head, payload),
            Kind::PushPromise => Err(Broken::protocol(
                "PUSH_PROMISE of a client, or to one that wants none",
            )),
            Kind::Ping => self.ping(head, payload),
            Kind::GoAway => self.go_away(head, payload),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::Data => Ok(()),
            Kind::Unknown => self.charge_idle_frame("frames of unknown kinds"),
        }
    }

    fn begin_data(&mut self, head: Head) -> Result<(), Broken> {
        if head.stream == 0 || head.stream > self.last {
            return Err(Broken::protocol("DATA of a stream that was never opened"));
        }
        let length = u32::try_from(head.length).unwrap_or(u32::MAX);
        let room = self.room.checked_sub(length);
        self.room =
            room.ok_or_else(|| Broken::flow("more DATA than the connection's window has room for"))?;
        let padded = head.has(flag::PADDED);
        if padded && head.length == 0 {
            return Err(Broken::size("padded DATA without the length of the padding"));
        }
        let data = Data {
            stream: head.stream,
            left: head.length,
            padding: (!padded).then_some(0),
            ended: head.has(flag::END_STREAM),
        };
        self.admit_data(data, length)?;
        if data.left == 0 {
            return self.piece(data, &[]);
        }
        self.incomplete.data = Some(data);
        Ok(())
    }

    /// Whether a stream may have data, and as much of it.
    fn admit_data(&mut self, data: Data, length: u32) -> Result<(), Broken> {
        if length == 0 && !data.ended {
            self.charge("DATA without bytes")?;
        }
        let wrong = match self.streams.get_mut(&data.stream) {
            Some(stream) if !stream.begun && stream.coming == Coming::More => Some(Reason::PROTOCOL_ERROR),
            Some(stream) if stream.coming == Coming::More => match stream.room.checked_sub(length) {
                Some(room) => {
                    stream.room = room;
                    return Ok(());
                }
                None => Some(Reason::FLOW_CONTROL_ERROR),
            },
            Some(stream) if stream.coming == Coming::Ended => Some(Reason::STREAM_CLOSED),
            _ => None,
        };
        let reason = match wrong {
            Some(reason) => reason,
            None if self.gave_up(data.stream) => return Ok(()),
            None => Reason::STREAM_CLOSED,
        };
        self.charge("DATA that no stream has room for")?;
        self.refuse_frame(data.stream, reason);
        Ok(())
    }

    /// Takes what there is of a payload; returns what follows.
    fn data<'a>(&mut self, mut data: Data, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        let Some(padding) = data.padding else {
            return self.begin_padded(data, bytes);
        };
        let (now, rest) = bytes.split_at(data.left.min(bytes.len()));
        let before = data.left.saturating_sub(padding);
        data.left -= now.len();
        self.incomplete.data = (data.left > 0).then_some(data);
        self.watch.whole += u64::from(data.left == 0);
        let useful = &now[..before.min(now.len())];
        if !useful.is_empty() {
            data.left = before - useful.len();
            self.piece(data, useful)?;
        }
        Ok(rest)
    }

    fn begin_padded<'a>(&mut self, mut data: Data, bytes: &'a [u8]) -> Result<&'a [u8], Broken> {
        let Some((padding, rest)) = bytes.split_first() else {
            return Ok(bytes);
        };
        let padding = usize::from(*padding);
        data.left -= 1;
        if padding > data.left {
            return Err(Broken::protocol("more padding than payload"));
        }
        data.padding = Some(padding);
        // Nobody has to read it before there is room again.
        self.read(data.stream, padding + 1);
        self.incomplete.data = (data.left > 0).then_some(data);
        if data.left == padding {
            if !data.ended {
                self.charge("DATA of nothing but padding")?;
            }
            data.left = 0;
            self.piece(data, &[])?;
        }
        Ok(rest)
    }

    /// A piece of a body; the frame's last when `data.left` is zero.
    fn piece(&mut self, data: Data, bytes: &[u8]) -> Result<(), Broken> {
        let stream = self.streams.get_mut(&data.stream);
        let Some(stream) = stream.filter(|stream| stream.coming == Coming::More) else {
            self.give_back(bytes.len());
            return Ok(());
        };
        let ended = data.ended && data.left == 0;
        if !stream.count(bytes.len() as u64, ended) {
            self.give_back(bytes.len());
            self.charge("bodies that contradict their content-length")?;
            self.reset(data.stream, Reason::PROTOCOL_ERROR);
            return Ok(());
        }
        if !stream.read {
            self.read(data.stream, bytes.len());
            self.arrived(data.stream, ended);
            return Ok(());
        }
        if !bytes.is_empty() {
            let before = stream.arrived.spare();
            stream.arrived.push_copy(bytes);
            stream.moved = true;
            self.spare = self.spare + stream.arrived.spare() - before;
        }
        if stream.has_come(ended) {
            self.settle(data.stream);
        }
        Ok(())
    }

    /// Tells a stream's reader about news; `ended` by the last.
    pub(super) fn arrived(&mut self, number: u32, ended: bool) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if stream.has_come(ended) {
            self.settle(number);
        }
    }

    fn priority(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream == 0 {
            return Err(Broken::protocol("PRIORITY of the connection"));
        }
        let reason = if payload.len() != 5 {
            Reason::FRAME_SIZE_ERROR
        } else if depends_on(payload) == Some(head.stream) {
            Reason::PROTOCOL_ERROR
        } else {
            return self.charge_idle_frame("priorities");
        };
        self.charge("priorities that make no sense")?;
        self.refuse_frame(head.stream, reason);
        Ok(())
    }

    fn was_reset(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(Broken::size("RST_STREAM that is not four bytes long"));
        };
        if head.stream == 0 || head.stream > self.last {
            return Err(Broken::protocol("RST_STREAM of a stream that was never opened"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return self.charge_idle_frame("resets of streams that are over");
        };
        let unanswered = stream.answered && !stream.sent;
        let seen = stream.seen;
        self.cut_stream(head.stream, Cut::Reset(Reason(u32::from_be_bytes(code))));
        if seen {
            self.settle(head.stream);
        } else {
            self.abandon(head.stream);
        }
        if unanswered && self.role == Role::Server {
            self.charge("requests that are given up at once")?;
        }
        Ok(())
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream != 0 {
            return Err(Broken::protocol("SETTINGS of a stream"));
        }
        self.charge("settings that keep changing")?;
        if head.has(flag::ACK) {
            return if payload.is_empty() {
                Ok(())
            } else {
                Err(Broken::size("an acknowledgement of SETTINGS with a payload"))
            };
        }
        let before = self.asked;
        self.asked.update(payload)?;
        if self.asked.header_table != before.header_table {
            self.encoder.set_max_table(self.asked.header_table);
        }
        let change = i64::from(self.asked.window) - i64::from(before.window);
        if change != 0 {
            self.change_windows(change)?;
        }
        if self.asked.streams > before.streams {
            self.wake_waiting();
        }
        // What the new windows let out comes behind: a peer may look for the acknowledgement first.
        self.out.settings_ack();
        self.send_line();
        Ok(())
    }

    fn change_windows(&mut self, change: i64) -> Result<(), Broken> {
        self.charge_for_all("initial windows that keep changing")?;
        let mut able = Vec::new();
        for (number, stream) in &mut self.streams {
            #[cfg(test)]
            {
                self.visited += 1;
            }
            stream.window += change;
            if stream.window > i64::from(MAX_WINDOW) {
                return Err(Broken::flow("INITIAL_WINDOW_SIZE makes a window too large"));
            }
            if stream.can_send() && !stream.in_line {
                able.push(*number);
            }
        }
        able.sort_unstable();
        for number in able {
            self.stand_in_line(number);
        }
        Ok(())
    }

    fn ping(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream != 0 {
            return Err(Broken::protocol("PING of a stream"));
        }
        if payload.len() != 8 {
            return Err(Broken::size("PING that is not eight bytes long"));
        }
        if !head.has(flag::ACK) {
            self.out.pong(payload);
        } else if payload == LEAVE {
            self.leave_now();
        }
        self.charge_idle_frame("pings")
    }

    /// A client that goes away opens no more streams; those it has are answered. A server answers those up to the last
    /// that it names.
    fn go_away(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if head.stream != 0 {
            return Err(Broken::protocol("GOAWAY of a stream"));
        }
        let [l3, l2, l1, l0, r3, r2, r1, r0, ..] = *payload else {
            return Err(Broken::size("GOAWAY that is shorter than eight bytes"));
        };
        if self.role == Role::Server {
            return Ok(());
        }
        let last = u32::from_be_bytes([l3, l2, l1, l0]) & MAX_WINDOW;
        let why = Cut::GoneAway(Reason(u32::from_be_bytes([r3, r2, r1, r0])));
        self.set_phase(Phase::Left);
        self.charge_for_all("ends that keep changing")?;
        let refused: Vec<u32> = self.streams.keys().copied().filter(|n| *n > last).collect();
        for number in refused {
            self.cut_stream(number, why);
            self.forget(number);
        }
        self.wake_waiting();
        Ok(())
    }

    fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        let Ok(more) = <[u8; 4]>::try_from(payload) else {
            return Err(Broken::size("WINDOW_UPDATE that is not four bytes long"));
        };
        let more = i64::from(u32::from_be_bytes(more) & MAX_WINDOW);
        let before = self.out.len();
        if head.stream == 0 {
            self.open_window(more)?;
        } else if head.stream > self.last {
            return Err(Broken::protocol(
                "WINDOW_UPDATE of a stream that was never opened",
            ));
        } else {
            self.open_stream_window(head.stream, more)?;
        }
        if self.out.len() == before {
            self.charge_idle_frame("windows that let nothing out")?;
        }
        Ok(())
    }

    fn open_window(&mut self, more: i64) -> Result<(), Broken> {
        self.window += more;
        if more == 0 {
            return Err(Broken::protocol("WINDOW_UPDATE by nothing"));
        }
        if self.window > i64::from(MAX_WINDOW) {
            return Err(Broken::flow("the connection's window becomes too large"));
        }
        self.send_line();
        Ok(())
    }

    fn open_stream_window(&mut self, number: u32, more: i64) -> Result<(), Broken> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        stream.window += more;
        let reason = if more == 0 {
            Reason::PROTOCOL_ERROR
        } else if stream.window > i64::from(MAX_WINDOW) {
            Reason::FLOW_CONTROL_ERROR
        } else {
            self.stand_in_line(number);
            self.send_line();
            return Ok(());
        };
        self.charge("windows that make no sense")?;
        self.reset(number, reason);
        Ok(())
    }
}

/// Adds to a frame until it has `wanted` bytes; returns what follows.
fn fill<'a>(frame: &mut Vec<u8>, wanted: usize, bytes: &'a [u8]) -> &'a [u8] {
    let missing = wanted.saturating_sub(frame.len());
    let (more, rest) = bytes.split_at(missing.min(bytes.len()));
    frame.extend_from_slice(more);
    rest
}

/// The stream that a priority names.
pub(super) fn depends_on(priority: &[u8]) -> Option<u32> {
    let number = priority.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*number) & MAX_WINDOW)
}
