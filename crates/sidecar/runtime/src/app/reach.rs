//! Tracks whether the app is reachable, for log lines and error hints.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use outrigger_accept::LogThrottle;
use outrigger_transport::conn::{DialErrorKind, SendError};

use super::{AppError, AppProtocol};

const LOG: &str = "dapr.runtime";

/// The app has responded to a call.
const RESPONDED: u8 = 1;
/// A later connection was refused or lost, which has been logged.
const UNREACHABLE: u8 = 2;
/// The peer speaks another protocol, which has been logged.
const WRONG_PROTOCOL: u8 = 4;

/// Reachability of the app as seen by calls.
pub(super) struct Reach {
    state: AtomicU8,
    warning: Mutex<LogThrottle>,
    protocol: AppProtocol,
}

impl Reach {
    pub(super) fn new(protocol: AppProtocol) -> Self {
        Self {
            state: AtomicU8::new(0),
            warning: Mutex::default(),
            protocol,
        }
    }

    /// Records the outcome of a call.
    ///
    /// # Errors
    /// [`AppError::Send`].
    #[inline]
    pub(super) fn noted<T>(&self, sent: Result<T, SendError>) -> Result<T, AppError> {
        match sent {
            Ok(answer) => {
                if self.state.load(Ordering::Relaxed) != RESPONDED {
                    self.answered();
                }
                Ok(answer)
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    #[cold]
    fn answered(&self) {
        if self.state.swap(RESPONDED, Ordering::Relaxed) & (UNREACHABLE | WRONG_PROTOCOL) != 0 {
            tracing::info!(target: LOG, "app is reachable");
        }
    }

    #[cold]
    fn failed(&self, source: SendError) -> AppError {
        let heard = self.state.load(Ordering::Relaxed) & RESPONDED;
        let (trouble, hint, remedy) = match &source {
            SendError::Dial(error) => match error.kind {
                DialErrorKind::Connect(_) | DialErrorKind::Timeout(_) => (
                    UNREACHABLE,
                    "",
                    " (start it, or correct --app-port and --app-channel-address)",
                ),
                _ => (WRONG_PROTOCOL, self.hint(), ""),
            },
            SendError::Broken { .. } if !source.is_foreign() => (0, "", ""),
            SendError::Broken { .. } if heard == 0 => (WRONG_PROTOCOL, self.hint(), ""),
            // It has responded before, so it speaks the protocol.
            SendError::Broken { .. } if source.is_unavailable() => {
                (UNREACHABLE, "", " (check that the app still runs)")
            }
            SendError::Broken { .. } => (0, "", ""),
        };
        let error = AppError::Send { source, hint };
        let state = heard | trouble;
        // Without a log line the state stays, so that a later failure is logged.
        if trouble != 0 && self.state.load(Ordering::Relaxed) != state && self.may_warn() {
            self.state.store(state, Ordering::Relaxed);
            tracing::warn!(target: LOG, "call to the app failed: {error}{remedy}");
        }
        error
    }

    /// Limits the log lines of an app that fails only some calls.
    fn may_warn(&self) -> bool {
        let mut warning = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
        warning.happened().is_some()
    }

    /// Hint for a peer that may speak another protocol.
    fn hint(&self) -> &'static str {
        match self.protocol {
            AppProtocol::Http => " (check --app-protocol: http is HTTP/1.1 without TLS)",
            AppProtocol::Https => " (check --app-protocol: https is HTTP/1.1 with TLS)",
            AppProtocol::H2c => " (check --app-protocol: h2c is HTTP/2 without TLS)",
            AppProtocol::Grpc => " (check --app-protocol: grpc is gRPC without TLS)",
            AppProtocol::Grpcs => " (check --app-protocol: grpcs is gRPC with TLS)",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use outrigger_resources::configuration::Configuration;
    use outrigger_telemetry::metrics::Metrics;
    use outrigger_testing::log_lines::{Line, Lines};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tracing::Level;

    use super::*;
    use crate::app::{App, AppChannel, Health};
    use crate::metrics::SidecarMetrics;
    use crate::middleware::Middlewares;

    fn channel(address: SocketAddr, protocol: AppProtocol) -> AppChannel {
        let config = App {
            port: address.port(),
            protocol,
            address: address.ip().to_string(),
            max_concurrency: None,
            api_token: None,
            health: None,
            health_path: "/healthz".to_owned(),
            binding_options_timeout: Duration::from_secs(3),
            skip_config_endpoint: true,
            skip_subscribe_endpoint: true,
        };
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let middlewares = Arc::new(Middlewares::new(&Configuration::default()));
        AppChannel::build(&config, Health::new(true).1, None, metrics, middlewares).unwrap()
    }

    /// An app that answers the first bytes of each connection with `answer` and closes.
    async fn app(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _some = stream.read(&mut [0; 1024]).await;
                let _sent = stream.write_all(answer).await;
            }
        });
        address
    }

    fn logged(lines: &Lines) -> Vec<String> {
        lines.take(LOG, Level::INFO).iter().map(Line::to_string).collect()
    }

    #[tokio::test]
    async fn logs_wrong_protocol_once() {
        const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        // SETTINGS, which an HTTP/2 server sends first.
        const HTTP2: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
        for (answer, protocol, name) in [
            (HTTP, AppProtocol::Grpc, "grpc"),
            (b"".as_slice(), AppProtocol::Grpc, "grpc"),
            (HTTP, AppProtocol::H2c, "h2c"),
            (HTTP2, AppProtocol::Http, "http"),
            (HTTP, AppProtocol::Https, "https"),
            (HTTP, AppProtocol::Grpcs, "grpcs"),
        ] {
            let lines = Lines::new();
            let channel = channel(app(answer).await, protocol);
            let hint = format!("(check --app-protocol: {name} is ");
            for _ in 0..2 {
                let error = channel.health_check("/healthz").await.unwrap_err();
                assert!(error.contains(&hint), "{name}: {error}");
            }
            let lines = logged(&lines);
            assert!(lines.len() == 1 && lines[0].contains(&hint), "{name}: {lines:?}");
        }
    }

    /// Accepts one connection, reads one request, sends `answer` if not empty, and closes.
    async fn serve_one(listener: &TcpListener, answer: &[u8]) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _request = stream.read(&mut [0; 1024]).await.unwrap();
        stream.write_all(answer).await.unwrap();
    }

