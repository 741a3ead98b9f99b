//! A small HTTP server that echoes requests.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use flate2::{Compression, write::GzEncoder};
use outrigger_component_conformance::Link;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

/// Answers `/status/N` with N, `/big` with a kilobyte, `/packed` with `content` as gzip, `/latin-1` with many
/// header fields, `.../there?URL` with a redirect to the URL, `/slow` never, and everything else with the
/// request.
pub(crate) struct Web {
    port: u16,
    _server: AbortOnDropHandle<()>,
    heads: Arc<Mutex<Vec<String>>>,
    /// Closes every connection. The port stays bound, so that no other server can take it.
    down: Arc<AtomicBool>,
}

impl Web {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (heads, down) = (Arc::default(), Arc::default());
        Self {
            port: listener.local_addr().unwrap().port(),
            _server: serve(listener, Arc::clone(&heads), Arc::clone(&down)),
            heads,
            down,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Number of requests.
    pub(crate) fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// Request line and headers of the last request, in lower case.
    pub(crate) fn head(&self) -> String {
        self.heads.lock().unwrap().last().unwrap().clone()
    }
}

impl Link for Web {
    fn cut(&mut self) {
        self.down.store(true, Ordering::SeqCst);
    }

    fn restore(&mut self) {
        self.down.store(false, Ordering::SeqCst);
    }
}

fn serve(
    listener: TcpListener,
    heads: Arc<Mutex<Vec<String>>>,
    down: Arc<AtomicBool>,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (heads, down) = (Arc::clone(&heads), Arc::clone(&down));
            connections.spawn(async move {
                // Clients may disconnect at any time.
                let _gone = converse(stream, &heads, &down).await;
            });
        }
    }))
}

/// A response head with many fields, one of them in Latin-1.
fn many() -> String {
    let fields = (0..200).map(|number| format!("\r\nx-{number}: {number}"));
    format!("200 OK\r\nx-latin: café{}", fields.collect::<String>())
}

async fn converse(stream: TcpStream, heads: &Mutex<Vec<String>>, down: &AtomicBool) -> std::io::Result<()> {
    let mut stream = BufStream::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 || down.load(Ordering::SeqCst) {
                return Ok(());
            }
        }
        let head = head.to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.trim().parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let path = head.split(' ').nth(1).unwrap().to_owned();
        heads.lock().unwrap().push(head);
        let (status, body) = match path.as_str() {
            "/slow" => std::future::pending().await,
            "/big" => ("200 OK".to_owned(), vec![b'x'; 1024]),
            "/packed" => {
                let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
                packed.write_all(b"content").unwrap();
                (
                    "200 OK\r\ncontent-encoding: gzip".to_owned(),
                    packed.finish().unwrap(),
                )
            }
            "/latin-1" => (many(), body),
            path if path.contains("/there?") => {
                let (_, there) = path.split_once('?').unwrap();
                (format!("307 There\r\nlocation: {there}"), body)
            }
            path => match path.strip_prefix("/status/") {
                Some(status) => (format!("{status} Word"), body),
                None => ("200 OK".to_owned(), body),
            },
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nx-many: a\r\nx-many: b\r\n\r\n",
            body.len()
        );
        // One byte per character.
        let answer: Vec<u8> = answer
            .chars()
            .map(|letter| u8::try_from(letter).unwrap())
            .collect();
        stream.write_all(&answer).await?;
        stream.write_all(&body).await?;
        stream.flush().await?;
    }
}
