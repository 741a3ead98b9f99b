//! Hostile apps: responses with ambiguous framing, with more data than declared, or cut short.
//!
//! Whatever the app sends to one caller, the next caller gets the response to its own request.

use std::time::{Duration, Instant};

use crate::child::usage;
use crate::fleet::Fleet;
use crate::h1;
use crate::listeners::{LISTENERS, Process};
use crate::peer::Target;

/// The app's response to a path.
pub struct Answer {
    pub path: &'static str,
    pub bytes: fn() -> Vec<u8>,
    /// Whether the app then closes the connection.
    pub closes: bool,
    verdict: Verdict,
}

/// The expected result for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// A status of 500 or more, or a truncated response.
    Fails,
    /// `ok`, with status 200.
    Whole,
    /// Either.
    Clean,
}

use Verdict::{Clean, Fails, Whole};

/// Must never reach a caller: neither as a field, nor as the body of another caller's response.
const INJECTED: &str = "injected";
/// Memory for all rows together, MiB.
const MEMORY: u64 = 48;
/// CPU time of the sidecar for all rows together, including the calls between them. Generous, as for
/// attacks.
const WORK: Duration = Duration::from_secs(20);
/// Timeout of a caller.
const TIMEOUT: Duration = Duration::from_secs(15);

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const MORE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\ninjected";

/// Defines a row.
macro_rules! answer {
    ($path:literal, $verdict:ident, $bytes:expr) => {
        Answer {
            path: $path,
            bytes: || Vec::<u8>::from($bytes),
            closes: false,
            verdict: $verdict,
        }
    };
    ($path:literal, $verdict:ident, $bytes:expr, closes) => {
        Answer {
            path: $path,
            bytes: || Vec::<u8>::from($bytes),
            closes: true,
            verdict: $verdict,
        }
    };
}

fn with(fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok")
}

fn chunked(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

pub const ANSWERS: &[Answer] = &[
    answer!("more-than-its-length", Whole, format!("{OK}{MORE}")),
    answer!(
        "more-than-its-length-and-no-answer",
        Whole,
        format!("{OK}{INJECTED}")
    ),
    answer!("two-answers-to-a-head", Whole, format!("{OK}{MORE}{MORE}{MORE}")),
    answer!(
        "another-protocol",
        Fails,
        format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n{MORE}")
    ),
    answer!(
        "interim-answers",
        Whole,
        format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}")
    ),
    answer!(
        "only-an-interim-answer",
        Fails,
        "HTTP/1.1 100 Continue\r\n\r\n",
        closes
    ),
    answer!(
        "ten-thousand-interim-answers",
        Clean,
        format!(
            "{}{OK}",
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(10_000)
        )
    ),
    answer!("carriage-return", Fails, with("X-A: a\rInjected: b\r\n"), closes),
    answer!("nul", Fails, with("X-A: a\0b\r\n"), closes),
    answer!("name-with-a-space", Fails, with("Injected X: b\r\n"), closes),
    answer!("two-lengths", Fails, with("Content-Length: 9\r\n"), closes),
    answer!(
        "length-below-zero",
        Fails,
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
        closes
    ),
    answer!(
        "length-and-coding",
        Clean,
        format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{MORE}")
    ),
    answer!(
        "shorter-than-its-length",
        Fails,
        "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok",
        closes
    ),
    answer!("truncated-chunk", Fails, chunked("9\r\nok"), closes),
    answer!(
        "chunk-size-beyond-64-bits",
        Fails,
        chunked("10000000000000002\r\nok\r\n0\r\n\r\n"),
        closes
    ),
    answer!(
        "chunk-extension-of-4-mib",
        Clean,
        chunked(&format!("2;{}\r\nok\r\n0\r\n\r\n", "a".repeat(4 << 20))),
        closes
    ),
    answer!(
        "trailers-of-4-mib",
        Clean,
        chunked(&format!(
            "2\r\nok\r\n0\r\n{}\r\n",
            "X-A: aaaaaaaa\r\n".repeat(300_000)
        )),
        closes
    ),
    answer!(
        "head-of-8-mib",
        Fails,
        with(&format!("X-A: {}\r\n", "a".repeat(8 << 20))),
        closes
    ),
    answer!(
        "hundred-thousand-fields",
        Fails,
        with(&"X-A: a\r\n".repeat(100_000)),
        closes
    ),
    answer!("no-http", Fails, "injected\r\n\r\n", closes),
    answer!(
        "status-of-two-digits",
        Fails,
        "HTTP/1.1 99 Injected\r\nContent-Length: 2\r\n\r\nok",
        closes
    ),
    answer!("nothing", Fails, "", closes),
];

