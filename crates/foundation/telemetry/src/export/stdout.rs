//! Spans as log lines.

use std::sync::Arc;
use std::time::SystemTime;

use crate::trace::SpanData;

/// Logs one info line per span to the process log, whatever its output.
pub(super) fn log(spans: &[Arc<SpanData>]) {
    for span in spans {
        tracing::info!(target: "dapr.runtime.trace", "{}", line(span));
    }
}

fn line(span: &SpanData) -> String {
    let parent = u64::from_be_bytes(span.parent.unwrap_or_default());
    format!(
        "[{}] Trace: {} Span: {parent:016x}/{} Time: [{} ->  {}] Annotations: []",
        span.name,
        span.context.trace_id_hex(),
        span.context.span_id_hex(),
        time(span.start),
        time(span.end),
    )
}

fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map(|t| t.to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::trace::{SpanKind, Status, TraceContext};

    #[test]
    fn line_has_all_fields() {
        let span = SpanData {
            name: "/v1.0/state/s".into(),
            scope: "dapr-diagnostics",
            kind: SpanKind::Client,
            context: TraceContext {
                trace_id: [1; 16],
                span_id: [2; 8],
                flags: 1,
            },
            state: None,
            parent: Some([3; 8]),
            start: UNIX_EPOCH,
            end: UNIX_EPOCH + Duration::from_millis(1500),
            attributes: Vec::new(),
            lists: Vec::new(),
            events: Vec::new(),
            status: Status::Unset,
        };
        assert_eq!(
            line(&span),
            "[/v1.0/state/s] Trace: 01010101010101010101010101010101 Span: 0303030303030303/0202020202020202 \
             Time: [1970-01-01T00:00:00Z ->  1970-01-01T00:00:01.5Z] Annotations: []"
        );
    }
}
