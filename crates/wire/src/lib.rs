//! Generated messages and services of the wire contract, and codecs for the hot path.
