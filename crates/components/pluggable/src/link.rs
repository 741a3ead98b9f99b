//! The connection to a component's process.

use std::{
    fmt, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body};
use tower::Service;

use super::status;

/// Header with the name of the component resource.
const INSTANCE: &str = "x-component-instance";
/// Connecting to a local socket either succeeds at once or fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of Init after a restart of the process.
const REINIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Flow-control windows of a stream and of the connection.
const WINDOWS: (u32, u32) = (1 << 20, 4 << 20);

/// Authority of a gRPC server on a Unix socket.
pub(super) fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

/// Sends Init to a process before any other call.
type Init = Box<dyn Fn(Conn) -> BoxFuture<'static, Result<(), Status>> + Send + Sync>;

/// A connection that reconnects when it breaks, and initialises a restarted process again.
pub(super) struct Link {
    socket: PathBuf,
    instance: HeaderValue,
    init: Init,
    live: Mutex<Live>,
    /// Held while connecting; the last initialised process.
    initialized: tokio::sync::Mutex<Option<Process>>,
}

enum Live {
    Open(Option<Conn>),
    Closed,
}

/// Why there is no connection or answer.
#[derive(Debug)]
pub(super) enum LinkError {
    Closed,
    Dial { socket: PathBuf, cause: String },
    Lost { socket: PathBuf, cause: String },
    Init { socket: PathBuf, status: Status },
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the component is closed"),
            Self::Dial { socket, cause } => {
                write!(f, "cannot connect to socket {}: {cause}", socket.display())
            }
            Self::Lost { socket, cause } => {
                write!(f, "the connection to socket {} broke: {cause}", socket.display())
            }
            Self::Init { socket, status } => {
                let text = status::text(status);
                write!(
                    f,
                    "the component at socket {} did not start: {text}",
                    socket.display()
                )
            }
        }
    }
}

// The text is complete, so there is no source.
impl std::error::Error for LinkError {}

impl Link {
    /// A link to `socket` for the component resource `instance`; does not connect.
    pub(super) fn new<F, R>(socket: &Path, instance: HeaderValue, init: F) -> Arc<Self>
    where
        F: Fn(Conn) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Status>> + Send + 'static,
    {
        Arc::new(Self {
            socket: socket.to_owned(),
            instance,
            init: Box::new(move |conn| Box::pin(init(conn))),
            live: Mutex::new(Live::Open(None)),
            initialized: tokio::sync::Mutex::new(None),
        })
    }

