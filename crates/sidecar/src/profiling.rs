//! The profiling server: what the process is doing, in text.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use tokio::runtime::Handle;

use crate::api::error::{bytes_response, text_response};
use crate::body::Body;
use crate::listen::{Client, Handler};

/// `/debug/pprof/` (index), `/debug/pprof/cmdline`, `/debug/runtime` (scheduler), `/debug/memory` (process).
pub struct Profiling {
    control: Handle,
    data: Handle,
}

impl Profiling {
    /// Reports on the control runtime and the one it is called on.
    pub fn new(control: Handle) -> Self {
        Self {
            control,
            data: Handle::current(),
        }
    }
}

impl Handler for Profiling {
    async fn handle(self: Arc<Self>, _client: Arc<Client>, request: Request<Body>) -> Response<Body> {
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
            _ => return text_response(StatusCode::NOT_FOUND, "404 page not found"),
        };
        let content_type = http::HeaderValue::from_static("text/plain; charset=utf-8");
        bytes_response(StatusCode::OK, content_type, text.into())
    }
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
