//! What a client sees of the server, byte by byte.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use outrigger_http1::{Config, Cut, Ended, Incoming, Served, Service, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(20);
const CONFIG: Config = Config {
    head: 8192,
    fields: 100,
    patience: LONG,
    http2: true,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<BoxBody<Bytes, BoxError>>;

struct Answers<F>(F);

impl<F, A> Service for Answers<F>
where
    F: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
    A: Future<Output = Answer> + Send + 'static,
{
    type Body = BoxBody<Bytes, BoxError>;

    fn call(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Answer> + Send {
        (self.0)(request)
    }
}

/// A connection to a server, by its other end.
struct Client {
    io: DuplexStream,
    served: JoinHandle<Result<Served<DuplexStream>, Ended>>,
    drain: CancellationToken,
}

impl Client {
    /// A server behind a pipe of `room` bytes each way.
    fn connect<F, A>(room: usize, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Answer> + Send + 'static,
    {
        let (io, theirs) = duplex(room);
        let drain = CancellationToken::new();
        let drained = drain.clone();
        let served =
            tokio::spawn(async move { serve(theirs, Arc::new(Answers(answer)), &CONFIG, &drained).await });
        Self { io, served, drain }
    }

    async fn say(&mut self, text: &str) {
        self.io.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until what was read ends with `end`.
    async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        let reading = async {
            while !heard.ends_with(end.as_bytes()) {
                heard.push(self.io.read_u8().await.unwrap());
            }
        };
        let in_time = timeout(LONG, reading).await;
        let heard = String::from_utf8(heard).unwrap();
        assert!(in_time.is_ok(), "{heard}");
        heard
    }

    /// Reads until the server closes.
    async fn rest(&mut self) -> String {
        let mut heard = Vec::new();
        timeout(LONG, self.io.read_to_end(&mut heard))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8(heard).unwrap()
    }

    async fn ended(self) -> Result<Served<DuplexStream>, Ended> {
        drop(self.io);
        timeout(LONG, self.served).await.unwrap().unwrap()
    }
}

fn text(text: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(text.into()).map_err(Into::into).boxed())
}

fn with_status(status: StatusCode) -> Answer {
    let mut answer = Response::new(Empty::new().map_err(Into::into).boxed());
    *answer.status_mut() = status;
    answer
}

fn pieces(pieces: Vec<Result<Frame<Bytes>, BoxError>>) -> Answer {
    Response::new(StreamBody::new(stream::iter(pieces)).boxed())
}

async fn collect(request: Request<Incoming>) -> Bytes {
    match request.into_body() {
        Incoming::Empty => Bytes::new(),
        Incoming::Whole(data) => data,
        Incoming::Stream(body) => body.collect().await.unwrap().to_bytes(),
    }
}

async fn echo(request: Request<Incoming>) -> Answer {
    text(collect(request).await)
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: h\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn a_connection_is_used_again_and_what_came_early_is_kept() {
    let mut client = Client::connect(4096, echo);
    client.say(&post("content-length: 3\r\n", "one")).await;
    let first = client.hear("one").await;
    assert!(
        first.starts_with("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ndate: "),
        "{first}"
    );
    // Three at once, the second with a body that comes in two parts.
    let second = post("transfer-encoding: chunked\r\n", "3\r\ntwo\r\n0\r\n\r\n");
    let third = post("content-length: 5\r\nconnection: close\r\n", "three");
    client
        .say(&format!("{}{second}{}", post("", ""), &third[..third.len() - 2]))
        .await;
    tokio::task::yield_now().await;
    client.say(&third[third.len() - 2..]).await;
    let heard = client.rest().await;
    let bodies: Vec<_> = heard.split("HTTP/1.1 200 OK\r\n").collect();
    assert_eq!(bodies.len(), 4, "{heard}");
    assert!(bodies[1].starts_with("content-length: 0\r\n") && bodies[1].ends_with("\r\n\r\n"));
    assert!(bodies[2].ends_with("\r\n\r\ntwo"));
    assert!(bodies[3].contains("connection: close\r\n") && bodies[3].ends_with("\r\n\r\nthree"));
    assert!(matches!(client.ended().await, Ok(Served::Closed)));
}

#[tokio::test]
async fn large_bodies_pass_through_a_narrow_pipe_both_ways() {
    let mut client = Client::connect(1000, async |request| {
        let Incoming::Stream(body) = request.into_body() else {
            panic!("all of it at once")
        };
        assert_eq!(
            body.size_hint().exact(),
            Some(1_000_000 - u64::from(body.is_end_stream()))
        );
        let mut answer = Response::new(body.map_err(Into::into).boxed());
        answer.headers_mut().insert("x-a", HeaderValue::from_static("1"));
        answer
    });
    let body: String = ('a'..='z').cycle().take(1_000_000).collect();
    let request = post("content-length: 1000000\r\nconnection: close\r\n", &body);
    let (mut reader, mut writer) = tokio::io::split(client.io);
    let writing = tokio::spawn(async move {
        writer.write_all(request.as_bytes()).await.unwrap();
        writer
    });
    let mut heard = String::new();
    timeout(LONG, reader.read_to_string(&mut heard))
        .await
        .unwrap()
        .unwrap();
    let (head, echoed) = heard.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("\r\ncontent-length: 1000000") && head.contains("\r\nx-a: 1"),
        "{head}"
    );
    assert!(echoed == body);
    client.io = reader.unsplit(writing.await.unwrap());
    assert!(matches!(client.ended().await, Ok(Served::Closed)));
}

#[tokio::test]
async fn chunks_carry_what_has_no_length_and_trailers_where_they_are_wanted() {
    let mut client = Client::connect(100_000, async |request| {
        let body = collect(request).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        trailers.insert("content-length", HeaderValue::from_static("7"));
        pieces(vec![
            Ok(Frame::data(body)),
            Ok(Frame::data(Bytes::new())),
            Ok(Frame::data("x".repeat(5000).into())),
            Ok(Frame::trailers(trailers)),
        ])
    });
    let long = "x".repeat(5000);
    client
        .say(&post("content-length: 2\r\nte: trailers\r\n", "ab"))
        .await;
    let heard = client.hear("\r\n\r\n2\r\nab\r\n").await;
    assert!(heard.contains("\r\ntransfer-encoding: chunked\r\n"), "{heard}");
    assert!(!heard.contains("content-length"), "{heard}");
    assert_eq!(
        client.hear("\r\n\r\n").await,
        format!("1388\r\n{long}\r\n0\r\nx-sum: 7\r\n\r\n")
    );
    client.say(&post("connection: close\r\n", "")).await;
    let heard = client.rest().await;
    assert!(
        heard.ends_with(&format!("\r\n\r\n1388\r\n{long}\r\n0\r\n\r\n")),
        "{heard}"
    );
}

#[tokio::test]
async fn an_answer_goes_on_while_its_body_waits() {
    let (sender, receiver) = mpsc::unbounded_channel::<&str>();
    let receiver = std::sync::Mutex::new(Some(receiver));
    let mut client = Client::connect(4096, move |_| {
        let receiver = receiver.lock().unwrap().take().unwrap();
        let frames = stream::unfold(receiver, async |mut receiver| {
            let data = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(data.into())), receiver))
        });
        let body = StreamBody::new(Box::pin(frames) as Pin<Box<dyn stream::Stream<Item = _> + Send + Sync>>);
        std::future::ready(Response::new(body.boxed()))
    });
    client.say(&post("", "")).await;
    client.hear("\r\n\r\n").await;
    for (number, piece) in ["one", "two", "three"].into_iter().enumerate() {
        sender.send(piece).unwrap();
        let heard = client.hear(&format!("{piece}\r\n")).await;
        assert_eq!(heard, format!("{:x}\r\n{piece}\r\n", piece.len()), "{number}");
    }
    // A client that leaves in the middle takes the body with it.
    let ended = client.ended().await;
    assert!(matches!(ended, Err(Ended::Gone)), "{ended:?}");
    assert!(sender.is_closed());
}

