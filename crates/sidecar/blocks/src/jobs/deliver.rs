//! Delivers due jobs to the app.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method};
use outrigger_delivery::Limits;
use outrigger_policy::resiliency::Outcome as Counted;
use outrigger_protojson::to_json;
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::delivery::{self, Inbox, OnStop};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::scheduler::{DeliveryStarted, Outcome, Receiver, Trigger};
use outrigger_telemetry::metrics::{Counter, Histogram, Millis};
use outrigger_telemetry::trace::{Parent, Tracer};
use outrigger_transport::grpc::fields;
use outrigger_wire::common::v1::HttpExtension;
use outrigger_wire::common::v1::http_extension::Verb;
use outrigger_wire::runtime::v1::{JobEventRequest, JobEventResponse};
use prost::Message;
use prost_types::{Any, Value};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::LOG;

const ON_JOB: &str = "/dapr.proto.runtime.v1.AppCallback/OnJobEvent";
/// The method of apps with SDKs before v1.18.
const ON_JOB_ALPHA: &str = "/dapr.proto.runtime.v1.AppCallbackAlpha/OnJobEventAlpha1";
/// The type URL that the HTTP API gives to data.
const VALUE: &str = "type.googleapis.com/google.protobuf.Value";
/// Largest part of a response that is read to keep the connection reusable, bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// Jobs in flight at the app, and in total: as many as a scheduler triggers at once.
const LIMITS: Limits = Limits {
    in_flight: 2048,
    unsettled: 4096,
};
/// Nesting of lists in a value: decoding allows 100 levels, and a list takes two.
const MAX_LISTS: usize = 50;
/// Nesting of objects, which take three levels each.
const MAX_OBJECTS: usize = 33;

/// The outcome of an attempt.
enum Reply {
    /// The HTTP status of the app.
    Http(u16),
    /// The gRPC status of the app; an unreachable app has one too.
    Grpc(Code, String),
    /// The call failed.
    Failed(AppError),
}

/// A due job being delivered.
struct Outgoing {
    name: String,
    data: Option<Any>,
    trace: Parent,
    begun: DeliveryStarted,
}

type ToApp = Inbox<(), Outgoing, Reply>;

/// Delivers jobs to the app.
pub(super) struct Deliveries {
    app: Option<Arc<AppChannel>>,
    tracer: Tracer,
    metrics: Arc<SidecarMetrics>,
    /// Present while the app is healthy.
    inbox: ArcSwapOption<ToApp>,
    succeeded: (Counter, Histogram<Millis>),
    failed: (Counter, Histogram<Millis>),
}

impl Deliveries {
    pub(super) fn new(app: Option<Arc<AppChannel>>, tracer: Tracer, metrics: Arc<SidecarMetrics>) -> Self {
        let registry = metrics.all().registry.namespaced();
        let latency = registry.latency(
            "component_job_latencies",
            "Duration of jobs in the app.",
            ["operation", "success"],
        );
        let series = |name, help, success| {
            let operation = "job_trigger_op";
            let count = registry.counter(name, help, ["operation"]).with([operation]);
            (count, latency.with([operation, success]))
        };
        Self {
            app,
            tracer,
            inbox: ArcSwapOption::empty(),
            succeeded: series(
                "component_job_success_count",
                "Jobs that the app handled.",
                "true",
            ),
            failed: series(
                "component_job_failure_count",
                "Jobs that the app failed to handle.",
                "false",
            ),
            metrics,
        }
    }

