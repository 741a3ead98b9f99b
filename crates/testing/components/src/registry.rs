//! A minimal schema registry for clients of Kafka; a real one needs a Java application server. Paths,
//! responses and error codes follow Confluent's documentation.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

/// Listens on 127.0.0.1 until dropped.
pub struct SchemaRegistry {
    address: String,
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    /// The required `Authorization` header.
    authorization: Option<String>,
    /// By ID, from 1.
    schemas: Vec<String>,
    latest: HashMap<String, usize>,
    trouble: Option<Trouble>,
    requests: Vec<String>,
}

/// Failure modes of the registry.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// Never responds.
    Hang,
    /// Responds with this status, head lines and body.
    Answer(u16, String, String),
}

impl SchemaRegistry {
    /// Starts an empty registry; `authorization` is the required header value.
    pub async fn start(authorization: Option<&str>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State {
            authorization: authorization.map(str::to_owned),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Its URL; paths may follow.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Registers a schema as the latest of a subject; returns its ID.
    pub fn register(&self, subject: &str, schema: &str) -> u32 {
        let mut state = lock(&self.state);
        state.schemas.push(schema.to_owned());
        let id = state.schemas.len();
        state.latest.insert(subject.to_owned(), id);
        u32::try_from(id).unwrap()
    }

    /// Sets the failure mode; `None` restores normal responses.
    pub fn trouble(&self, trouble: Option<Trouble>) {
        lock(&self.state).trouble = trouble;
    }

    /// The requested paths, oldest first.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.state).requests.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one request.
async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(count) if count > 0 => head.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let answer = answer(&head, &mut lock(&state));
    let (status, lines, body) = match answer {
        Trouble::Answer(status, lines, body) => (status, lines, body),
        Trouble::Hang => {
            // Until the client disconnects.
            let _ = stream.read(&mut buffer).await;
            return;
        }
    };
    let answer = format!(
        "HTTP/1.1 {status} -\r\ncontent-type: application/vnd.schemaregistry.v1+json\r\n{lines}content-length: \
         {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn answer(head: &str, state: &mut State) -> Trouble {
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    state.requests.push(path.clone());
    if let Some(trouble) = &state.trouble {
        return trouble.clone();
    }
    let given = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then_some(value)
    });
    if state.authorization.as_deref() != given {
        return refusal(401, 401, "Unauthorized");
    }
    let steps: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match steps[..] {
        ["subjects", subject, "versions", "latest"] => match state.latest.get(subject) {
            None => refusal(404, 40401, &format!("Subject '{subject}' not found.")),
            Some(id) => {
                let schema = quoted(&state.schemas[*id - 1]);
                let body =
                    format!("{{\"subject\":{subject:?},\"version\":1,\"id\":{id},\"schema\":{schema}}}");
                Trouble::Answer(200, String::new(), body)
            }
        },
        ["schemas", "ids", id] => {
            let place = id.parse::<usize>().ok().and_then(|id| id.checked_sub(1));
            match place.and_then(|place| state.schemas.get(place)) {
                None => refusal(404, 40403, "Schema not found"),
                Some(schema) => {
                    Trouble::Answer(200, String::new(), format!("{{\"schema\":{}}}", quoted(schema)))
                }
            }
        }
        _ => refusal(404, 404, "HTTP 404 Not Found"),
    }
}

fn refusal(status: u16, code: u32, message: &str) -> Trouble {
    let body = format!("{{\"error_code\":{code},\"message\":{message:?}}}");
    Trouble::Answer(status, String::new(), body)
}

/// A schema as a JSON string; the schemas of tests are ASCII.
fn quoted(schema: &str) -> String {
    let escaped = schema
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}