#[tokio::test]
async fn a_client_that_waits_is_asked_when_somebody_reads() {
    let mut client = Client::connect(4096, echo);
    let expects = post("content-length: 3\r\nexpect: 100-continue\r\n", "");
    client.say(&expects).await;
    assert_eq!(client.hear("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.say("abc").await;
    let heard = client.hear("abc").await;
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
    // Who did not wait is not asked.
    client.say(&format!("{expects}abc")).await;
    let heard = client.hear("abc").await;
    assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
    assert!(matches!(client.ended().await, Ok(Served::Closed)));

    let mut client = Client::connect(4096, async |_| with_status(StatusCode::FORBIDDEN));
    client.say(&expects).await;
    let heard = client.rest().await;
    assert!(
        heard.starts_with("HTTP/1.1 403") && heard.contains("connection: close\r\n"),
        "{heard}"
    );
}

#[tokio::test]
async fn a_body_that_nobody_wanted_does_not_spoil_what_follows() {
    let mut client = Client::connect(1000, async |_| text("no"));
    let some = "x".repeat(100_000);
    client.say(&post("content-length: 100000\r\n", &some)).await;
    assert!(!client.hear("\r\n\r\nno").await.contains("connection: close"));
    client
        .say(&post(
            "transfer-encoding: chunked\r\n",
            &format!("186a0\r\n{some}\r\n0\r\n\r\n"),
        ))
        .await;
    client.hear("\r\n\r\nno").await;

    // Too much is not read, and the answer is there to be read all the same.
    let announced = post("content-length: 100000000\r\n", &"x".repeat(10_000));
    client.say(&announced).await;
    let heard = client.hear("\r\n\r\nno").await;
    assert!(heard.contains("\r\nconnection: close\r\n"), "{heard}");
    assert!(matches!(client.ended().await, Ok(Served::Closed)));

    let mut client = Client::connect(1000, async |_| text("no"));
    client
        .say(&post("transfer-encoding: chunked\r\n", "no size\r\n"))
        .await;
    client.hear("\r\n\r\nno").await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_body_is_not_read_from_the_request_that_follows() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut client = Client::connect(4096, move |request| {
        if let Incoming::Stream(body) = request.into_body() {
            sender.send(body).unwrap();
        }
        std::future::ready(text("ok"))
    });
    client.say(&post("content-length: 6\r\n", "abc")).await;
    client.hear("\r\n\r\nok").await;
    client.say("def").await;
    client.say(&post("content-length: 6\r\n", "ghi")).await;
    client.hear("\r\n\r\nok").await;
    let mut first = receiver.recv().await.unwrap();
    let mut second = receiver.recv().await.unwrap();
    assert_eq!(first.frame().await.unwrap().unwrap_err(), Cut::Answered);
    assert!(first.frame().await.is_none());
    assert_eq!(second.frame().await.unwrap().unwrap_err(), Cut::Answered);
}

#[tokio::test]
async fn whoever_waits_for_a_body_hears_that_its_request_was_answered() {
    for fields in ["", "expect: 100-continue\r\n"] {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut client = Client::connect(4096, move |request| {
            let Incoming::Stream(body) = request.into_body() else {
                panic!("no body")
            };
            sender.send(body).unwrap();
            std::future::ready(pieces(vec![Ok(Frame::data("ok".into()))]))
        });
        client
            .say(&post(&format!("content-length: 6\r\n{fields}"), ""))
            .await;
        let mut body = receiver.recv().await.unwrap();
        let reading = tokio::spawn(async move { body.frame().await.unwrap().unwrap_err() });
        let heard = client.hear("0\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
        assert!(!heard.contains("100 Continue"), "{heard}");
        assert_eq!(timeout(LONG, reading).await.unwrap().unwrap(), Cut::Answered);
    }
}

#[tokio::test]
async fn answers_without_a_body_have_none() {
    let mut client = Client::connect(4096, async |request| {
        let mut answer = text("body");
        *answer.status_mut() = request.uri().path()[1..].parse().unwrap();
        answer
            .headers_mut()
            .insert("keep-alive", HeaderValue::from_static("x"));
        if request.headers().contains_key("x-length") {
            answer
                .headers_mut()
                .insert("content-length", HeaderValue::from_static("1234"));
        }
        answer
    });
    for (method, status, field, length) in [
        ("GET", 204, "", None),
        ("GET", 304, "x-length: 1\r\n", Some("1234")),
        ("HEAD", 200, "", Some("4")),
        ("HEAD", 200, "x-length: 1\r\n", Some("1234")),
    ] {
        client
            .say(&format!("{method} /{status} HTTP/1.1\r\nhost: h\r\n{field}\r\n"))
            .await;
        let heard = client.hear("\r\n\r\n").await;
        let told = heard
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(told, length, "{heard}");
        assert!(
            !heard.contains("keep-alive") && !heard.contains("transfer-encoding"),
            "{heard}"
        );
    }
    // The length is that of the body where there is one.
    client
        .say("GET /200 HTTP/1.1\r\nhost: h\r\nx-length: 1\r\n\r\n")
        .await;
    assert!(client.hear("body").await.contains("content-length: 4\r\n"));
}

#[tokio::test]
async fn an_answer_that_is_not_what_it_told_is_cut() {
    for (told, frames) in [
        ("10", vec![Ok(Frame::data("abc".into()))]),
        ("2", vec![Ok(Frame::data("abc".into()))]),
        ("10", vec![Ok(Frame::data("abc".into())), Err("lost".into())]),
    ] {
        let frames = std::sync::Mutex::new(Some(frames));
        let mut client = Client::connect(4096, move |_| {
            let mut answer = pieces(frames.lock().unwrap().take().unwrap());
            answer
                .headers_mut()
                .insert("content-length", HeaderValue::from_static(told));
            std::future::ready(answer)
        });
        client.say(&post("", "")).await;
        let heard = client.rest().await;
        assert!(heard.contains(&format!("content-length: {told}\r\n")), "{heard}");
        let ended = client.ended().await;
        assert!(matches!(ended, Err(Ended::Body(_))), "{ended:?}");
    }
    let mut client = Client::connect(4096, async |_| {
        pieces(vec![Ok(Frame::data("abc".into())), Err("lost".into())])
    });
    client.say(&post("", "")).await;
    let heard = client.rest().await;
    assert!(heard.ends_with("\r\n\r\n3\r\nabc\r\n"), "no last chunk: {heard}");
}

#[tokio::test]
async fn old_clients_are_answered_in_their_version() {
    let of_unknown_length = async |_| pieces(vec![Ok(Frame::data("abc".into()))]);
    let mut client = Client::connect(4096, of_unknown_length);
    client
        .say("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        .await;
    let heard = client.rest().await;
    assert!(
        heard.starts_with("HTTP/1.0 200 OK\r\n") && heard.ends_with("\r\n\r\nabc"),
        "{heard}"
    );
    assert!(
        !heard.contains("chunked") && !heard.contains("keep-alive"),
        "{heard}"
    );

    let mut client = Client::connect(4096, echo);
    client
        .say("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        .await;
    assert!(
        client
            .hear("\r\n\r\n")
            .await
            .contains("\r\nconnection: keep-alive\r\n")
    );
    client.say("GET / HTTP/1.0\r\n\r\n").await;
    assert!(!client.rest().await.contains("connection"));
}

#[tokio::test]
async fn a_call_ends_when_its_client_leaves() {
    let (begun, has_begun) = oneshot::channel::<oneshot::Sender<()>>();
    let begun = std::sync::Mutex::new(Some(begun));
    let mut client = Client::connect(4096, move |request| {
        let begun = begun.lock().unwrap().take().unwrap();
        async move {
            let (alive, mut gone) = oneshot::channel();
            let _body = collect(request).await;
            begun.send(alive).unwrap();
            let _held = (&mut gone).await;
            text("")
        }
    });
    // With a body that comes later, so that somebody else has read from the connection.
    client.say(&post("content-length: 3\r\n", "a")).await;
    client.say("bc").await;
    let mut alive = has_begun.await.unwrap();
    // What comes early does not count as leaving.
    client.say("GET / HTTP/1.1\r\n").await;
    assert!(timeout(Duration::from_millis(50), alive.closed()).await.is_err());
    let ended = client.ended().await;
    assert!(matches!(ended, Err(Ended::Gone)), "{ended:?}");
    timeout(LONG, alive.closed()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_drains_finishes_what_was_begun() {
    let client = Client::connect(4096, echo);
    client.drain.cancel();
    assert!(matches!(client.ended().await, Ok(Served::Closed)));

    let mut client = Client::connect(4096, echo);
    client.say(&post("", "")).await;
    client.hear("\r\n\r\n").await;
    client.say(&post("content-length: 3\r\n", "")).await;
    client.drain.cancel();
    client.say("abc").await;
    let heard = client.rest().await;
    assert!(
        heard.contains("\r\nconnection: close\r\n") && heard.ends_with("abc"),
        "{heard}"
    );

    let mut client = Client::connect(4096, echo);
    client.say(&post("", "")).await;
    client.hear("\r\n\r\n").await;
    client.drain.cancel();
    assert_eq!(client.rest().await, "");
}

#[tokio::test(start_paused = true)]
async fn heads_have_a_time_and_idle_connections_have_all_of_it() {
    for begin in ["", "GET / HTT"] {
        let mut client = Client::connect(4096, echo);
        client.say(begin).await;
        tokio::time::sleep(CONFIG.patience + Duration::from_secs(1)).await;
        assert_eq!(client.rest().await, "");
        let ended = client.ended().await;
        assert!(matches!(ended, Err(Ended::Slow(_))), "{ended:?}");
    }
    let mut client = Client::connect(4096, echo);
    client.say(&post("", "")).await;
    client.hear("\r\n\r\n").await;
    tokio::time::sleep(CONFIG.patience * 100).await;
    client.say(&post("", "")).await;
    client.hear("\r\n\r\n").await;
    client.say("G").await;
    let ended = client.ended().await;
    assert!(matches!(ended, Err(Ended::Head)), "{ended:?}");
}

#[tokio::test]
async fn what_is_no_request_is_answered_and_ends_the_connection() {
    for (sent, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
        (post("content-length: x\r\n", ""), "400 Bad Request"),
        (post("transfer-encoding: gzip\r\n", ""), "501 Not Implemented"),
        (
            post(&format!("x: {}\r\n", "x".repeat(9000)), ""),
            "431 Request Header Fields Too Large",
        ),
        ("PRI * HTTP/2.0\r\n\r\nxx\r\n\r\n".to_owned(), "400 Bad Request"),
    ] {
        let mut client = Client::connect(16_384, echo);
        client.say(&sent).await;
        let heard = client.rest().await;
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{heard}");
        let (head, body) = heard.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("connection: close"), "{heard}");
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())),
            "{heard}"
        );
        assert!(body.starts_with(&format!("{status}: ")), "{heard}");
        let ended = client.ended().await;
        assert!(matches!(ended, Err(Ended::Refused(_))), "{ended:?}");
    }
}

#[tokio::test]
async fn a_head_may_come_byte_by_byte() {
    let mut client = Client::connect(1, echo);
    client
        .say(&post("content-length: 2\r\nconnection: close\r\n", "ab"))
        .await;
    assert!(client.rest().await.ends_with("\r\n\r\nab"));
}

#[tokio::test]
async fn connections_go_on_with_something_else() {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut client = Client::connect(4096, echo);
    for part in [&preface[..3], &preface[3..20], &preface[20..]] {
        client.say(part).await;
        tokio::task::yield_now().await;
    }
    client.say("more").await;
    let Ok(Served::Http2(mut io)) = client.ended().await else {
        panic!("no HTTP/2")
    };
    let mut heard = String::new();
    io.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, format!("{preface}more"));

    let mut client = Client::connect(4096, async |_| {
        let mut answer = with_status(StatusCode::SWITCHING_PROTOCOLS);
        answer
            .headers_mut()
            .insert("connection", HeaderValue::from_static("upgrade"));
        answer
            .headers_mut()
            .insert("upgrade", HeaderValue::from_static("x"));
        answer
    });
    client
        .say("GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nmore")
        .await;
    let heard = client.hear("\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n"));
    assert!(!heard.contains("content-length"), "{heard}");
    let Ok(Served::Switched(mut io)) = client.ended().await else {
        panic!("not switched")
    };
    let mut heard = String::new();
    io.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "more");
}
