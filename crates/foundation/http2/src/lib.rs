//! HTTP/2 (RFC 9113) for the data path: [`serve`] accepts a connection, [`connect`] opens one. `tests/http2/differential.rs` holds
//! the same conversations with hyper and h2, and lists where they may differ.
//!
//! # Why our own
//!
//! gRPC calls through a sidecar are small, and many. In h2 each takes several locks, wakers and a task of its own; here
//! a request that was received whole, and whose answer is ready when the service is first polled, is answered in the
//! turn in which it was read, without a task, a wake-up or a second write. Values of fields are kept parsed in the
//! tables of the header compression, so that a field that comes by its index costs a count of references.
//!
//! # A turn
//!
//! A connection is one task. In its *turn* (`driver.rs`) it reads up to 32 KiB at a time into a buffer that
//! belongs to the thread, takes the frames in it, hands over the requests that they made, and writes everything that
//! was queued meanwhile in one write. After 8 reads, 1,024 frames or 128 requests others have their turn.
//!
//! All that a connection knows is one value, `State`, behind one lock that is never held while something waits
//! (`state.rs`). It touches no socket: bytes go in (`State::receive`), frames come out
//! in a `WriteBuffer`, wakers are woken. Handles of streams (`RecvStream`, `SendStream`) lock it for a moment.
//! `state` has a file for each part: frames and DATA (`receive`), field blocks (`headers`), the other frames
//! (`control`), windows (`windows`), what is sent (`send`), how streams begin and end (`lifecycle`), GOAWAY
//! (`shutdown`), and time limits (`timeouts`).
//!
//! What a body has in memory leaves with its head (`send_stream.rs`); only what has to be waited for gets a task.
//! Large payloads are written from where they are (`write_buffer.rs`). Tasks run in the order in which they were
//! woken, so after a burst of answers the connection's own task would run last and the peer idle until then: every
//! fourth stream that has queued frames writes them itself (`transport.rs`). URIs that were called before are
//! kept parsed (`fields.rs`).
//!
//! # Streams
//!
//! A stream's state is that of RFC 9113 section 5.1, in one enum (`stream.rs`). Besides, an entry has a handle
//! for each direction, held or dropped. It is removed when the stream is closed and both are dropped. A server that has
//! answered and whose request nobody reads resets it with NO_ERROR; a client whose response nobody wants, with CANCEL.
//! Streams that we reset are remembered in 1,024 places, so that frames which were on their way are ignored.
//!
//! # Queues
//!
//! What is received and not read, and what is to be sent and not let out by a window, waits in a `Queue` of the stream:
//! one piece without an allocation, small ones gathered in chunks of 16 KiB. Memory that is allocated and not filled
//! counts as received, so that frames of one byte cannot take more memory than the window. Streams that have something
//! to send stand in one of two lines: those that may send, of which each sends a frame in turn, and those that wait for
//! nothing but the connection's window, which are not looked at before it opens. The work for a frame therefore does not
//! depend on how many streams there are.
//!
//! # Windows
//!
//! What a reader takes is given back by WINDOW_UPDATE once it is half of a window. The connection's window has room for
//! those of many streams, so that streams which nobody reads cannot stop the others. Windows follow the bandwidth-delay
//! product within a cap for each connection and one for all: see `state/windows.rs`.
//!
//! Towards the peer, a body is taken from the application as long as less than [`Config::send_buffer`] waits on its
//! stream; beyond [`limits::SEND_BUFFERS`] on all streams, one piece each.
//!
//! # Limits against hostile peers
//!
//! Everything that a peer can make grow is bounded: see [`limits`], and `docs/reference/limits.md` for all of them with their
//! numbers. Frames that cost us more than the peer, or that have no effect, are charged to a budget
//! ([`limits::UNPRODUCTIVE_FRAMES`]); those that come in proportion to streams and DATA are free. A header list has a
//! limit of its own and one for all streams of a connection; what is too large is answered on its stream, and its block
//! is decoded all the same, for the tables. The peer's SETTINGS_MAX_HEADER_LIST_SIZE is respected: what exceeds it is
//! not sent, and fails on its stream ([`StreamError::PeerHeaderListLimit`]). What makes no progress is found at
//! intervals (`state/timeouts.rs`), so that no stream needs a timer.

mod boundary;
mod client;
mod driver;
mod error;
mod fields;
// These two are public for what speaks HTTP/2 frame by frame: the load of `crates/testing/bench`, tests and fuzz targets.
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
