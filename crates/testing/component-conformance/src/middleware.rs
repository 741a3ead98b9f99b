use std::{
    error::Error as StdError,
    fmt::Debug,
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{
    future::{join, join_all},
    stream,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use outrigger_component::{
    Middleware,
    middleware::{self, Body, BoxError, Next, full},
};
use tokio::{
    sync::{Barrier, mpsc, oneshot},
    time::timeout,
};

use super::{Findings, Outcome, SOON, Step, ensure};

/// Concurrent requests.
const AT_ONCE: usize = 64;
/// Time after which a client cancels.
const IMPATIENT: Duration = Duration::from_millis(5);

/// A request or response extension, as the sidecar sets them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note(u8);

#[derive(Debug, thiserror::Error)]
#[error("broken off")]
struct BrokenOff;

type Piece = Result<Frame<Bytes>, BoxError>;

/// Runs all rules for requests that a middleware passes on. `sample` is a request that it passes unchanged,
/// at least a hundred times a second; it may uppercase bodies.
///
/// # Panics
/// If a rule is broken.
pub async fn middleware(middleware: &Arc<dyn Middleware>, sample: &Request<()>) {
    let mut findings = Findings::new("middleware");
    let subject = Subject { middleware, sample };
    findings.note("a request arrives as it was sent", subject.arrives().await);
    findings.note("an answer comes as it was given", subject.comes_back().await);
    findings.note("bodies of requests stream", subject.streams_in().await);
    findings.note("bodies of answers stream", subject.streams_out().await);
    findings.note("interrupted bodies stay incomplete", subject.breaks().await);
    findings.note("errors pass", subject.errors().await);
    findings.note("requests do not wait for each other", subject.at_once().await);
    findings.note(
        "a request that is given up is forgotten",
        subject.given_up().await,
    );
    for close in ["closing", "closing again"] {
        findings.note(close, timeout(SOON, middleware.close()).await.step("close"));
    }
    findings.finish();
}

/// Runs all rules for responses of the middleware itself. `sample` is a request that it always rejects with
/// `status`.
///
/// # Panics
/// If a rule is broken.
pub async fn middleware_refuses(middleware: &Arc<dyn Middleware>, sample: &Request<()>, status: StatusCode) {
    let mut findings = Findings::new("middleware that refuses");
    let subject = Subject { middleware, sample };
    for time in ["is refused", "is refused again"] {
        findings.note(time, subject.refused(full("X"), status).await);
    }
    let (sender, unfinished) = mpsc::channel(1);
    let unfinished = subject.refused(body(unfinished), status).await;
    findings.note("an unfinished body does not block", unfinished);
    drop(sender);
    let together = (0..AT_ONCE).map(|_| subject.refused(full("X"), status));
    let together = join_all(together).await.into_iter().collect();
    findings.note("requests at once are refused", together);
    findings.note("closing", timeout(SOON, middleware.close()).await.step("close"));
    findings.finish();
}

struct Subject<'a> {
    middleware: &'a Arc<dyn Middleware>,
    sample: &'a Request<()>,
}

/// A body of the received pieces; ends when the sender is dropped.
fn body(pieces: mpsc::Receiver<Piece>) -> Body {
    let pieces = stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    });
    StreamBody::new(pieces).boxed_unsync()
}

fn data(text: &'static [u8]) -> Piece {
    Ok(Frame::data(Bytes::from_static(text)))
}

/// A split character, invalid UTF-8 and trailers; all uppercase.
fn pieces() -> [Piece; 4] {
    let trailers = HeaderMap::from_iter([pair("x-checksum", "7")]);
    [
        data(b"ONE \xc3"),
        data(b"\x89 TWO "),
        data(b"\xff\x00 3"),
        Ok(Frame::trailers(trailers)),
    ]
}

const WHOLE: &[u8] = b"ONE \xc3\x89 TWO \xff\x00 3";

fn pair(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (HeaderName::from_static(name), HeaderValue::from_static(value))
}

fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    ensure!(found == expected, "{what}: {found:?}, expected {expected:?}");
    Ok(())
}

/// Checks that a body equals [`pieces`].
async fn is_whole(body: Body) -> Outcome {
    let body = body.collect().await.step("body")?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    same(
        "trailers",
        &trailers.get("x-checksum"),
        &Some(&HeaderValue::from(7)),
    )?;
    same("body", &&body.to_bytes()[..], &WHOLE)
}