    /// Waits until another log line about the app is allowed.
    async fn another_line_is_due() {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn limits_log_lines_of_flaky_app() {
        const FINE: &[u8] = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
        let lines = Lines::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let channel = channel(listener.local_addr().unwrap(), AppProtocol::Http);
        let call = async |answer: &[u8]| {
            let (called, ()) = tokio::join!(channel.health_check("/healthz"), serve_one(&listener, answer));
            assert_eq!(called.is_ok(), answer == FINE);
        };
        call(FINE).await;
        for times in 0..2 {
            for _ in 0..3 {
                call(b"").await;
                call(FINE).await;
            }
            let logged = logged(&lines);
            assert!(
                logged.len() == 2 && logged[0].starts_with("WARN") && logged[1].starts_with("INFO"),
                "{times}: {logged:?}"
            );
            another_line_is_due().await;
        }
    }

    #[tokio::test]
    async fn logs_stopped_app_once() {
        const FINE: &[u8] = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
        let lines = Lines::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let channel = channel(address, AppProtocol::Http);
        let call = || channel.health_check("/healthz");
        let (first, ()) = tokio::join!(call(), serve_one(&listener, FINE));
        first.unwrap();
        assert_eq!(logged(&lines), Vec::<String>::new());

        // It closes during the call.
        let (during, ()) = tokio::join!(call(), serve_one(&listener, b""));
        during.unwrap_err();
        drop(listener);
        call().await.unwrap_err();
        let ended = logged(&lines);
        assert!(
            ended.len() == 1 && ended[0].contains("WARN call to the app failed"),
            "{ended:?}"
        );

        let listener = TcpListener::bind(address).await.unwrap();
        let (again, ()) = tokio::join!(call(), serve_one(&listener, FINE));
        again.unwrap();
        assert_eq!(logged(&lines), ["INFO app is reachable"]);

        // It closes between calls.
        another_line_is_due().await;
        drop(listener);
        for _ in 0..2 {
            call().await.unwrap_err();
        }
        let ended = logged(&lines);
        assert!(
            ended.len() == 1 && ended[0].contains(&address.to_string()) && ended[0].contains("--app-port"),
            "{ended:?}"
        );
    }
}
