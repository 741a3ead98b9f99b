//! Trace headers: no input panics, and accepted headers survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_telemetry::trace::{Baggage, TraceContext, TraceState};

fuzz_target!(|data: &[u8]| {
    if let Some(context) = TraceContext::from_grpc_trace_bin(data) {
        assert_eq!(&context.to_grpc_trace_bin()[..], data);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(context) = TraceContext::parse_traceparent(text) {
        assert_eq!(TraceContext::parse_traceparent(context.traceparent().as_str()), Some(context));
        assert_eq!(TraceContext::from_grpc_trace_bin(&context.to_grpc_trace_bin()), Some(context));
    }
    if let Some(state) = TraceState::parse(text) {
        assert_eq!(TraceState::parse(state.as_str()), Some(state));
    }
    if let Ok(baggage) = Baggage::parse(text) {
        // Encoding may extend the text beyond the limits; within them it is stable.
        if let Ok(again) = Baggage::parse(&baggage.encode()) {
            assert_eq!(again, baggage);
        }
    }
});
