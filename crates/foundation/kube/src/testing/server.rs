//! The test server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::state::{State, refused};
use crate::client::Client;

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct ServerState {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    asked: Notify,
    /// A change ends all watches.
    cut: watch::Sender<u64>,
}

/// An API server that runs until dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts without objects.
    ///
    /// # Panics
    /// Without a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(ServerState {
            state: Mutex::new(State::new()),
            changed: watch::Sender::default(),
            asked: Notify::new(),
            cut: watch::Sender::default(),
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                let service = service_fn(move |request| serve(Arc::clone(&shared), request));
                connections.spawn(async move {
                    // How a connection ends does not matter here.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            shared,
            task,
        }
    }

    /// A client of this server.
    ///
    /// # Panics
    /// Never in a working process.
    pub fn client(&self) -> Client {
        Client::plain(self.address).expect("a client")
    }

    /// The listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stores an object at an address such as `/api/v1/namespaces/ns/secrets/s`.
    pub fn put(&self, address: &str, object: Value) {
        self.state().put(address, object);
        self.changed();
    }

    /// Deletes an object.
    pub fn delete(&self, address: &str) {
        self.state().delete(address);
        self.changed();
    }

    /// The object at the path `address`, if any.
    pub fn object(&self, address: &str) -> Option<Value> {
        self.state().get(address).cloned()
    }

    /// Sets a fixed response for requests at an address.
    pub fn fix(&self, address: &str, status: StatusCode, value: Value) {
        self.state().fixed.insert(address.to_owned(), (status, value));
    }

    /// Starts or stops refusing all requests; open watches end.
    pub fn down(&self, down: bool) {
        self.state().down = down;
        self.cut();
    }

    /// Starts or stops leaving new requests unanswered.
    pub fn silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Ends open watches.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|times| *times += 1);
    }

    /// Drops the history: watches of older versions have expired.
    pub fn forget(&self) {
        let mut state = self.state();
        state.forgotten = state.version();
        state.events.clear();
    }

    /// Serves lists without versions, and watches that end at once.
    pub fn versionless(&self) {
        self.state().versionless = true;
    }

    /// Refuses only watches: by the response status, or within the stream.
    pub fn refuse_watches(&self, status: StatusCode, in_stream: bool) {
        self.state().unwatched = Some((status, in_stream));
    }

    /// Bodies of the requests so far with this method and address part.
    pub fn requests(&self, method: &str, address: &str) -> Vec<Value> {
        let state = self.state();
        let matches = |request: &&(String, String, Value)| request.0 == method && request.1.contains(address);
        state
            .requests
            .iter()
            .filter(matches)
            .map(|request| request.2.clone())
            .collect()
    }

    /// Waits until there are `times` matching requests.
    pub async fn asked(&self, method: &str, address: &str, times: usize) {
        loop {
            let asked = self.shared.asked.notified();
            if self.requests(method, address).len() >= times {
                return;
            }
            asked.await;
        }
    }

    fn changed(&self) {
        let version = self.state().version();
        self.shared.changed.send_replace(version);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl ServerState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(shared: Arc<ServerState>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let answered = answer(Arc::clone(&shared), request).await;
    let silent = shared.state().silent;
    if silent {
        std::future::pending::<()>().await;
    }
    answered
}

async fn answer(shared: Arc<ServerState>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let query: HashMap<&str, &str> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let path = head.uri.path();
    if query.get("watch") == Some(&"true") {
        let response = watch(&shared, path, &query);
        shared.asked.notify_waiters();
        return Ok(response);
    }
    if let (Some(limit), true) = (query.get("limit"), head.method == http::Method::GET) {
        let start = query
            .get("continue")
            // A token that was not escaped selects the first page.
            .and_then(|token| token.strip_suffix("%2B%2F%3D")?.parse().ok())
            .unwrap_or(0);
        let limit = limit.parse().unwrap_or(usize::MAX);
        let (status, value) = list(&shared, path, start, limit);
        shared.asked.notify_waiters();
        return Ok(respond(status, &value));
    }
    let content = head
        .headers
        .get("content-type")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let bytes = body
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    let (status, value) = shared.state().answer(head.method.as_str(), path, content, body);
    let version = shared.state().version();
    shared.changed.send_replace(version);
    shared.asked.notify_waiters();
    Ok(respond(status, &value))
}

fn respond(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn list(shared: &ServerState, path: &str, start: usize, limit: usize) -> (StatusCode, Value) {
    let mut state = shared.state();
    state
        .requests
        .push(("LIST".to_owned(), path.to_owned(), Value::Null));
    if state.down {
        return refused(StatusCode::SERVICE_UNAVAILABLE);
    }
    if let Some((status, value)) = state.fixed.get(path) {
        return (*status, value.clone());
    }
    let all = state.list(path);
    let items: Vec<_> = all.iter().skip(start).take(limit).collect();
    let mut metadata = json!({});
    if start + items.len() < all.len() {
        metadata["continue"] = format!("{}+/=", start + items.len()).into();
    }
    if !state.versionless {
        metadata["resourceVersion"] = state.version().to_string().into();
    }
    (StatusCode::OK, json!({"metadata": metadata, "items": items}))
}

fn watch(shared: &Arc<ServerState>, path: &str, query: &HashMap<&str, &str>) -> Response<Body> {
    let wanted: Option<u64> = query.get("resourceVersion").and_then(|text| text.parse().ok());
    // Version 0 accepts any state.
    let version = wanted.filter(|version| *version != 0);
    let (from, present) = {
        let mut state = shared.state();
        state
            .requests
            .push(("WATCH".to_owned(), path.to_owned(), Value::Null));
        if state.down {
            let (status, value) = refused(StatusCode::SERVICE_UNAVAILABLE);
            return respond(status, &value);
        }
        if state.versionless {
            return Response::new(Full::default().boxed_unsync());
        }
        let expired = version.is_some_and(|version| version < state.forgotten);
        // For the latest state a server queries its etcd, which may be unable to answer.
        let unanswered = wanted
            .is_none()
            .then_some((StatusCode::INTERNAL_SERVER_ERROR, true));
        let refusal = state
            .unwatched
            .or_else(|| expired.then_some((StatusCode::GONE, true)))
            .or(unanswered);
        if let Some((status, in_stream)) = refusal {
            let (status, value) = refused(status);
            if !in_stream {
                return respond(status, &value);
            }
            let line = format!("{}\n", json!({"type": "ERROR", "object": value}));
            return Response::new(Full::new(Bytes::from(line)).boxed_unsync());
        }
        // Without a version, existing objects come first.
        let added = |object: Value| format!("{}\n", json!({"type": "ADDED", "object": object}));
        match version {
            Some(version) => (version, String::new()),
            None => (state.version(), state.list(path).into_iter().map(added).collect()),
        }
    };
    let (changed, cut) = (shared.changed.subscribe(), shared.cut.subscribe());
    let begun = Following {
        shared: Arc::clone(shared),
        path: path.to_owned(),
        from,
        changed,
        cut,
    };
    let lines = futures::stream::unfold(begun, next_lines);
    let present = futures::stream::iter(Some(present).filter(|lines| !lines.is_empty()));
    let frames = present
        .chain(lines)
        .map(|lines| Ok::<_, Infallible>(Frame::data(Bytes::from(lines))));
    Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
}

struct Following {
    shared: Arc<ServerState>,
    path: String,
    from: u64,
    changed: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
}

async fn next_lines(mut following: Following) -> Option<(String, Following)> {
    loop {
        following.changed.mark_unchanged();
        let news: String = {
            let state = following.shared.state();
            let from = following.from;
            following.from = state.version();
            let news = state
                .events
                .iter()
                .filter(|event| event.version > from && event.collection == following.path);
            news.map(|event| event.line.as_str()).collect()
        };
        if !news.is_empty() {
            return Some((news, following));
        }
        tokio::select! {
            changed = following.changed.changed() => changed.ok()?,
            _ = following.cut.changed() => return None,
        }
    }
}
