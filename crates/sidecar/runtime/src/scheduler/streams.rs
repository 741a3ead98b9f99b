//! Trigger streams: open to every scheduler while there is a receiver.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt, unfold};
use outrigger_accept::{LogThrottle, budget};
use outrigger_backoff::Backoff;
use outrigger_wire::scheduler::v1::job_target_metadata::Type;
use outrigger_wire::scheduler::v1::watch_jobs_request::WatchJobRequestType as Message;
use outrigger_wire::scheduler::v1::{
    JobTargetType, WatchJobsRequest, WatchJobsRequestInitial, WatchJobsRequestResult, WatchJobsResponse,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::hosts::Host;
use super::{Accepts, DeliveryStarted, LOG, Outcome, Receiver, Scheduler, Trigger};

/// Backoff before a stream is reopened.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// A stream open for at least this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Triggers of one stream in flight; others wait in transit.
const MAX_TRIGGERS: usize = 1024;
/// Triggers that outlived their streams. At this limit no stream accepts others.
const MAX_DETACHED: usize = 4096;
/// Prefix of actor types that sidecars implement, such as those of workflows.
const INTERNAL_TYPES: &str = "dapr.internal.";
/// Time for the triggers of a replaced stream to be acknowledged. Longer ones continue, but their results are
/// lost and the scheduler redelivers them.
const HANDOVER: Duration = Duration::from_secs(60);
/// Timeout for the scheduler to end a stream after its last acknowledgement.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps streams to all hosts while triggers are accepted, until shutdown.
pub(super) async fn keep(scheduler: Arc<Scheduler>) {
    let (mut hosts, mut accepts) = (scheduler.hosts.subscribe(), scheduler.accepts.subscribe());
    let mut open: Vec<(Arc<Host>, CancellationToken)> = Vec::new();
    let mut taken = Arc::new(Accepts::default());
    loop {
        let wanted = accepts.borrow_and_update().clone();
        if wanted != *taken {
            open.drain(..).for_each(|(_, stop)| stop.cancel());
            taken = Arc::new(wanted);
        }
        let known = hosts.borrow_and_update().clone().unwrap_or_default();
        open.retain(|(host, stop)| {
            let stays = known.iter().any(|known| Arc::ptr_eq(known, host));
            if !stays {
                stop.cancel();
            }
            stays
        });
        for host in known.iter().filter(|_| !taken.is_nothing()) {
            if open.iter().any(|(open, _)| Arc::ptr_eq(open, host)) {
                continue;
            }
            let stop = CancellationToken::new();
            for _ in 0..scheduler.settings.streams {
                let stream = Stream {
                    scheduler: Arc::clone(&scheduler),
                    host: Arc::clone(host),
                    accepts: Arc::clone(&taken),
                    stop: stop.clone(),
                };
                scheduler.tasks.spawn(stream.live());
            }
            open.push((Arc::clone(host), stop));
        }
        tokio::select! {
            () = scheduler.ending.cancelled() => {
                open.drain(..).for_each(|(_, stop)| stop.cancel());
                return;
            }
            // We hold the senders, so the channel stays open.
            _ = hosts.changed() => {}
            _ = accepts.changed() => {}
        }
    }
}

/// The triggers that a stream accepts from the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intake {
    /// All triggers.
    All,
    /// The stream was replaced, but the scheduler still sends on it. Late triggers are accepted while this
    /// many earlier ones are unfinished, so that they do not wait for those.
    Late { unfinished: usize },
    /// Nothing: further triggers go to another sidecar or are redelivered.
    Nothing,
}

/// Triggers in flight.
type Running = FuturesUnordered<Handling>;

/// A trigger in flight; yields its outcome, and whether it was late.
struct Handling {
    /// Identifies the trigger across redeliveries.
    key: String,
    /// Whether the app may have received it.
    begun: DeliveryStarted,
    handled: BoxFuture<'static, (Outcome, bool)>,
}

impl Future for Handling {
    type Output = (Outcome, bool);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.handled.as_mut().poll(context)
    }
}

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The sidecar ended it after acknowledging everything.
    Here,
    /// It broke, the scheduler ended it, or its time was up: triggers in flight cannot be acknowledged.
    There,
}

/// One stream to one scheduler, reopened whenever it ends.
struct Stream {
    scheduler: Arc<Scheduler>,
    host: Arc<Host>,
    accepts: Arc<Accepts>,
    /// Ends the stream.
    stop: CancellationToken,
}

