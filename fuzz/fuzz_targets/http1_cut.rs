//! HTTP/1.1 message framing in front of hyper: heads and chunked bodies end where hyper sees them end, for
//! any chunking. Otherwise a part of one request could be taken for another (request smuggling).
#![no_main]

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::io::ErrorKind;
use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use outrigger_transport::listen::{fuzz_body_end, fuzz_head};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n";

/// The result of hyper reading a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Whole,
    /// The body is incomplete.
    Unfinished,
    Refused,
    /// The request after the body.
    Next,
}

// The first byte selects the kind of input and the chunk size.
fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let step = usize::from(first >> 1) + 1;
    match first & 1 {
        0 => body(bytes, step),
        _ => head(bytes, step),
    }
});

fn body(bytes: &[u8], step: usize) {
    let end = fuzz_body_end(bytes, usize::MAX);
    assert_eq!(
        fuzz_body_end(bytes, step),
        end,
        "the result depends on the chunking of the body"
    );
    // Rejected input does not reach hyper.
    let Ok(end) = end else { return };
    let Some(end) = end else {
        let read = served(&[HEAD, bytes].concat());
        assert_ne!(read.first(), Some(&Read::Whole), "hyper sees an end");
        return;
    };
    let cut = served(&[HEAD, &bytes[..end - 1]].concat());
    assert_ne!(cut.first(), Some(&Read::Whole), "hyper sees an earlier end");
    match served(&[HEAD, &bytes[..end]].concat())[..] {
        [Read::Whole] => {
            let read = served(&[HEAD, &bytes[..end], NEXT].concat());
            assert_eq!(read, [Read::Whole, Read::Next], "a part of the body is left");
        }
        [Read::Refused] => {}
        ref other => panic!("hyper sees no end: {other:?}"),
    }
}

fn head(bytes: &[u8], step: usize) {
    let head = fuzz_head(bytes, usize::MAX);
    assert_eq!(fuzz_head(bytes, step), head, "the result depends on the chunking of the head");
    let Some(head) = head else {
        assert_eq!(served(bytes), [], "hyper sees an end");
        return;
    };
    let (_, cut) = head.split_last().expect("a head that ends");
    assert_eq!(served(cut), [], "hyper sees an earlier end");
}

/// The requests that hyper parses from this input.
fn served(bytes: &[u8]) -> Vec<Read> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let reads = Rc::new(RefCell::new(Vec::new()));
    runtime.expect("a runtime").block_on(async {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let service = service_fn(|request: Request<Incoming>| {
            let reads = Rc::clone(&reads);
            async move {
                let next = request.uri().path() == "/next";
                let read = match request.into_body().collect().await {
                    Ok(_) if next => Read::Next,
                    Ok(_) => Read::Whole,
                    Err(error) => failed(&error),
                };
                reads.borrow_mut().push(read);
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        });
        let server = Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(far), service);
        let client = async {
            near.write_all(bytes).await.ok();
            near.shutdown().await.ok();
            let mut answers = Vec::new();
            near.read_to_end(&mut answers).await.ok();
        };
        let _ended = tokio::join!(server, client);
    });
    let reads = reads.borrow();
    reads.clone()
}

/// Whether a body failed because of missing data.
fn failed(error: &hyper::Error) -> Read {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause.map(std::io::Error::kind) {
        Some(ErrorKind::UnexpectedEof) => Read::Unfinished,
        _ if error.is_incomplete_message() => Read::Unfinished,
        _ => Read::Refused,
    }
}
