//! The trace context and its two encodings.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::HeaderValue;

/// Header and metadata name of the W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// Header and metadata name of the W3C trace state.
pub const TRACESTATE: &str = "tracestate";
/// Binary metadata name of the trace context in gRPC.
pub const GRPC_TRACE_BIN: &str = "grpc-trace-bin";

const SAMPLED: u8 = 1;
const BIN_LEN: usize = 29;

/// Trace ID, span ID and flags of a request (W3C Trace Context). IDs are never all zero, except in
/// [`TraceContext::ZERO`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Identifies the trace.
    pub trace_id: [u8; 16],
    /// Identifies the caller's span.
    pub span_id: [u8; 8],
    /// Bit 0: sampled. Other bits are passed through.
    pub flags: u8,
}

impl TraceContext {
    /// The all-zero context, which events carry instead of none.
    pub const ZERO: Self = Self {
        trace_id: [0; 16],
        span_id: [0; 8],
        flags: 0,
    };

    /// An unsampled context with random IDs.
    pub fn random() -> Self {
        let trace_id = loop {
            let id: u128 = rand::random();
            if id != 0 {
                break id.to_be_bytes();
            }
        };
        Self {
            trace_id,
            span_id: random_span_id(),
            flags: 0,
        }
    }

    /// The same trace with a new random span ID and the given sampling decision.
    #[must_use]
    pub fn child(self, sampled: bool) -> Self {
        let flags = if sampled {
            self.flags | SAMPLED
        } else {
            self.flags & !SAMPLED
        };
        Self {
            span_id: random_span_id(),
            flags,
            ..self
        }
    }

    /// Whether the sampled flag is set.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Parses a `traceparent` value: version `00` to `fe` (version `00` with exactly four parts), IDs not
    /// zero.
    pub fn parse_traceparent(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let trace_id = hex(parts.next()?)?;
        let span_id = hex(parts.next()?)?;
        let flags: [u8; 1] = hex(parts.next()?)?;
        let more = parts.next().is_some();
        if version[0] == 0xff || (version[0] == 0 && more) {
            return None;
        }
        Self {
            trace_id,
            span_id,
            flags: flags[0],
        }
        .valid()
    }

    /// Parses a `traceparent` header or metadata value.
    pub fn from_header(value: &HeaderValue) -> Option<Self> {
        Self::parse_traceparent(value.to_str().ok()?)
    }

    /// Parses the 29 bytes of `grpc-trace-bin`: version 0, then trace ID (field 0), span ID (1), flags (2).
    pub fn from_grpc_trace_bin(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BIN_LEN] = bytes.try_into().ok()?;
        if bytes[0] != 0 || bytes[1] != 0 || bytes[18] != 1 || bytes[27] != 2 {
            return None;
        }
        let mut trace_id = [0; 16];
        trace_id.copy_from_slice(&bytes[2..18]);
        let mut span_id = [0; 8];
        span_id.copy_from_slice(&bytes[19..27]);
        Self {
            trace_id,
            span_id,
            flags: bytes[28],
        }
        .valid()
    }

    /// The value of `grpc-trace-bin` before its base64 encoding.
    pub fn to_grpc_trace_bin(self) -> [u8; BIN_LEN] {
        let mut out = [0; BIN_LEN];
        out[2..18].copy_from_slice(&self.trace_id);
        out[18] = 1;
        out[19..27].copy_from_slice(&self.span_id);
        out[27] = 2;
        out[28] = self.flags;
        out
    }

    /// The value of `grpc-trace-bin` in HTTP/2 headers: base64 without padding.
    pub fn grpc_trace_bin_header(self) -> HeaderValue {
        let text = STANDARD_NO_PAD.encode(self.to_grpc_trace_bin());
        // Base64 is valid in a header.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// The `traceparent` text with version `00`, without allocating.
    pub fn traceparent(self) -> TraceParent {
        let mut buf = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut buf[3..35], &self.trace_id);
        write_hex(&mut buf[36..52], &self.span_id);
        write_hex(&mut buf[53..55], &[self.flags]);
        TraceParent(buf)
    }

    /// Trace id in lower-case hex.
    pub fn trace_id_hex(self) -> String {
        hex_string(&self.trace_id)
    }

    /// Span id in lower-case hex.
    pub fn span_id_hex(self) -> String {
        hex_string(&self.span_id)
    }

    fn valid(self) -> Option<Self> {
        (self.trace_id != [0; 16] && self.span_id != [0; 8]).then_some(self)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceContext({})", self.traceparent().as_str())
    }
}

/// A formatted `traceparent`: 55 ASCII characters on the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceParent([u8; 55]);

impl TraceParent {
    /// The text.
    pub fn as_str(&self) -> &str {
        // Always ASCII: hex digits and dashes.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// As a header value.
    pub fn to_header(&self) -> HeaderValue {
        // Hex digits and dashes are valid in a header.
        HeaderValue::from_bytes(&self.0).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn random_span_id() -> [u8; 8] {
    loop {
        let id: u64 = rand::random();
        if id != 0 {
            return id.to_be_bytes();
        }
    }
}

/// Parses exactly `2 * N` hex digits of either case.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(out)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn write_hex(out: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

fn hex_string(bytes: &[u8]) -> String {
    let mut buf = vec![0; bytes.len() * 2];
    write_hex(&mut buf, bytes);
    // Always ASCII.
    String::from_utf8(buf).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_round_trips() {
        let ctx = TraceContext::parse_traceparent(TEXT).unwrap();
        assert!(ctx.is_sampled());
        assert_eq!(ctx.trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(ctx.span_id_hex(), "00f067aa0ba902b7");
        assert_eq!(ctx.traceparent().as_str(), TEXT);
        assert_eq!(ctx.traceparent().to_header(), TEXT);
    }

    #[test]
    fn validates_traceparent() {
        let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (text, ok) in [
            (format!("00-{ids}"), true),
            (format!("fe-{ids}"), true),
            (format!("01-{ids}-more"), true),
            (format!("00-{ids}-more"), false),
            (format!("ff-{ids}"), false),
            (format!("0-{ids}"), false),
            (ids.to_owned(), false),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), false),
            (
                format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
                false,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01".to_owned(),
                false,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1".to_owned(),
                false,
            ),
            (String::new(), false),
        ] {
            assert_eq!(TraceContext::parse_traceparent(&text).is_some(), ok, "{text}");
        }
    }

    #[test]
    fn child_keeps_trace() {
        let parent = TraceContext::parse_traceparent(TEXT).unwrap();
        let child = parent.child(false);
        assert_eq!(child.trace_id, parent.trace_id);
        assert_ne!(child.span_id, parent.span_id);
        assert!(!child.is_sampled());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,80}") {
            let _ = TraceContext::parse_traceparent(&text);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(ctx) = TraceContext::from_grpc_trace_bin(&bytes) {
                prop_assert_eq!(&ctx.to_grpc_trace_bin()[..], &bytes[..]);
            }
        }

        #[test]
        fn encodings_agree(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) {
            prop_assume!(trace_id != [0; 16] && span_id != [0; 8]);
            let ctx = TraceContext { trace_id, span_id, flags };
            prop_assert_eq!(TraceContext::parse_traceparent(ctx.traceparent().as_str()), Some(ctx));
            prop_assert_eq!(TraceContext::from_grpc_trace_bin(&ctx.to_grpc_trace_bin()), Some(ctx));
        }
    }
}
