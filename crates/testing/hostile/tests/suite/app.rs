//! The apps behind the sidecars: one responds with the request's path, or with arbitrary hostile bytes; the
//! other is a gRPC app.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::answers::ANSWERS;
use crate::h2::{ACK, END_HEADERS, END_STREAM, PREFACE, field, frame, frames, kind};

/// A path for which the app does not read the body.
pub const UNREAD: &str = "/unread";
/// Bytes of an HTTP/2 frame header.
const HEAD: usize = 9;

/// A raw HTTP/1.1 server without an HTTP library.
pub struct App {
    pub port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for App {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl App {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&log)));
                }
            }
        });
        Self { port, seen, task }
    }

    /// The request heads received.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let mut bytes = Vec::new();
    while let Some(head) = head(&mut stream, &mut bytes).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        seen.lock().unwrap().push(head.clone());
        if path == UNREAD {
            // Until the sidecar times out.
            tokio::time::sleep(Duration::from_secs(120)).await;
            return;
        }
        if !body(&mut stream, &mut bytes, &head).await {
            return;
        }
        if let Some(answer) = ANSWERS.iter().find(|answer| path == format!("/{}", answer.path)) {
            let _cut = stream.write_all(&(answer.bytes)()).await;
            if answer.closes {
                return;
            }
            continue;
        }
        let status = if path.starts_with("/dapr/") {
            "404 Not Found"
        } else {
            "200 OK"
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{path}",
            path.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The next head; the data after it stays in `bytes`.
async fn head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<String> {
    let end = until(stream, bytes, b"\r\n\r\n").await?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end);
    Some(head)
}

/// Reads and discards a body; `false` if it does not arrive.
async fn body(stream: &mut TcpStream, bytes: &mut Vec<u8>, head: &str) -> bool {
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding: chunked") {
        let Some(end) = until(stream, bytes, b"0\r\n\r\n").await else {
            return false;
        };
        bytes.drain(..end);
        return true;
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    while bytes.len() < length {
        if !more(stream, bytes).await {
            return false;
        }
    }
    bytes.drain(..length);
    true
}

async fn until(stream: &mut TcpStream, bytes: &mut Vec<u8>, mark: &[u8]) -> Option<usize> {
    loop {
        if let Some(at) = bytes.windows(mark.len()).position(|window| window == mark) {
            return Some(at + mark.len());
        }
        if !more(stream, bytes).await {
            return None;
        }
    }
}

async fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    matches!(stream.read_buf(bytes).await, Ok(read) if read > 0)
}

/// A gRPC app without methods: complete requests are answered with UNIMPLEMENTED, incomplete ones are
/// awaited.
pub struct GrpcApp {
    pub port: u16,
    task: JoinHandle<()>,
}

impl Drop for GrpcApp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GrpcApp {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve_grpc(stream));
                }
            }
        });
        Self { port, task }
    }
}

async fn serve_grpc(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    while bytes.len() < PREFACE.len() {
        if !more(&mut stream, &mut bytes).await {
            return;
        }
    }
    bytes.drain(..PREFACE.len());
    let hello = [
        frame(kind::SETTINGS, 0, 0, &[]),
        frame(kind::SETTINGS, ACK, 0, &[]),
    ]
    .concat();
    let mut answers = hello;
    loop {
        let frames = frames(&bytes);
        let read: usize = frames.iter().map(|frame| HEAD + frame.payload.len()).sum();
        for received in frames {
            let ends = received.flags & END_STREAM != 0;
            match received.kind {
                kind::PING if received.flags & ACK == 0 => {
                    answers.extend(frame(kind::PING, ACK, 0, received.payload));
                }
                kind::HEADERS | kind::DATA if ends => answers.extend(unimplemented(received.stream)),
                _ => {}
            }
        }
        bytes.drain(..read);
        if stream.write_all(&std::mem::take(&mut answers)).await.is_err()
            || !more(&mut stream, &mut bytes).await
        {
            return;
        }
    }
}

/// A response with only trailers.
fn unimplemented(stream: u32) -> Vec<u8> {
    // `:status 200` of the static table.
    let mut fields = vec![0x88];
    field(&mut fields, "content-type", b"application/grpc");
    field(&mut fields, "grpc-status", b"12");
    frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields)
}
