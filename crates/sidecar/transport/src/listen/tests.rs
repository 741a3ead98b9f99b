use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::*;
use crate::conn::{Dialer, H2Pool};

/// Generous, because test machines are busy.
const LONG: Duration = Duration::from_secs(30);
/// Connections of a crowd, more than the server accepts.
const CROWD: usize = 40;
const LIMITS: Limits = Limits {
    connections: 16,
    per_source: 16,
};

/// Responds at once, except to `/slow`, which waits for `answer`.
#[derive(Default)]
struct Answers {
    asked: Notify,
    answer: Notify,
}

impl Handler for Answers {
    async fn handle(self: Arc<Self>, _client: Arc<Client>, request: Request<Body>) -> Response<Body> {
        if request.uri().path() == "/slow" {
            self.asked.notify_one();
            self.answer.notified().await;
        }
        Response::new("well".into())
    }
}

trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// The address of a server.
enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    async fn connect(&self) -> Box<dyn Bytes> {
        match self {
            Self::Tcp(address) => Box::new(TcpStream::connect(address).await.unwrap()),
            Self::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
        }
    }
}

fn start(listener: Listener) -> (Arc<Answers>, CancellationToken) {
    let (answers, drain) = (Arc::<Answers>::default(), CancellationToken::new());
    let options = Options {
        versions: Versions::Both,
        tls: None,
        head_limit: 4096,
        header_list_limit: 64 * 1024,
        connections: LIMITS,
        held: HeldAnswers::default(),
        unfinished: unfinished_bounds(None),
    };
    let server = serve(
        listener,
        Admission::new(options.connections),
        Arc::clone(&answers),
        options,
        drain.clone(),
    );
    tokio::spawn(server);
    (answers, drain)
}

async fn ask(stream: &mut Box<dyn Bytes>, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
}

/// The response; `None` if the connection closes first.
async fn answer(stream: &mut Box<dyn Bytes>) -> Option<String> {
    let mut text = Vec::new();
    let reading = async {
        while !text.ends_with(b"well") {
            if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
                return None;
            }
        }
        Some(())
    };
    tokio::time::timeout(LONG, reading)
        .await
        .expect("neither a response nor a close")?;
    Some(String::from_utf8(text).unwrap())
}

async fn survives_connection_crowd(listener: Listener, address: Address) {
    let (answers, drain) = start(listener);
    let mut slow = address.connect().await;
    ask(&mut slow, "/slow").await;
    tokio::time::timeout(LONG, answers.asked.notified())
        .await
        .unwrap();
    let mut kept = Vec::new();
    for asks in [false, true] {
        let mut crowd = Vec::new();
        for _ in 0..CROWD {
            let mut stream = address.connect().await;
            if asks {
                ask(&mut stream, "/").await;
                assert!(answer(&mut stream).await.is_some(), "serves a new connection");
            }
            crowd.push(stream);
            let mut late = address.connect().await;
            ask(&mut late, "/").await;
            assert!(answer(&mut late).await.is_some(), "serves a late connection");
        }
        assert!(
            answer(&mut crowd[0]).await.is_none(),
            "closes the longest idle connection"
        );
        kept.push(crowd);
    }
    answers.answer.notify_one();
    assert!(answer(&mut slow).await.is_some(), "keeps a call in flight");
    drain.cancel();
}

#[test]
fn skips_repeated_address() {
    // Bound to reserve the port, but not listening.
    let held = bind(&["127.0.0.1".to_owned()], 0).unwrap().remove(0);
    let named = ["127.0.0.1".to_owned(), " 127.0.0.1".to_owned()];
    assert_eq!(bind(&named, held.port().unwrap()).unwrap().len(), 1);
}

#[test]
fn overlaps_if_both_cannot_listen() {
    let on = |address: &str, port| bind(&[address.to_owned()], port).unwrap().remove(0);
    // The wildcard socket comes first: other processes hold single addresses of some ports.
    let every = on("0.0.0.0", 0);
    let port = every.port().unwrap();
    let one = on("127.0.0.1", port);
    for (other, overlaps) in [
        (on("127.0.0.1", port), true),
        (every, true),
        (on("127.0.0.2", port), false),
        (on("127.0.0.1", 0), false),
        (Bound::Unix("/tmp/a".into()), false),
    ] {
        assert_eq!(one.overlaps(&other), overlaps);
        assert_eq!(other.overlaps(&one), overlaps);
    }
    let both = on("", 0);
    assert!(both.overlaps(&on("127.0.0.1", both.port().unwrap())));
}

#[tokio::test]
async fn tcp_crowd_evicts_idle_connections_only() {
    let bound = bind(&["127.0.0.1".to_owned()], 0).unwrap().remove(0);
    let address = Address::Tcp(format!("127.0.0.1:{}", bound.port().unwrap()));
    survives_connection_crowd(bound.listen().unwrap(), address).await;
}

#[tokio::test]
async fn unix_crowd_evicts_idle_connections_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.socket");
    let listener = bind_unix(&path).unwrap().listen().unwrap();
    survives_connection_crowd(listener, Address::Unix(path)).await;
}

#[test]
fn replaces_only_stale_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("file"), "text").unwrap();
    std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
    std::os::unix::fs::symlink(path("nothing"), path("dangling")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status();
    assert!(pipe.unwrap().success());
    for name in ["file", "link", "dangling", "folder", "pipe"] {
        let error = bind_unix(&path(name)).err().unwrap().to_string();
        let named = error.starts_with(&path(name).display().to_string());
        assert!(named && error.contains("is not a socket"), "{error}");
        assert!(path(name).symlink_metadata().is_ok(), "{name} is removed");
    }
    let live = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    assert!(bind_unix(&path("socket")).is_err());
    drop(live);
    bind_unix(&path("socket")).unwrap();
    assert!(!path("socket").exists());
}

#[tokio::test]
async fn keeps_http2_connection_with_active_call() {
    let bound = bind(&["127.0.0.1".to_owned()], 0).unwrap().remove(0);
    let address = format!("127.0.0.1:{}", bound.port().unwrap());
    let (answers, drain) = start(bound.listen().unwrap());
    let pool = Arc::new(H2Pool::new(Dialer::plain(address.as_str(), LONG), None));
    let request = |path| Request::builder().uri(path).body(Body::Empty).unwrap();
    let calling = Arc::clone(&pool);
    let slow = tokio::spawn(async move { calling.send(request("/slow")).await });
    tokio::time::timeout(LONG, answers.asked.notified())
        .await
        .unwrap();
    let address = Address::Tcp(address);
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut stream = address.connect().await;
        ask(&mut stream, "/").await;
        assert!(answer(&mut stream).await.is_some());
        crowd.push(stream);
    }
    answers.answer.notify_one();
    let answered = tokio::time::timeout(LONG, slow).await.unwrap().unwrap();
    assert_eq!(answered.unwrap().status(), 200);
    drain.cancel();
}
