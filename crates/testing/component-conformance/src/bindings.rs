use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_component::{
    Error, InputBinding, Kind, OutputBinding, Result,
    bindings::{Event, EventHandler, Invoke, Invoked},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Findings, Outcome, SOON, Step, ensure, soon, unique};

/// How long to wait for events that must not happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// Produces events for the input binding under test.
#[async_trait]
pub trait Source: Send + Sync {
    /// Causes an event with the payload `text`, or with a payload of the source's choice.
    async fn cause(&self, text: &str);

    /// Whether events carry `text`.
    fn has_payload(&self) -> bool {
        true
    }

    /// Whether a failed event is redelivered while the binding reads.
    fn repeats(&self) -> bool {
        true
    }
}

/// The connection to the outside system, for injecting outages.
pub trait Link: Send {
    /// Stops the system like a crash.
    fn cut(&mut self);

    /// Restarts the system with its stored data.
    fn restore(&mut self);
}

/// Runs all rules for output bindings. `sample` is a call that always succeeds.
///
/// # Panics
/// If a rule is broken.
pub async fn output_binding(binding: &Arc<dyn OutputBinding>, sample: &Invoke) {
    let mut findings = Findings::new("output binding");
    findings.note("operations are named", named(binding, sample));
    findings.note("a sample call works", invoke(binding, sample).await.map(drop));
    findings.note("calls at once work", at_once(binding, sample).await);
    findings.note("other operations are refused", refused(binding, sample).await);
    findings.note("the system answers", binding.ping().await.step("ping"));
    findings.note("closing ends all", closed(binding, sample).await);
    findings.finish();
}

fn named(binding: &Arc<dyn OutputBinding>, sample: &Invoke) -> Outcome {
    let operations = binding.operations();
    ensure!(
        operations.contains(&&*sample.operation),
        "{} is not in {operations:?}",
        sample.operation
    );
    for (index, operation) in operations.iter().enumerate() {
        ensure!(!operation.is_empty(), "an operation has no name");
        ensure!(
            !operations[..index].contains(operation),
            "{operation} is there twice"
        );
    }
    Ok(())
}

async fn invoke(binding: &Arc<dyn OutputBinding>, call: &Invoke) -> Result<Option<Invoked>, String> {
    timeout(SOON, binding.invoke(call))
        .await
        .step("call")?
        .step("call")
}

async fn at_once(binding: &Arc<dyn OutputBinding>, sample: &Invoke) -> Outcome {
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let (binding, sample) = (binding.clone(), sample.clone());
            tokio::spawn(async move { invoke(&binding, &sample).await.map(drop) })
        })
        .collect();
    for call in calls {
        call.await.step("task")??;
    }
    Ok(())
}

async fn refused(binding: &Arc<dyn OutputBinding>, sample: &Invoke) -> Outcome {
    let other = Invoke {
        operation: "no-such-operation".to_owned(),
        ..sample.clone()
    };
    match timeout(SOON, binding.invoke(&other)).await.step("call")? {
        Err(error) if error.kind() == Kind::Unsupported => Ok(()),
        other => Err(format!("an operation that is not there: {other:?}")),
    }
}

async fn closed(binding: &Arc<dyn OutputBinding>, sample: &Invoke) -> Outcome {
    timeout(SOON, binding.close()).await.step("close")?;
    timeout(SOON, binding.close()).await.step("close again")?;
    match timeout(SOON, binding.invoke(sample)).await.step("call")? {
        Err(error) if error.kind() == Kind::Closed => Ok(()),
        other => Err(format!("a call after closing: {other:?}")),
    }
}

/// Runs the rules for a temporary outage of the system.
///
/// # Panics
/// If a rule is broken.
pub async fn output_binding_outlives(
    binding: &Arc<dyn OutputBinding>,
    sample: &Invoke,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("output binding without its system");
    findings.note("a sample call works", invoke(binding, sample).await.map(drop));
    link.cut();
    findings.note("a lost system is reported", lost(binding, sample).await);
    link.restore();
    let back = soon("calls work again", || async {
        Ok(matches!(timeout(SOON, binding.invoke(sample)).await, Ok(Ok(_))))
    });
    findings.note("calls work again", back.await);
    findings.note("the system answers", binding.ping().await.step("ping"));
    findings.finish();
}

