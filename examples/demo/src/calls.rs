//! Every kind of call between the two apps, checked and printed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use outrigger_wire::common::v1::{HttpExtension, InvokeRequest, http_extension::Verb};
use outrigger_wire::runtime::v1::InvokeServiceRequest;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use serde_json::Value;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};

use crate::Failure;
use crate::app::STACK;
use crate::echo::Line;
use crate::echo::echo_client::EchoClient;
use crate::fleet::{Fleet, Sidecar};

/// Payload of every call, which every response must echo.
const TEXT: &str = "how deep is the water?";
/// Calls of each kind after the first; the demo prints their median.
pub(crate) const REPEATS: usize = 20;
/// Lines of the streamed conversation.
const LINES: usize = 10;
/// Limit of any wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(15);
/// The callee's metric of calls that its access control allowed.
const ALLOWED: &str = "dapr_runtime_acl_app_policy_action_allowed_total{";

#[derive(Clone, Copy)]
enum Kind {
    Http,
    Grpc,
    Unary,
    Stream,
}

/// Makes every kind of call and prints a line for each.
pub(crate) async fn all(fleet: &Fleet) -> Result<(), Failure> {
    let (python, rust) = (&fleet.python, &fleet.rust);
    let as_python = identity(python, rust).await?;
    let as_rust = identity(rust, python).await?;
    println!(
        "{:24} {:32} {:50} {:>9} {:>9}",
        "call", "answered by", "caller, as its certificate says", "first", "median"
    );
    for (name, kind, caller, callee, id) in [
        ("HTTP -> HTTP app", Kind::Http, rust, python, &as_rust),
        ("HTTP -> gRPC app", Kind::Http, python, rust, &as_python),
        ("gRPC -> HTTP app", Kind::Grpc, rust, python, &as_rust),
        ("gRPC -> gRPC app", Kind::Grpc, python, rust, &as_python),
        ("gRPC proxied, unary", Kind::Unary, python, rust, &as_python),
        ("gRPC proxied, stream", Kind::Stream, python, rust, &as_python),
    ] {
        let before = allowed(callee).await?;
        let (answer, first, median) = repeated(kind, caller, callee)
            .await
            .map_err(|e| format!("{name}: {e}"))?;
        // Access control allowed each call by the caller's identity.
        let wanted = before + 1 + REPEATS as u64;
        until_allowed(callee, wanted)
            .await
            .map_err(|e| format!("{name}: {e}"))?;
        println!(
            "{name:24} {answer:32} {id:50} {:>6.2} ms {:>6.2} ms",
            millis(first),
            millis(median)
        );
    }
    for id in [&as_rust, &as_python] {
        println!(
            "{:24} {:32} {id}",
            "HTTP -> /private", "refused by the callee's policy"
        );
    }
    Ok(())
}

async fn repeated(
    kind: Kind,
    caller: &Sidecar,
    callee: &Sidecar,
) -> Result<(String, Duration, Duration), Failure> {
    let client = Caller::new(caller, callee)?;
    let answer = std::cell::RefCell::new(String::new());
    let (first, median) = timed(REPEATS, async || {
        let answered = client.call(kind).await?;
        answer.replace(answered);
        Ok(())
    })
    .await?;
    Ok((answer.into_inner(), first, median))
}