fn whole() -> Body {
    StreamBody::new(stream::iter(pieces())).boxed_unsync()
}

impl Subject<'_> {
    fn request(&self, body: Body) -> Request<Body> {
        self.sample.clone().map(|()| body)
    }

    /// Sends a request through the middleware.
    async fn send<F>(
        &self,
        request: Request<Body>,
        end: impl FnOnce(Request<Body>) -> F + Send,
    ) -> Result<middleware::Outcome, String>
    where
        F: Future<Output = middleware::Outcome> + Send,
    {
        let chain = [Arc::clone(self.middleware)];
        let next = Next::new(&chain, |request| Box::pin(end(request)));
        timeout(SOON, next.run(request)).await.step("a request")
    }

    async fn arrives(&self) -> Outcome {
        let mut request = self.request(whole());
        let headers = [("x-twice", "one"), ("x-twice", "two"), ("x-empty", "")];
        for (name, value) in headers {
            request
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        request.extensions_mut().insert(Note(1));
        let (method, uri, version) = (request.method().clone(), request.uri().clone(), request.version());
        let headers = request.headers().clone();
        let check = async move |request: Request<Body>| -> Outcome {
            let (head, body) = request.into_parts();
            same("method", &head.method, &method)?;
            same("target", &head.uri, &uri)?;
            same("version", &head.version, &version)?;
            same("headers", &head.headers, &headers)?;
            same("notes", &head.extensions.get(), &Some(&Note(1)))?;
            is_whole(body).await
        };
        let end = |request| async move {
            match check(request).await {
                Ok(()) => Ok(Response::new(full(""))),
                Err(why) => Err(BoxError::from(why)),
            }
        };
        self.send(request, end).await?.step("the end").map(drop)
    }

    async fn comes_back(&self) -> Outcome {
        let headers = [
            pair("set-cookie", "a=1"),
            pair("set-cookie", "b=2"),
            pair("x-app", "Mixed Case"),
        ];
        let given = headers.clone();
        let end = |_| async move {
            let mut response = Response::new(whole());
            *response.status_mut() = StatusCode::IM_A_TEAPOT;
            for (name, value) in given {
                response.headers_mut().append(name, value);
            }
            response.extensions_mut().insert(Note(2));
            Ok(response)
        };
        let response = self.send(self.request(full("")), end).await?.step("answer")?;
        let (head, body) = response.into_parts();
        same("status", &head.status, &StatusCode::IM_A_TEAPOT)?;
        same("notes", &head.extensions.get(), &Some(&Note(2)))?;
        for (name, _) in &headers {
            let found: Vec<_> = head.headers.get_all(name).iter().collect();
            let expected = headers.iter().filter(|(other, _)| other == name);
            let expected: Vec<_> = expected.map(|(_, value)| value).collect();
            same(name.as_str(), &found, &expected)?;
        }
        is_whole(body).await
    }

    /// The second piece of the body is sent only after the first has arrived.
    async fn streams_in(&self) -> Outcome {
        let (sender, pieces) = mpsc::channel(1);
        let (seen, first) = oneshot::channel();
        let feed = async move {
            sender.send(data(b"FIRST")).await.step("first piece")?;
            first.await.step("the first piece does not arrive alone")?;
            sender.send(data(b"SECOND")).await.step("second piece")
        };
        let end = |request: Request<Body>| async move {
            let mut body = request.into_body();
            let first = body.frame().await.ok_or("no body")??;
            seen.send(()).map_err(|()| "nobody waits")?;
            let rest = body.collect().await?.to_bytes();
            let both = [first.into_data().unwrap_or_default(), rest].concat();
            Ok(Response::new(full(both)))
        };
        let (fed, answer) = join(feed, self.send(self.request(body(pieces)), end)).await;
        let answer = answer?.step("answer")?;
        fed?;
        let echo = answer.into_body().collect().await.step("echo")?.to_bytes();
        same("body", &&echo[..], &&b"FIRSTSECOND"[..])
    }

    async fn streams_out(&self) -> Outcome {
        let (sender, pieces) = mpsc::channel(1);
        sender.send(data(b"FIRST")).await.step("first piece")?;
        let end = |_| async move { Ok(Response::new(body(pieces))) };
        let answer = self.send(self.request(full("")), end).await?.step("answer")?;
        let mut answer = answer.into_body();
        let first = timeout(SOON, answer.frame()).await.step("the first piece")?;
        let first = first.ok_or("no body")?.step("the first piece")?;
        let first = first.into_data().unwrap_or_default();
        same("first piece", &&first[..], &&b"FIRST"[..])?;
        sender.send(data(b"SECOND")).await.step("second piece")?;
        drop(sender);
        let rest = timeout(SOON, answer.collect()).await.step("the rest")?;
        let rest = rest.step("the rest")?.to_bytes();
        same("second piece", &&rest[..], &&b"SECOND"[..])
    }

    /// An interrupted body must not look complete.
    async fn breaks(&self) -> Outcome {
        let half = || {
            let pieces = [data(b"HALF"), Err(BoxError::from(BrokenOff))];
            StreamBody::new(stream::iter(pieces)).boxed_unsync()
        };
        let end = |request: Request<Body>| async move {
            let body = request.into_body().collect().await?;
            Ok(Response::new(full(body.to_bytes())))
        };
        match self.send(self.request(half()), end).await? {
            Err(error) => is_broken_off(&*error)?,
            Ok(_) => return Err("half a request arrived as a whole".to_owned()),
        }
        let half = half();
        let end = |_| async move { Ok(Response::new(half)) };
        let answer = self.send(self.request(full("")), end).await?.step("answer")?;
        match answer.into_body().collect().await {
            Err(error) => is_broken_off(&*error),
            Ok(_) => Err("half an answer came as a whole".to_owned()),
        }
    }

    async fn errors(&self) -> Outcome {
        let end = |_| async { Err(BoxError::from(BrokenOff)) };
        match self.send(self.request(full("")), end).await? {
            Err(error) => is_broken_off(&*error),
            Ok(answer) => Err(format!("it became an answer with {}", answer.status())),
        }
    }

    /// All requests reach the end before the first response.
    async fn at_once(&self) -> Outcome {
        let all = Barrier::new(AT_ONCE);
        let all = &all;
        let call = |number: usize| async move {
            let own = HeaderValue::from(number);
            let mut request = self.request(full(number.to_string()));
            request.headers_mut().insert("x-number", own.clone());
            let end = |request: Request<Body>| async move {
                all.wait().await;
                let number = request.headers().get("x-number").cloned();
                let mut response = Response::new(request.into_body());
                response
                    .headers_mut()
                    .extend(number.map(|number| (HeaderName::from_static("x-number"), number)));
                Ok(response)
            };
            let answer = self.send(request, end).await?.step("answer")?;
            same(
                "the answer's header",
                &answer.headers().get("x-number"),
                &Some(&own),
            )?;
            let body = answer.into_body().collect().await.step("body")?.to_bytes();
            same("the answer's body", &&body[..], &number.to_string().as_bytes())
        };
        join_all((0..AT_ONCE).map(call)).await.into_iter().collect()
    }

    async fn given_up(&self) -> Outcome {
        for _ in 0..AT_ONCE {
            let stuck = self.send(self.request(full("")), |_| pending());
            ensure!(
                timeout(IMPATIENT, stuck).await.is_err(),
                "the end was not waited for"
            );
        }
        let end = |_| async { Ok(Response::new(full(""))) };
        let answer = self.send(self.request(full("")), end).await?.step("answer")?;
        same("status", &answer.status(), &StatusCode::OK)
    }

    async fn refused(&self, body: Body, status: StatusCode) -> Outcome {
        let reached = AtomicBool::new(false);
        let end = |_| {
            reached.store(true, Ordering::SeqCst);
            async { Ok(Response::new(full(""))) }
        };
        let answer = self.send(self.request(body), end).await?.step("answer")?;
        ensure!(!reached.load(Ordering::SeqCst), "it was passed on");
        let (head, body) = answer.into_parts();
        same("status", &head.status, &status)?;
        let kind = head.headers.get(CONTENT_TYPE);
        ensure!(kind.is_some(), "its content has no type");
        let body = body.collect().await.step("body")?.to_bytes();
        ensure!(!body.is_empty(), "it does not say why");
        let length = HeaderValue::from(body.len());
        let named = head.headers.get(CONTENT_LENGTH);
        ensure!(
            named.is_none_or(|named| *named == length),
            "the length is {length:?}, not {named:?}"
        );
        Ok(())
    }
}

fn is_broken_off(error: &(dyn StdError + Send + Sync + 'static)) -> Outcome {
    ensure!(error.is::<BrokenOff>(), "it became another error: {error}");
    Ok(())
}