    /// Delivers jobs until `stop`, which aborts attempts in flight; queued jobs are not attempted.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let (inbox, engine) = delivery::engine(LIMITS, None, &self.metrics);
        self.inbox.store(Some(Arc::new(inbox)));
        // One attempt: retries of failed jobs are up to their failure policy in the scheduler.
        engine
            .run(stop, OnStop::FinishAttempts, async |job, _| {
                self.attempt(&job).await
            })
            .await;
        self.inbox.store(None);
    }

    async fn attempt(&self, job: &Outgoing) -> (Reply, Counted) {
        let Some(app) = &self.app else {
            return (Reply::Failed(AppError::NoChannel), Counted::Final);
        };
        job.begun.set();
        let reply = if app.is_grpc() {
            over_grpc(app, job).await
        } else {
            match over_http(app, job).await {
                Ok(status) => Reply::Http(status),
                Err(error) => Reply::Failed(error),
            }
        };
        (reply, Counted::Final)
    }

    /// Counts the outcome of a job, and decides the response to the scheduler.
    fn settle(&self, name: &str, reply: Reply, started: Instant) -> Outcome {
        let (done, not_found, shown) = match reply {
            Reply::Http(status) => ((200..300).contains(&status), status == 404, status.to_string()),
            Reply::Grpc(code, message) => (
                code == Code::Ok,
                code == Code::NotFound,
                format!("{code:?}: {message}"),
            ),
            Reply::Failed(error) => {
                tracing::error!(target: LOG, "failed to deliver job {name} to the app: {error}");
                return Outcome::Failed;
            }
        };
        let (count, latency) = if done { &self.succeeded } else { &self.failed };
        count.inc();
        latency.observe(started.elapsed());
        if done {
            tracing::debug!(target: LOG, "Sent job {name} to app");
        } else if not_found {
            tracing::error!(target: LOG, "the app has no handler for job {name} ({shown}); no retry follows");
        } else {
            tracing::error!(target: LOG, "the app failed at job {name}: {shown}");
            return Outcome::Failed;
        }
        Outcome::Success
    }
}

impl Receiver for Deliveries {
    fn receive(&self, trigger: Trigger) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some(app) = &self.app else {
                return Outcome::Failed;
            };
            let Some(inbox) = self.inbox.load_full() else {
                return Outcome::Undelivered;
            };
            let name = trigger.name;
            let statement = if app.is_grpc() {
                ON_JOB.to_owned()
            } else {
                format!("POST /job/{name}")
            };
            let mut span = self.tracer.job(&name, &statement, &Parent::default());
            let job = Outgoing {
                name: name.clone(),
                data: trigger.data,
                trace: span.as_parent(),
                begun: trigger.begun,
            };
            let started = Instant::now();
            let pending = inbox.offer(None, job).await;
            // The engine ends once the last inbox is dropped.
            drop(inbox);
            let Ok(reply) = pending.settled().await else {
                return Outcome::Undelivered;
            };
            match &reply {
                Reply::Http(status) => span.http_status(*status),
                Reply::Grpc(Code::Ok, _) => {}
                Reply::Grpc(_, message) => span.grpc_failed(message),
                Reply::Failed(error) => span.grpc_failed(&error.to_string()),
            }
            self.settle(&name, reply, started)
        })
    }
}

async fn over_http(app: &AppChannel, job: &Outgoing) -> Result<u16, AppError> {
    let path = format!("job/{}", job.name.trim_start_matches('/'));
    let (body, trace) = (
        Bytes::from(job.data.as_ref().map_or(Ok(Vec::new()), body)?).into(),
        job.trace.clone(),
    );
    let call = Call::own(Method::POST, path, HeaderMap::new(), body, trace);
    let reply = app.invoke(call).await?;
    let AppStatus::Http(status) = reply.status else {
        return Err(AppError::NoChannel);
    };
    let _rest = reply.body.collect_up_to(MAX_ANSWER).await;
    Ok(status)
}

async fn over_grpc(app: &AppChannel, job: &Outgoing) -> Reply {
    let request = JobEventRequest {
        name: job.name.clone(),
        data: job.data.clone(),
        method: format!("job/{}", job.name),
        content_type: job
            .data
            .as_ref()
            .map_or_else(String::new, |data| data.type_url.clone()),
        http_extension: Some(HttpExtension {
            verb: Verb::Post.into(),
            querystring: String::new(),
        }),
    };
    let ask = |path| app.callback::<JobEventResponse>(path, &request, &job.trace);
    let answer = match ask(ON_JOB).await {
        Err(status) if status.code() == Code::Unimplemented => ask(ON_JOB_ALPHA).await,
        answer => answer,
    };
    match answer {
        Ok(_) => Reply::Grpc(Code::Ok, String::new()),
        Err(status) => Reply::Grpc(status.code(), status.message().to_owned()),
    }
}

/// Checks that data can be delivered and decoded.
///
/// # Errors
/// What is wrong with the data.
pub(super) fn check(data: &Any) -> Result<(), String> {
    if data.type_url != VALUE {
        return Ok(());
    }
    fields::check(&data.value, &fields::VALUE).map_err(|error| error.to_string())?;
    match Value::decode(data.value.as_slice()) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{error}; lists may be nested up to {MAX_LISTS} levels, objects up to {MAX_OBJECTS}"
        )),
    }
}