/// Duration of the first run, and the median of `repeats` more.
pub(crate) async fn timed(
    repeats: usize,
    work: impl AsyncFn() -> Result<(), Failure>,
) -> Result<(Duration, Duration), Failure> {
    let mut times = Vec::with_capacity(repeats);
    let started = Instant::now();
    work().await?;
    let first = started.elapsed();
    for _ in 0..repeats {
        let started = Instant::now();
        work().await?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok((first, times[repeats / 2]))
}

/// The SPIFFE id that the callee read from the caller's certificate, taken from its denial of `/private`.
async fn identity(caller: &Sidecar, callee: &Sidecar) -> Result<String, Failure> {
    let url = format!(
        "http://127.0.0.1:{}/v1.0/invoke/{}/method/private",
        caller.http, callee.app_id
    );
    let (status, body) = post(&url).await?;
    let body = String::from_utf8_lossy(&body);
    let id = body
        .split("denied access to id: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let expected = format!("spiffe://public/ns/default/{}", caller.app_id);
    if status != 403 || id != Some(&*expected) {
        return Err(format!(
            "/private of {} must be refused to {expected}, got {status}: {body}",
            callee.app_id
        )
        .into());
    }
    Ok(expected)
}

/// Client of the caller's sidecar.
struct Caller<'a> {
    caller: &'a Sidecar,
    callee: &'a Sidecar,
    http: Client<HttpConnector, Full<Bytes>>,
    grpc: Channel,
}

impl<'a> Caller<'a> {
    fn new(caller: &'a Sidecar, callee: &'a Sidecar) -> Result<Self, Failure> {
        let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", caller.grpc))?.connect_lazy();
        Ok(Self {
            caller,
            callee,
            http: client(),
            grpc,
        })
    }

    /// Makes one call and checks the response. Returns the name of the app that responded.
    async fn call(&self, kind: Kind) -> Result<String, Failure> {
        let call = async {
            match kind {
                Kind::Http => self.http().await,
                Kind::Grpc => self.invoke_service().await,
                Kind::Unary => self.say().await,
                Kind::Stream => self.chat().await,
            }
        };
        timeout(LIMIT, call)
            .await
            .map_err(|_| format!("no answer within {} s", LIMIT.as_secs()))?
    }

    async fn http(&self) -> Result<String, Failure> {
        let url = format!(
            "http://127.0.0.1:{}/v1.0/invoke/{}/method/echo",
            self.caller.http, self.callee.app_id
        );
        let request = Request::post(url)
            .header("content-type", "text/plain")
            .body(Full::from(TEXT))?;
        let answer = self.http.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status != 200 {
            return Err(format!("HTTP status {status}: {}", String::from_utf8_lossy(&body)).into());
        }
        self.checked(&body)
    }

    async fn invoke_service(&self) -> Result<String, Failure> {
        let message = InvokeRequest {
            method: "echo".into(),
            data: Some(prost_types::Any {
                type_url: String::new(),
                value: TEXT.into(),
            }),
            content_type: "text/plain".into(),
            http_extension: Some(HttpExtension {
                verb: Verb::Post.into(),
                querystring: String::new(),
            }),
        };
        let request = InvokeServiceRequest {
            id: self.callee.app_id.clone(),
            message: Some(message),
        };
        let answer = DaprClient::new(self.grpc.clone())
            .invoke_service(request)
            .await?
            .into_inner();
        self.checked(&answer.data.unwrap_or_default().value)
    }

    async fn say(&self) -> Result<String, Failure> {
        let line = Line {
            text: TEXT.into(),
            caller: String::new(),
        };
        let answer = self.echo().say(self.addressed(line)?).await?.into_inner();
        self.same(&answer.text, TEXT, &answer.caller)?;
        Ok(STACK.into())
    }

    async fn chat(&self) -> Result<String, Failure> {
        let texts: Vec<String> = (0..LINES).map(|n| format!("{TEXT} ({n})")).collect();
        // Sends each line after the response to the previous one: the stream is open in both directions.
        let (say, lines) = tokio::sync::mpsc::channel(1);
        let outgoing = self.addressed(tokio_stream::wrappers::ReceiverStream::new(lines))?;
        let mut echo = self.echo();
        let answers = tokio::spawn(async move { echo.chat(outgoing).await });
        let mut texts = texts.into_iter();
        let first = texts.next().unwrap_or_default();
        say.send(Line {
            text: first.clone(),
            caller: String::new(),
        })
        .await?;
        let mut answers = answers.await??.into_inner();
        let mut expected = first;
        loop {
            let answer = answers.next().await.ok_or("the stream ended early")??;
            self.same(&answer.text, &expected, &answer.caller)?;
            let Some(text) = texts.next() else { break };
            say.send(Line {
                text: text.clone(),
                caller: String::new(),
            })
            .await?;
            expected = text;
        }
        drop(say);
        match answers.next().await {
            None => Ok(format!("{STACK}, {LINES} lines both ways")),
            Some(extra) => Err(format!("unexpected response: {extra:?}").into()),
        }
    }

    fn echo(&self) -> EchoClient<Channel> {
        EchoClient::new(self.grpc.clone())
    }

    fn addressed<T>(&self, message: T) -> Result<tonic::Request<T>, Failure> {
        let mut request = tonic::Request::new(message);
        request
            .metadata_mut()
            .insert("dapr-app-id", AsciiMetadataValue::try_from(&*self.callee.app_id)?);
        Ok(request)
    }

    fn checked(&self, body: &[u8]) -> Result<String, Failure> {
        let shown = String::from_utf8_lossy(body);
        let seen: Value =
            serde_json::from_slice(body).map_err(|e| format!("not the app's answer ({e}): {shown}"))?;
        let field = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
        self.same(&field("text"), TEXT, &field("caller"))?;
        self.same(&field("path"), "/echo", &field("caller"))?;
        Ok(field("stack"))
    }

    fn same(&self, got: &str, wanted: &str, caller: &str) -> Result<(), Failure> {
        if got != wanted {
            return Err(format!("the app saw '{got}', expected '{wanted}'").into());
        }
        if caller != self.caller.app_id {
            return Err(format!(
                "the app received caller '{caller}', expected '{}'",
                self.caller.app_id
            )
            .into());
        }
        Ok(())
    }
}

/// Number of calls that the sidecar's access control has allowed by the caller's identity.
async fn allowed(sidecar: &Sidecar) -> Result<u64, Failure> {
    let (status, body) = get(&format!("http://127.0.0.1:{}/", sidecar.metrics)).await?;
    if status != 200 {
        return Err(format!("metrics of {}: status {status}", sidecar.app_id).into());
    }
    let text = String::from_utf8_lossy(&body);
    let lines = text.lines().filter(|line| {
        line.starts_with(ALLOWED)
            && line.contains("trustDomain=\"public\"")
            && line.contains("namespace=\"default\"")
    });
    Ok(lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64)
}

/// Waits for counters, which may lag behind the calls.
async fn until_allowed(callee: &Sidecar, wanted: u64) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let counted = allowed(callee).await?;
        if counted >= wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("access control let {counted} calls through, expected {wanted}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `GET`: status and body.
pub(crate) async fn get(url: &str) -> Result<(u16, Bytes), Failure> {
    send(Request::get(url).body(Full::default())?).await
}

async fn post(url: &str) -> Result<(u16, Bytes), Failure> {
    send(Request::post(url).body(Full::from(TEXT))?).await
}

/// Sends a request. Returns status and body.
pub(crate) async fn send(request: Request<Full<Bytes>>) -> Result<(u16, Bytes), Failure> {
    let answer = timeout(LIMIT, client().request(request)).await??;
    let status = answer.status().as_u16();
    Ok((
        status,
        timeout(LIMIT, answer.into_body().collect()).await??.to_bytes(),
    ))
}

fn client() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