impl Stream {
    async fn live(self) {
        let mut pauses = PAUSES;
        while !self.stop.is_cancelled() {
            let opened = Instant::now();
            let ended = self.take_triggers().await;
            if self.stop.is_cancelled() {
                return;
            }
            if opened.elapsed() > STABLE_AFTER {
                pauses.reset();
            }
            let pause = pauses.pause();
            let cause = ended.err().map_or_else(
                || "it ended".to_owned(),
                |status| super::calls::described(&status),
            );
            let address = self.host.address();
            tracing::warn!(
                target: LOG,
                "lost the stream of jobs from scheduler {address}: {cause}; reconnecting in {pause:?}"
            );
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Opens the stream and handles its triggers until it ends. Triggers that the app has started then
    /// continue: cancelling them would not stop the app, and redelivered triggers would run concurrently with
    /// it.
    async fn take_triggers(&self) -> Result<(), Status> {
        let (answers, messages) = mpsc::channel(1);
        let outgoing = unfold((Some(self.first()), messages), async |(first, mut messages)| {
            let message = match first {
                Some(first) => first,
                None => messages.recv().await?,
            };
            Some((message, (None, messages)))
        });
        let mut client = self.host.client();
        // Some schedulers send response headers only with the first trigger, which may take days.
        let mut triggers = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            opened = client.watch_jobs(outgoing) => opened?.into_inner(),
        };
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        let mut running = Running::new();
        let ended = self.handle_all(&mut triggers, answers, &over, &mut running).await;
        self.detach(running);
        if ended? == Ended::Here {
            drain_stream(triggers).await;
        }
        Ok(())
    }

    /// Handles the triggers of the stream. `over`: acknowledgements are no longer sent.
    async fn handle_all(
        &self,
        triggers: &mut Streaming<WatchJobsResponse>,
        answers: mpsc::Sender<WatchJobsRequest>,
        over: &CancellationToken,
        running: &mut Running,
    ) -> Result<Ended, Status> {
        let mut reads = Intake::All;
        let mut detached = self.scheduler.detached.subscribe();
        let mut given_up = std::pin::pin!(self.handed_over());
        let (payloads, mut full) = (&self.scheduler.payloads, LogThrottle::default());
        loop {
            if let Intake::Late { unfinished: 0 } = reads {
                reads = Intake::Nothing;
            }
            if reads == Intake::Nothing && running.is_empty() {
                return Ok(Ended::Here);
            }
            let has_room = running.len() < MAX_TRIGGERS && detached.borrow_and_update().len() < MAX_DETACHED;
            let has_memory = payloads.has_room();
            if !has_memory && let Some(times) = full.happened() {
                tracing::warn!(
                    target: LOG,
                    "jobs and reminders wait at scheduler {} ({times} times since the last such line): unfinished ones have \
                     reached the limit of {} payload bytes; make the app respond faster, or raise {}",
                    self.host.address(), payloads.most(), budget::VARIABLE
                );
            }
            tokio::select! {
                () = self.stop.cancelled(), if reads == Intake::All => {
                    reads = Intake::Late { unfinished: running.len() };
                }
                () = self.scheduler.ending.cancelled(), if reads != Intake::Nothing => reads = Intake::Nothing,
                Some((outcome, is_late)) = running.next(), if !running.is_empty() => match &mut reads {
                    _ if outcome == Outcome::Undelivered => reads = Intake::Nothing,
                    Intake::Late { unfinished } if !is_late => *unfinished -= 1,
                    _ => {}
                },
                next = triggers.message(), if reads != Intake::Nothing && has_room && has_memory => {
                    let Some(trigger) = next? else { return Ok(Ended::There) };
                    let is_late = reads != Intake::All;
                    if !is_late || self.accepts_late(&trigger) {
                        running.push(self.answer(trigger, is_late, answers.clone(), over.clone()));
                    }
                }
                // We hold the sender, so the channel stays open.
                _ = detached.changed(), if !has_room => {}
                () = payloads.room(), if !has_memory => {}
                () = &mut given_up => return Ok(Ended::There),
            }
        }
    }

    /// Lets triggers that the app has started continue without their stream. Queued ones are cancelled,
    /// because they are redelivered. A redelivered trigger that is already detached is not detached twice, so
    /// that long ones do not pile up with every reconnect.
    fn detach(&self, running: Running) {
        let mut count = 0;
        for Handling { key, begun, handled } in running {
            let detached = &self.scheduler.detached;
            if !begun.is_set() || !detached.send_if_modified(|left| left.insert(key.clone())) {
                continue;
            }
            count += 1;
            let scheduler = Arc::clone(&self.scheduler);
            self.scheduler.tasks.spawn(async move {
                handled.await;
                scheduler.detached.send_if_modified(|left| left.remove(&key));
            });
        }
        if count > 0 {
            tracing::info!(
                target: LOG,
                "{count} triggers continue after their stream to scheduler {} ended; the scheduler does not get their \
                 results and redelivers them",
                self.host.address()
            );
        }
    }

    /// Whether a trigger on a replaced stream is handled: reminders always, because they are routed to their
    /// actors, and jobs while the app accepts any. Others are redelivered when the stream ends.
    fn accepts_late(&self, trigger: &WatchJobsResponse) -> bool {
        match target(trigger) {
            Some(Type::Actor(_)) => true,
            Some(Type::Job(_)) => self.scheduler.accepts.borrow().jobs,
            None => false,
        }
    }

    /// Completes when a replaced stream's time is up. At shutdown the grace period applies instead.
    async fn handed_over(&self) {
        self.stop.cancelled().await;
        if self.scheduler.ending.is_cancelled() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = sleep(HANDOVER) => {}
            () = self.scheduler.ending.cancelled() => std::future::pending().await,
        }
    }

