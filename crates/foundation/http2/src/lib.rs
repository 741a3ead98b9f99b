//! HTTP/2 (RFC 9113) for the data path: [`serve`] accepts a connection, [`connect`] opens one.
//! `tests/http2/differential.rs` runs the same conversations against hyper and h2, and lists the permitted
//! differences.
//!
//! # Why not h2
//!
//! Calls through a sidecar are small and frequent. In h2 each takes several locks, wakers and a task. Here
//! the connection's task answers a request in the turn in which it was read, if the request arrived whole
//! and the response is ready at the first poll: no other task, no wake-up, no second write. The header
//! compression tables hold parsed values, so an indexed field costs one reference count.
//!
//! # Turns
//!
//! A connection is one task. In each *turn* (`driver.rs`) it reads up to 32 KiB at a time into a per-thread
//! buffer, parses the frames, dispatches the requests, and writes all queued output in one write. It yields
//! after 8 reads, 1,024 frames or 128 requests.
//!
//! All state of a connection is in one value, `State`, behind one lock that is never held across an await
//! (`state.rs`). `State` does no I/O: bytes go in (`State::receive`), frames come out in a `WriteBuffer`,
//! and wakers are woken. Stream handles (`RecvStream`, `SendStream`) lock it briefly. Its submodules:
//! frames and DATA (`receive`), field blocks (`headers`), other frames (`control`), flow control
//! (`windows`), output (`send`), the start and end of streams (`lifecycle`), GOAWAY (`shutdown`), and time
//! limits (`timeouts`).
//!
//! Body bytes that are already in memory are sent together with the head (`send_stream.rs`); only a body
//! that is still being produced gets a task. Large payloads are written without a copy (`write_buffer.rs`).
//! Tasks run in the order in which they were woken, so after a burst of responses the connection's task
//! would run last and leave the peer idle. Therefore every fourth stream with queued frames flushes them
//! itself (`transport.rs`). Parsed URIs are cached (`fields.rs`).
//!
//! # Streams
//!
//! A stream's state is an enum with the states of RFC 9113 section 5.1 (`stream.rs`). An entry also has a
//! handle for each direction, held or dropped. It is removed when the stream is closed and both handles are
//! dropped. A server that has responded resets a stream whose request is not being read with NO_ERROR; a
//! client that drops a response resets the stream with CANCEL. A table of 1,024 slots remembers locally
//! reset streams, so that frames in flight are ignored.
//!
//! # Queues
//!
//! Received data that is not read yet, and output that a window blocks, waits in a `Queue` of the stream.
//! The first piece takes no allocation; small pieces are merged into chunks of 16 KiB. Allocated but
//! unfilled memory counts as received, so one-byte frames cannot take more memory than the window. Streams
//! with pending output are in one of two queues. Streams in the first may send, one frame each in turn.
//! Streams in the second wait only for the connection's window and are not visited before it opens. The
//! work per frame is therefore independent of the number of streams.
//!
//! # Flow control
//!
//! A WINDOW_UPDATE returns what the reader has consumed once it reaches half of a window. The connection's
//! window covers many streams, so unread streams cannot stall the others. Windows grow with the
//! bandwidth-delay product, within a cap per connection and one for all connections: see
//! `state/windows.rs`.
//!
//! The connection polls the application for more of a body while less than [`Config::send_buffer`] is
//! queued on its stream. Above [`limits::SEND_BUFFERS`] in total, each stream may queue one piece.
//!
//! # Limits against hostile peers
//!
//! Every resource that a peer can consume is bounded: see [`limits`], and `docs/reference/limits.md` for
//! all of them with their numbers. Frames that cost this side more than the peer, or that have no effect,
//! are charged to a budget ([`limits::UNPRODUCTIVE_FRAMES`]). Frames in proportion to streams and DATA are
//! free. Header lists are limited each, and together over all streams of a connection. An oversized list
//! fails its stream only; its block is still decoded to keep the tables in sync. A header list that exceeds
//! the peer's SETTINGS_MAX_HEADER_LIST_SIZE is not sent and fails its stream
//! ([`StreamError::PeerHeaderListLimit`]). Stalled streams are detected at intervals (`state/timeouts.rs`),
//! so no stream needs a timer.

mod boundary;
mod client;
mod driver;
mod error;
mod fields;
// Public for users that handle single frames: the load generator in `crates/testing/bench`, tests and fuzz
// targets.
pub mod frame;
pub mod hpack;
pub mod limits;
mod open_streams;
mod queue;
mod recv_stream;
mod send_stream;
mod server;
mod settings;
mod state;
mod stream;
pub mod target;
mod transport;
mod write_buffer;

pub use boundary::{Incoming, Io, KeepAlive, Service, Timeouts, TrySendError, Upgrade};
pub use client::{Connection, SendRequest, connect};
pub use error::{ConnectionError, Error, Reason, StreamError};
pub use frame::PREFACE;
pub use open_streams::{OpenStreams, TOO_MANY_CALLS};
pub use recv_stream::RecvStream;
pub use server::serve;
pub use settings::{Config, SharedLimit, WindowMemory};
