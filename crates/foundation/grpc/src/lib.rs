//! Messages of gRPC as they arrive: their frames, and bounds of the time, the fields and the bytes that a peer may make a
//! server wait for or keep.

pub mod fields;
pub mod frame;
pub mod messages;
pub mod unfinished;