/// Data in the form for an HTTP app: JSON values as JSON, everything else unchanged.
fn body(data: &Any) -> Result<Vec<u8>, AppError> {
    if data.type_url != VALUE {
        return Ok(trimmed(&data.value).to_vec());
    }
    let value = Value::decode(data.value.as_slice());
    let value = value.map_err(|error| AppError::Body(format!("the job's data: {error}")))?;
    match value.kind {
        // The job was scheduled without data.
        None => Ok(Vec::new()),
        Some(_) => Ok(to_json(value).to_string().into_bytes()),
    }
}

/// Trims white space as Dapr does: Unicode white space for text, otherwise ASCII including vertical tabs.
fn trimmed(bytes: &[u8]) -> &[u8] {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.trim().as_bytes();
    }
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let Some(first) = bytes.iter().position(|byte| !is_space(byte)) else {
        return &[];
    };
    let last = bytes.iter().rposition(|byte| !is_space(byte)).unwrap_or(first);
    bytes.get(first..=last).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use prost_types::value::Kind;

    use super::*;

    fn shown(type_url: &str, value: Vec<u8>) -> String {
        let data = Any {
            type_url: type_url.to_owned(),
            value,
        };
        String::from_utf8(body(&data).unwrap()).unwrap()
    }

    #[test]
    fn values_are_json_other_data_is_bytes() {
        let of = |kind| Value { kind: Some(kind) }.encode_to_vec();
        let list = prost_types::ListValue {
            values: vec![
                Value {
                    kind: Some(Kind::NumberValue(1.5)),
                },
                Value { kind: None },
            ],
        };
        for (kind, expected) in [
            (Kind::NumberValue(123.0), "123"),
            (Kind::NumberValue(-1e300), "-1e+300"),
            (Kind::StringValue("true".to_owned()), "\"true\""),
            (Kind::BoolValue(true), "true"),
            (Kind::NullValue(0), "null"),
            (Kind::ListValue(list), "[1.5,null]"),
        ] {
            assert_eq!(shown(VALUE, of(kind)), expected);
        }
        assert_eq!(shown(VALUE, Vec::new()), "", "there was no data");
        assert_eq!(shown("", " \u{b}{}\u{85}\n".into()), "{}");
        assert_eq!(trimmed(b"\x0b\xff \n"), b"\xff");
        assert_eq!(trimmed(b" \x0b"), b"");
        let broken = Any {
            type_url: VALUE.to_owned(),
            value: vec![0xff],
        };
        assert!(body(&broken).is_err());
    }
    #[test]
    fn check_finds_undeliverable_data() {
        let data = |value: &Value| Any {
            type_url: VALUE.to_owned(),
            value: value.encode_to_vec(),
        };
        let list = |values| Value {
            kind: Some(Kind::ListValue(prost_types::ListValue { values })),
        };
        let object = |value| Value {
            kind: Some(Kind::StructValue(prost_types::Struct {
                fields: [("a".to_owned(), value)].into(),
            })),
        };
        let nested = |depth, around: &dyn Fn(Value) -> Value| {
            let mut value = Value {
                kind: Some(Kind::BoolValue(true)),
            };
            for _ in 0..depth {
                value = around(value);
            }
            data(&value)
        };
        let lists = |depth| nested(depth, &|value| list(vec![value]));
        let objects = |depth| nested(depth, &object);
        for (fine, deep) in [
            (lists(MAX_LISTS), lists(MAX_LISTS + 1)),
            (objects(MAX_OBJECTS), objects(MAX_OBJECTS + 1)),
        ] {
            assert_eq!(check(&fine), Ok(()));
            assert!(body(&fine).is_ok() && body(&deep).is_err());
            let error = check(&deep).unwrap_err();
            assert!(error.contains("lists may be nested up to 50 levels"), "{error}");
        }
        let many = data(&list(vec![Value::default(); fields::MAX_FIELDS]));
        assert!(check(&many).unwrap_err().contains("more than 131072 fields"));
        for (type_url, is_fine) in [(VALUE, false), ("type.googleapis.com/x.Y", true), ("", true)] {
            let garbage = Any {
                type_url: type_url.to_owned(),
                value: vec![0xff],
            };
            assert_eq!(check(&garbage).is_ok(), is_fine, "{type_url}");
        }
    }
}