    /// The first message to the scheduler: our identity and the accepted types.
    fn first(&self) -> WatchJobsRequest {
        let Accepts { jobs, actor_types } = &*self.accepts;
        let mut kinds = Vec::new();
        if *jobs {
            kinds.push(JobTargetType::Job.into());
        }
        if !actor_types.is_empty() {
            kinds.push(JobTargetType::ActorReminder.into());
        }
        message(Message::Initial(WatchJobsRequestInitial {
            app_id: self.scheduler.app_id().to_owned(),
            namespace: self.scheduler.namespace().to_owned(),
            actor_types: actor_types.clone(),
            accept_job_types: kinds,
            concurrency_limits: self.scheduler.settings.limits.clone(),
        }))
    }

    /// Handles and acknowledges a trigger. A late one that fails is not acknowledged: this may be the wrong
    /// sidecar, and the trigger is redelivered when the stream ends.
    fn answer(
        &self,
        trigger: WatchJobsResponse,
        is_late: bool,
        answers: mpsc::Sender<WatchJobsRequest>,
        over: CancellationToken,
    ) -> Handling {
        let key = key(&trigger);
        let scheduler = Arc::clone(&self.scheduler);
        let begun = DeliveryStarted::default();
        let begins = begun.clone();
        // The payload is in memory twice: as received and as sent to the app. Payloads of workflows and
        // activities are counted by the worker queue.
        let data = trigger.data.as_ref().filter(|_| !is_internal(&trigger));
        let bytes = data.map_or(0, |data| 2 * data.value.len());
        let held = self.scheduler.payloads.hold(bytes);
        let handled = Box::pin(async move {
            let _held = held;
            let id = trigger.id;
            let outcome = handle(&scheduler, trigger, begins).await;
            let status = outcome
                .status()
                .filter(|_| !is_late || outcome == Outcome::Success);
            if let Some(status) = status {
                let result = WatchJobsRequestResult {
                    id,
                    status: status.into(),
                };
                // The reader notices that a stream has ended.
                let sent = answers.send(message(Message::Result(result)));
                let _ended = over.run_until_cancelled(sent).await;
            }
            (outcome, is_late)
        });
        Handling { key, begun, handled }
    }
}

fn target(trigger: &WatchJobsResponse) -> Option<&Type> {
    trigger.metadata.as_ref()?.target.as_ref()?.r#type.as_ref()
}