async fn lost(binding: &Arc<dyn OutputBinding>, sample: &Invoke) -> Outcome {
    match timeout(SOON * 2, binding.invoke(sample)).await.step("call")? {
        Err(error) if error.retryable() => Ok(()),
        other => Err(format!("a call without the system: {other:?}")),
    }
}

/// Records events; refuses or delays them on request.
struct App {
    events: Mutex<Vec<Event>>,
    /// Text of an event to refuse once.
    refused: Mutex<Option<String>>,
    held: watch::Sender<bool>,
    finished: AtomicUsize,
}

impl App {
    fn count(&self) -> usize {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn has(&self, text: &str) -> usize {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events
            .iter()
            .filter(|event| event.data == text.as_bytes())
            .count()
    }

    /// Refuses the next event with this text. A late duplicate of an earlier event is accepted.
    fn refuse(&self, text: &str) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.to_owned());
    }

    fn takes(&self, event: &Event) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.take_if(|text| event.data == text.as_bytes()).is_none()
    }

    /// Delays the handling of events.
    fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }
}

impl EventHandler for App {
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let takes = self.takes(&event);
            self.events
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event);
            let released = self.held.subscribe().wait_for(|held| !held).await.is_ok();
            assert!(released, "the app is there as long as it handles");
            self.finished.fetch_add(1, Ordering::SeqCst);
            if takes {
                Ok(Bytes::from_static(b"answer"))
            } else {
                Err(Error::new(Kind::Internal, "the app refuses"))
            }
        })
    }
}

struct Reading {
    app: Arc<App>,
    /// Dropped if a rule fails, so that reading ends and takes no events of later rules.
    drain: DropGuard,
    task: JoinHandle<Result<()>>,
}

impl Reading {
    fn start(binding: &Arc<dyn InputBinding>) -> Self {
        let app = Arc::new(App {
            events: Mutex::default(),
            refused: Mutex::default(),
            held: watch::Sender::new(false),
            finished: AtomicUsize::default(),
        });
        let drain = CancellationToken::new();
        let (binding, handler, token) = (binding.clone(), app.clone(), drain.clone());
        let task = tokio::spawn(async move { binding.read(handler, token).await });
        Self {
            app,
            drain: drain.drop_guard(),
            task,
        }
    }

    async fn end(self) -> Outcome {
        drop(self.drain);
        timeout(SOON, self.task)
            .await
            .step("reading ends")?
            .step("task")?
            .step("reading")
    }
}

struct Subject<'a> {
    binding: &'a Arc<dyn InputBinding>,
    source: &'a dyn Source,
    run: String,
}

impl Subject<'_> {
    fn text(&self, name: &str) -> String {
        format!("{}-{name}", self.run)
    }

    /// Causes an event and waits until the app has it. Repeats the event, because a binding that does not
    /// read yet may miss it.
    async fn delivered(&self, app: &App, text: &str) -> Outcome {
        let known = app.count();
        for _ in 0..20 {
            self.source.cause(text).await;
            let arrived = soon_within(SOON / 10, || {
                if self.source.has_payload() {
                    app.has(text) > 0
                } else {
                    app.count() > known
                }
            });
            if arrived.await {
                return Ok(());
            }
        }
        Err(format!("{text} does not arrive"))
    }
}

async fn soon_within(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(limit, waiting).await.is_ok()
}

/// Runs all rules for input bindings. Nothing else may consume the events of `source`.
///
/// # Panics
/// If a rule is broken.
pub async fn input_binding(binding: &Arc<dyn InputBinding>, source: &dyn Source) {
    let mut findings = Findings::new("input binding");
    let subject = &Subject {
        binding,
        source,
        run: unique(),
    };
    findings.note("events arrive", arrive(subject).await);
    findings.note("refused events are redelivered", again(subject).await);
    findings.note("draining waits for the app", drained(subject).await);
    findings.note("nothing comes after draining", quiet(subject).await);
    findings.note("a slow app delays no other event", beside(subject).await);
    findings.note("the system answers", binding.ping().await.step("ping"));
    findings.note("closing ends reading", ended(subject).await);
    findings.finish();
}