    /// The current connection, or a new one.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Conn, LinkError> {
        if let Some(conn) = self.current()? {
            return Ok(conn);
        }
        // In a separate task, because other callers wait for this initialisation if one gives up. It has a
        // timeout, and is dropped after `close`.
        let link = Arc::clone(self);
        let connecting = tokio::spawn(async move { link.reconnect().await });
        match connecting.await {
            Ok(result) => result,
            Err(error) => Err(self.dial_error(error)),
        }
    }

    async fn reconnect(&self) -> Result<Conn, LinkError> {
        let mut initialized = self.initialized.lock().await;
        if let Some(conn) = self.current()? {
            return Ok(conn);
        }
        let dialling = timeout(CONNECT_TIMEOUT, dial(&self.socket, &self.instance)).await;
        let dialled = dialling.unwrap_or_else(|_| Err(format!("no connection within {CONNECT_TIMEOUT:?}")));
        let (conn, process) = dialled.map_err(|cause| self.dial_error(cause))?;
        if *initialized != Some(process) {
            if initialized.is_some() {
                tracing::info!(
                    target: super::discovery::LOG,
                    "the component at socket {} was restarted; initialising it again",
                    self.socket.display()
                );
            }
            let answered = timeout(REINIT_TIMEOUT, (self.init)(conn.clone())).await;
            let late = || {
                Err(Status::deadline_exceeded(format!(
                    "no answer within {REINIT_TIMEOUT:?}"
                )))
            };
            answered
                .unwrap_or_else(|_| late())
                .map_err(|status| LinkError::Init {
                    socket: self.socket.clone(),
                    status,
                })?;
            *initialized = Some(process);
        }
        match &mut *self.live() {
            Live::Closed => return Err(LinkError::Closed),
            Live::Open(live) => *live = Some(conn.clone()),
        }
        Ok(conn)
    }

    fn current(&self) -> Result<Option<Conn>, LinkError> {
        match &*self.live() {
            Live::Closed => Err(LinkError::Closed),
            Live::Open(conn) => Ok(conn.clone().filter(|conn| !conn.send.is_closed())),
        }
    }

    /// Refuses new calls; calls in flight are answered.
    pub(super) fn close(&self) {
        *self.live() = Live::Closed;
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dial_error(&self, cause: impl fmt::Display) -> LinkError {
        LinkError::Dial {
            socket: self.socket.clone(),
            cause: cause.to_string(),
        }
    }

    async fn send(self: Arc<Self>, mut request: Request<Body>) -> Result<Response<Incoming>, LinkError> {
        let mut again = false;
        loop {
            let conn = self.connect().await?;
            let mut error = match conn.try_send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            // The connection ended between two calls, so nothing was sent.
            match error.take_message() {
                Some(unsent) if !again => (request, again) = (unsent, true),
                _ => {
                    return Err(LinkError::Lost {
                        socket: self.socket.clone(),
                        cause: chain(&error.into_error()),
                    });
                }
            }
        }
    }
}

/// A service for gRPC clients that uses the link's current connection.
#[derive(Clone)]
pub(super) struct Caller(pub(super) Arc<Link>);

impl Service<Request<Body>> for Caller {
    type Response = Response<Incoming>;
    type Error = LinkError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(Arc::clone(&self.0).send(request))
    }
}

/// One connection.
#[derive(Clone)]
pub(super) struct Conn {
    send: http2::SendRequest<Body>,
    instance: HeaderValue,
    ended: CancellationToken,
}

impl Conn {
    /// Waits until the connection ends.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    fn try_send(
        &self,
        mut request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + use<> {
        request.headers_mut().insert(INSTANCE, self.instance.clone());
        self.send.clone().try_send_request(request)
    }
}

impl Service<Request<Body>> for Conn {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sending = self.try_send(request);
        Box::pin(async move { sending.await.map_err(TrySendError::into_error) })
    }
}

/// Identifies the process behind a socket: it changes if the file is bound again or the process id changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    file: (u64, u64, i64, i64),
    pid: Option<i32>,
}

fn file(socket: &Path) -> io::Result<(u64, u64, i64, i64)> {
    let file = std::fs::metadata(socket)?;
    Ok((file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

/// Connects to the process behind `socket`.
pub(super) async fn connect(socket: &Path, instance: &HeaderValue) -> Result<Conn, String> {
    dial(socket, instance).await.map(|(conn, _)| conn)
}

async fn dial(socket: &Path, instance: &HeaderValue) -> Result<(Conn, Process), String> {
    let (stream, process) = loop {
        let before = file(socket).map_err(|error| error.to_string())?;
        match UnixStream::connect(socket).await {
            Ok(stream) if file(socket).is_ok_and(|after| after == before) => {
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                break (stream, Process { file: before, pid });
            }
            // The socket was bound again, or its backlog is full; the caller's timeout ends this.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let (send, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| chain(&error))?;
    let ended = CancellationToken::new();
    let end = ended.clone().drop_guard();
    // Ends with its last handle, which the link drops on close, and with the calls in flight.
    tokio::spawn(async move {
        let _end = end;
        // Calls on the connection receive its error.
        let _ended = connection.await;
    });
    let conn = Conn {
        send,
        instance: instance.clone(),
        ended,
    };
    Ok((conn, process))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