/// Whether it is for an actor type that sidecars implement.
fn is_internal(trigger: &WatchJobsResponse) -> bool {
    matches!(target(trigger), Some(Type::Actor(actor)) if actor.r#type.starts_with(INTERNAL_TYPES))
}

fn key(trigger: &WatchJobsResponse) -> String {
    let name = &trigger.name;
    match target(trigger) {
        // In the format that schedulers use for reminder names.
        Some(Type::Actor(actor)) => format!("{}||{}||{name}", actor.r#type, actor.id),
        _ => name.clone(),
    }
}

async fn handle(scheduler: &Scheduler, trigger: WatchJobsResponse, begun: DeliveryStarted) -> Outcome {
    let WatchJobsResponse {
        name, data, metadata, ..
    } = trigger;
    let metadata = metadata.unwrap_or_default();
    let target = metadata.target.and_then(|target| target.r#type);
    let (receiver, actor) = match target {
        Some(Type::Job(_)) => (&scheduler.jobs, None),
        Some(Type::Actor(actor)) => (&scheduler.reminders, Some(actor)),
        None => {
            tracing::error!(
                target: LOG,
                "{name} not delivered: the scheduler did not set its type, job or reminder"
            );
            return Outcome::Failed;
        }
    };
    let receiver: Option<&Arc<dyn Receiver>> = receiver.get();
    match receiver {
        Some(receiver) => {
            let trigger = Trigger {
                name,
                data,
                creator: metadata.app_id,
                actor,
                begun,
            };
            receiver.receive(trigger).await
        }
        None => {
            tracing::error!(target: LOG, "{name} not delivered: this sidecar has no handler for it");
            Outcome::Failed
        }
    }
}

/// Waits until the scheduler has received the last acknowledgements, after which it ends the stream.
async fn drain_stream(mut triggers: Streaming<WatchJobsResponse>) {
    let ended = async { while let Ok(Some(_)) = triggers.message().await {} };
    // On a timeout they may be lost, and the triggers are redelivered.
    let _late = timeout(DRAIN_TIMEOUT, ended).await;
}

fn message(message: Message) -> WatchJobsRequest {
    WatchJobsRequest {
        watch_job_request_type: Some(message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use outrigger_accept::budget::Payloads;
    use outrigger_transport::grpc;
    use outrigger_wire::scheduler::v1::{JobMetadata, JobTargetMetadata, TargetActorReminder, TargetJob};
    use prost_types::Any;
    use tokio::sync::Semaphore;
    use tonic::codec::Codec;

    use super::super::Settings;
    use super::*;

    /// An app that responds as often as it is permitted to.
    struct Slow {
        begun: AtomicUsize,
        answers: Semaphore,
    }

    impl Receiver for Slow {
        fn receive(&self, _: Trigger) -> BoxFuture<'_, Outcome> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                self.answers.acquire().await.unwrap().forget();
                Outcome::Success
            })
        }
    }

    fn trigger(id: u64, bytes: usize, target: Type) -> WatchJobsResponse {
        WatchJobsResponse {
            name: format!("job-{id}"),
            id,
            data: Some(Any {
                value: vec![7; bytes],
                ..Any::default()
            }),
            metadata: Some(JobMetadata {
                target: Some(JobTargetMetadata { r#type: Some(target) }),
                ..JobMetadata::default()
            }),
        }
    }

    /// Sends triggers to an app with a limit of 100 payload bytes. Each step is the number of responses that
    /// the app sends and the expected number of triggers that it has started.
    async fn come(triggers: Vec<WatchJobsResponse>, steps: &[(usize, usize)]) {
        let settings = Settings {
            app_id: "app".into(),
            namespace: "ns".into(),
            addresses: Vec::new(),
            streams: 1,
            identity: None,
            max_message: 0,
            limits: Vec::new(),
        };
        let host = Arc::new(Host::new("127.0.0.1:1", &settings));
        let app = Arc::new(Slow {
            begun: AtomicUsize::new(0),
            answers: Semaphore::new(0),
        });
        let scheduler = Scheduler::within(settings, Payloads::up_to(100));
        scheduler.deliver_jobs_to(Arc::clone(&app) as Arc<dyn Receiver>);
        scheduler.deliver_reminders_to(Arc::clone(&app) as Arc<dyn Receiver>);
        let stream = Stream {
            scheduler: Arc::clone(&scheduler),
            host,
            accepts: Arc::default(),
            stop: CancellationToken::new(),
        };
        let frames = triggers.iter().map(grpc::frame);
        let frames: Vec<_> = frames.map(|frame| Ok::<_, Status>(Frame::data(frame))).collect();
        let body = StreamBody::new(stream::iter(frames).chain(stream::pending()));
        let mut codec = tonic_prost::ProstCodec::<WatchJobsRequest, WatchJobsResponse>::default();
        let mut triggers = Streaming::new_response(codec.decoder(), body, http::StatusCode::OK, None, None);
        let (answers, mut answered) = mpsc::channel(16);
        let (over, mut running) = (CancellationToken::new(), Running::new());
        let handling = stream.handle_all(&mut triggers, answers, &over, &mut running);
        let looking = async {
            for &(more, begun) in steps {
                app.answers.add_permits(more);
                for _ in 0..more {
                    answered.recv().await.unwrap();
                }
                sleep(Duration::from_secs(1)).await;
                assert_eq!(app.begun.load(Ordering::SeqCst), begun);
            }
        };
        tokio::select! {
            ended = handling => panic!("{:?}", ended.is_ok()),
            () = looking => {}
        }
    }

    /// Invariant: once unacknowledged triggers reach the payload limit, further ones wait in the scheduler.
    #[tokio::test(start_paused = true)]
    async fn triggers_wait_for_payload_room() {
        let triggers = (0..10).map(|id| trigger(id, 20, Type::Job(TargetJob {})));
        come(triggers.collect(), &[(0, 3), (1, 4), (2, 6), (4, 10)]).await;
    }

    /// Invariant: activities in workers do not keep other triggers in the scheduler, however many and however
    /// long they are.
    #[tokio::test(start_paused = true)]
    async fn jobs_do_not_wait_for_activities() {
        let activity = TargetActorReminder {
            r#type: format!("{INTERNAL_TYPES}ns.app.activity"),
            id: "a::0::1".to_owned(),
        };
        let activities = (0..10).map(|id| trigger(id, 20, Type::Actor(activity.clone())));
        let jobs = (10..20).map(|id| trigger(id, 20, Type::Job(TargetJob {})));
        come(activities.chain(jobs).collect(), &[(0, 13)]).await;
    }
}