async fn arrive(subject: &Subject<'_>) -> Outcome {
    let reading = Reading::start(subject.binding);
    for name in ["first", "second"] {
        subject.delivered(&reading.app, &subject.text(name)).await?;
    }
    reading.end().await?;
    // Reads again, as after an unhealthy app.
    let reading = Reading::start(subject.binding);
    subject.delivered(&reading.app, &subject.text("third")).await?;
    reading.end().await
}

async fn again(subject: &Subject<'_>) -> Outcome {
    if !subject.source.repeats() {
        return Ok(());
    }
    let reading = Reading::start(subject.binding);
    subject.delivered(&reading.app, &subject.text("warm")).await?;
    let app = &reading.app;
    let text = subject.text("again");
    app.refuse(&text);
    subject.source.cause(&text).await;
    let repeated = soon_within(SOON, || app.has(&text) >= 2).await;
    ensure!(repeated, "{text} came {} times", app.has(&text));
    reading.end().await
}

async fn drained(subject: &Subject<'_>) -> Outcome {
    let reading = Reading::start(subject.binding);
    let app = reading.app.clone();
    app.hold(true);
    subject.delivered(&app, &subject.text("held")).await?;
    drop(reading.drain);
    let mut task = reading.task;
    let early = timeout(A_WHILE, &mut task).await;
    ensure!(early.is_err(), "reading ended before the app did: {early:?}");
    let held = app.count();
    app.hold(false);
    timeout(SOON, task)
        .await
        .step("reading ends")?
        .step("task")?
        .step("reading")?;
    let finished = app.finished.load(Ordering::SeqCst);
    ensure!(finished == held, "{finished} of {held} events were finished");
    Ok(())
}

async fn quiet(subject: &Subject<'_>) -> Outcome {
    let reading = Reading::start(subject.binding);
    let app = reading.app.clone();
    subject.delivered(&app, &subject.text("quiet")).await?;
    reading.end().await?;
    let known = app.count();
    subject.source.cause(&subject.text("late")).await;
    sleep(A_WHILE).await;
    let count = app.count();
    ensure!(count == known, "{} events came after draining", count - known);
    Ok(())
}

async fn beside(subject: &Subject<'_>) -> Outcome {
    let reading = Reading::start(subject.binding);
    reading.app.hold(true);
    subject.delivered(&reading.app, &subject.text("slow")).await?;
    let delivered = subject.delivered(&reading.app, &subject.text("quick")).await;
    reading.app.hold(false);
    delivered?;
    reading.end().await
}

async fn ended(subject: &Subject<'_>) -> Outcome {
    let reading = Reading::start(subject.binding);
    subject.delivered(&reading.app, &subject.text("last")).await?;
    timeout(SOON, subject.binding.close()).await.step("close")?;
    // Reading may end successfully or with the error `Closed`.
    let ended = timeout(SOON, reading.task).await.step("reading ends")?;
    ended.step("task").map(drop)?;
    let after = subject.binding.read(reading.app, CancellationToken::new());
    match timeout(SOON, after).await.step("reading after closing")? {
        Err(error) if error.kind() == Kind::Closed => Ok(()),
        other => Err(format!("reading after closing: {other:?}")),
    }
}

/// Runs the rules for a temporary outage of the system.
///
/// # Panics
/// If a rule is broken.
pub async fn input_binding_outlives(
    binding: &Arc<dyn InputBinding>,
    source: &dyn Source,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("input binding without its system");
    let subject = &Subject {
        binding,
        source,
        run: unique(),
    };
    let reading = Reading::start(binding);
    let before = subject.delivered(&reading.app, &subject.text("before")).await;
    findings.note("events arrive", before);
    link.cut();
    sleep(A_WHILE).await;
    findings.note(
        "reading goes on",
        if reading.task.is_finished() {
            Err("it ended with the system".to_owned())
        } else {
            Ok(())
        },
    );
    link.restore();
    let after = subject.delivered(&reading.app, &subject.text("after")).await;
    findings.note("events arrive again", after);
    findings.note("reading ends", reading.end().await);
    findings.finish();
}
