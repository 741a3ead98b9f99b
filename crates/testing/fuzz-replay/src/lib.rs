//! Empty: see `tests/replay.rs`.