/// The response to a caller who requests a path of the app, and whether it was complete.
async fn call(target: &Target, path: &str) -> (Option<u16>, String, bool) {
    let started = Instant::now();
    let mut peer = target.connect().await.unwrap();
    let request = format!(
        "GET /v1.0/invoke/hostile/method/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    peer.send(request.as_bytes()).await;
    let received = peer.receive(TIMEOUT, |_| false).await;
    let text = String::from_utf8_lossy(&received.bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let whole =
        received.closed && h1::is_answered(&received.bytes) && (!chunked || body.ends_with("0\r\n\r\n"));
    println!("{path:40} {:?}", started.elapsed());
    // A response must end, even if it fails.
    assert!(received.closed, "{path}: the response does not end: {text:?}");
    (h1::statuses(&received).first().copied(), text, whole)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_do_not_leak_to_next_caller() {
    let fleet = Fleet::start().await;
    let target = fleet.target(&LISTENERS[0]);
    let id = fleet.server(Process::Sidecar).id();
    let before = usage(id).unwrap();
    let mut failures = Vec::new();
    for answer in ANSWERS {
        for round in 0..3 {
            let (status, text, whole) = call(&target, answer.path).await;
            let failed = !whole || status.is_some_and(|status| status >= 500);
            let good = whole && status == Some(200) && text.contains("ok");
            let injected = text.to_ascii_lowercase().contains(INJECTED);
            let right = match answer.verdict {
                Fails => failed,
                Whole => good,
                Clean => failed || good || status == Some(200),
            };
            if !right || injected {
                let shown: String = text.chars().take(300).collect();
                failures.push(format!(
                    "{}, round {round}: {status:?} whole {whole}: {shown:?}",
                    answer.path
                ));
            }
            let own = format!("own-{}-{round}", answer.path);
            let (status, text, whole) = call(&target, &own).await;
            if status != Some(200) || !whole || !text.ends_with(&format!("/{own}")) {
                failures.push(format!(
                    "{}, round {round}: the next caller received {text:?}",
                    answer.path
                ));
            }
        }
    }
    let after = usage(id).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let memory = after.peak.saturating_sub(before.resident) >> 10;
    assert!(memory <= MEMORY, "{memory} MiB");
    let work = after.work.saturating_sub(before.work);
    println!("{work:?} of work");
    assert!(work <= WORK, "{work:?} of work");
}

/// Metadata of a caller for a binding, with line ends to be injected into a request to the app or into the
/// response.
const SPLITTING: &[&str] = &[
    r#""X-A": "a\r\ninjected: b""#,
    r#""X-A": "a\ninjected: b""#,
    r#""X-A\r\ninjected": "b""#,
    r#""path": "/a HTTP/1.1\r\nHost: localhost\r\n\r\nGET /injected""#,
    r#""path": "/a\r\ninjected: b""#,
    r#""path": "/carriage-return""#,
    r#""path": "/nul""#,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binding_metadata_cannot_split_messages() {
    let fleet = Fleet::start().await;
    let target = fleet.target(&LISTENERS[0]);
    for metadata in SPLITTING {
        let body = format!(r#"{{"operation": "get", "metadata": {{{metadata}}}}}"#);
        let request = format!(
            "POST /v1.0/bindings/web HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut peer = target.connect().await.unwrap();
        peer.send(request.as_bytes()).await;
        let received = peer.receive(TIMEOUT, |_| false).await;
        let text = String::from_utf8_lossy(&received.bytes).to_ascii_lowercase();
        let (head, _) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        assert!(
            received.closed && h1::statuses(&received).len() == 1,
            "{metadata}: {text}"
        );
        assert!(!head.contains(INJECTED), "{metadata}: {text}");
    }
    // The text may arrive escaped as part of a path.
    let split: Vec<String> = fleet
        .app
        .seen()
        .into_iter()
        .filter(|head| {
            let mut lines = head.lines();
            let line = lines.next().unwrap_or_default();
            line.starts_with("GET /injected") || lines.any(|line| line.starts_with(INJECTED))
        })
        .collect();
    assert!(split.is_empty(), "the app received {split:?}");
}
