//! The profiling server, which reports the activity of the process as text.

use std::fmt::Write as _;
use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use outrigger_accept::{Limits, serve_http1};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Serves `/debug/pprof/` (index), `/debug/pprof/cmdline`, `/debug/runtime` (scheduler) and `/debug/memory`
/// (process).
pub struct Profiling {
    control: Handle,
    data: Handle,
}

impl Profiling {
    /// Reports on the control runtime and on the current one.
    pub fn new(control: Handle) -> Self {
        Self {
            control,
            data: Handle::current(),
        }
    }
}

/// Connection limits; beyond them the oldest idle connection is closed.
const LIMITS: Limits = Limits {
    connections: 32,
    per_source: 16,
};

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, profiling: Arc<Profiling>, stop: CancellationToken) {
    let answer = move |request: Request<_>| ready(profiling.answer(&request));
    serve_http1(listener, LIMITS, stop, answer).await;
}

impl Profiling {
    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let text = match request.uri().path() {
            "/debug/pprof" | "/debug/pprof/" => {
                "/debug/pprof/cmdline\n/debug/runtime\n/debug/memory\n".to_owned()
            }
            "/debug/pprof/cmdline" => std::env::args().collect::<Vec<_>>().join("\0"),
            "/debug/runtime" => {
                let mut text = String::new();
                describe(&mut text, "data", &self.data);
                describe(&mut text, "control", &self.control);
                text
            }
            "/debug/memory" => std::fs::read_to_string("/proc/self/status").unwrap_or_default(),
            _ => return text_response(StatusCode::NOT_FOUND, "404 page not found".to_owned()),
        };
        text_response(StatusCode::OK, text)
    }
}

fn text_response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn describe(text: &mut String, name: &str, runtime: &Handle) {
    let metrics = runtime.metrics();
    let _infallible = writeln!(
        text,
        "{name}: workers {} tasks {} queued {}",
        metrics.num_workers(),
        metrics.num_alive_tasks(),
        metrics.global_queue_depth()
    );
}
