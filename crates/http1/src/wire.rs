//! A connection as its own task and the body of the request it serves share it: the socket, what was read from it, and
//! what the body still lacks.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::body::Source;
use crate::chunks::{Part, Rest};
use crate::error::Cut;

/// Bytes that a read for a head may bring. They are read to the stack: an idle connection holds no buffer.
const HEAD_READ: usize = 8 * 1024;
/// Bytes that a read for a body may bring, at first, and after reads that were filled.
const BODY_READ: (usize, usize) = (16 * 1024, 256 * 1024);
/// Less room than this is not read into.
const WORTH_READING: usize = 4096;
/// What a client that waits is told.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub(crate) struct Wire<I>(Mutex<State<I>>);

pub(crate) struct State<I> {
    pub(crate) io: I,
    /// Read and not used yet.
    pub(crate) read: BytesMut,
    /// What is left of the body that is being received.
    pub(crate) rest: Rest,
    /// Whether the client waits to be asked for it.
    pub(crate) expects: bool,
    /// Counts requests: a body that outlives its own must not read from the next one.
    pub(crate) request: u64,
    /// What is left of the line that asks for the body.
    asking: &'static [u8],
    /// Bytes that the next read for a body may bring.
    room: usize,
    /// The connection's task, where it waits for the body to be read.
    waiting: Option<Waker>,
    /// Whoever waits for more of the body.
    reader: Option<Waker>,
}

impl<I> State<I> {
    pub(crate) fn new(io: I) -> Self {
        Self {
            io,
            read: BytesMut::new(),
            rest: Rest::Nothing,
            expects: false,
            request: 0,
            asking: &[],
            room: BODY_READ.0,
            waiting: None,
            reader: None,
        }
    }

    /// Takes the body from whoever still has it. Whoever waits for more of it hears that nothing comes.
    pub(crate) fn abandon(&mut self) {
        self.request += 1;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl<I> Wire<I> {
    pub(crate) fn new(io: I) -> Self {
        Self(Mutex::new(State::new(io)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_state(self) -> State<I> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> State<I> {
    /// Reads what there is of a head; no bytes when the client has left.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::uninit() }; HEAD_READ];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut space))?;
        self.read.extend_from_slice(space.filled());
        Poll::Ready(Ok(space.filled().len()))
    }

    /// Reads what there is of a body; no bytes when the client has left.
    fn poll_read_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < WORTH_READING {
            self.read.reserve(self.room);
        }
        let room = self.read.capacity() - self.read.len();
        let read = ready!(pin!(self.io.read_buf(&mut self.read)).poll(cx))?;
        if read == room {
            self.room = (self.room * 2).min(BODY_READ.1);
        }
        Poll::Ready(Ok(read))
    }

    /// Ready when the client has left, as far as that can be seen: up to `limit` bytes of what it says next are kept.
    /// Not looked for while the body is still to be read, which is the business of whoever reads it.
    pub(crate) fn poll_gone(&mut self, limit: usize, cx: &mut Context<'_>) -> Poll<()> {
        if !self.rest.is_nothing() {
            self.waiting = Some(cx.waker().clone());
            return Poll::Pending;
        }
        while self.read.len() < limit {
            match ready!(self.poll_read(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        Poll::Pending
    }

    /// Takes the next piece of the body, reading as necessary.
    pub(crate) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part, Cut>> {
        loop {
            if let Some(part) = self.rest.take(&mut self.read)? {
                if self.rest.is_nothing()
                    && let Some(waiting) = self.waiting.take()
                {
                    waiting.wake();
                }
                return Poll::Ready(Ok(part));
            }
            if std::mem::take(&mut self.expects) && self.read.is_empty() {
                self.asking = CONTINUE;
            }
            if ready!(self.poll_ask(cx)).is_err() {
                return Poll::Ready(Err(self.rest.lose(Cut::Connection)));
            }
            match ready!(self.poll_read_body(cx)) {
                Ok(0) if matches!(self.rest, Rest::All) => self.rest = Rest::Nothing,
                Ok(0) | Err(_) => return Poll::Ready(Err(self.rest.lose(Cut::Connection))),
                Ok(_) => {}
            }
        }
    }

    /// Writes what is left of the line that asks for the body.
    pub(crate) fn poll_ask(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.asking.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, self.asking))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.asking = &self.asking[written..],
            }
            if self.asking.is_empty() {
                ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send> Source for Wire<I> {
    fn poll_part(&self, request: u64, cx: &mut Context<'_>) -> Poll<Result<Part, Cut>> {
        let mut state = self.state();
        if state.request != request {
            return Poll::Ready(Err(Cut::Answered));
        }
        let part = state.poll_part(cx);
        if part.is_pending() {
            state.reader = Some(cx.waker().clone());
        }
        part
    }
}
