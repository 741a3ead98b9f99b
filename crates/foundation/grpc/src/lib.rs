//! Receiving gRPC messages: framing, and limits on the time, the fields and the bytes that a peer can make
//! a server wait for or retain.

pub mod fields;
pub mod frame;
pub mod messages;
pub mod unfinished;
