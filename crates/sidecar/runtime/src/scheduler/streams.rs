//! Streams of triggers: open to every scheduler while anything is taken.

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

/// Before a stream is opened again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// A stream that was open for so long was fine.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Triggers of one stream that are handled at once; others wait on the way.
const MAX_TRIGGERS: usize = 1024;
/// Triggers whose streams have ended, and that the app is not done with; from here on no stream brings others.
const MAX_DETACHED: usize = 4096;
/// What the types of actors begin with that sidecars run themselves, such as those of workflows.
const INTERNAL_TYPES: &str = "dapr.internal.";
/// How long triggers of a stream that another takes the place of may take to be answered. Those that take longer go on, but
/// what comes of them is not heard, and they come again.
const HANDOVER: Duration = Duration::from_secs(60);
/// How long the scheduler may take to end a stream after its last answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps the streams that hosts and what is taken ask for, until no more triggers are taken.
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
            // The senders are the scheduler's own.
            _ = hosts.changed() => {}
            _ = accepts.changed() => {}
        }
    }
}

/// What a stream still takes from the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intake {
    /// All that comes.
    All,
    /// Another stream has taken its place, but the scheduler does not know, and goes on to send: while so many triggers that
    /// came before are unfinished, others are not kept waiting for them.
    Late { unfinished: usize },
    /// What comes is for another sidecar, or comes again.
    Nothing,
}

/// Triggers under way.
type Running = FuturesUnordered<Handling>;

/// One of them: what came of it, and whether it was late.
struct Handling {
    /// Whose trigger it is: the same when it comes again.
    key: String,
    /// Whether the app may have it.
    begun: DeliveryStarted,
    handled: BoxFuture<'static, (Outcome, bool)>,
}

impl Future for Handling {
    type Output = (Outcome, bool);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.handled.as_mut().poll(context)
    }
}

/// Who ended a stream, or gave it up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// All was answered here, and nothing else is taken.
    Here,
    /// It broke, the scheduler ended it, or its time was over: what is under way cannot be answered.
    There,
}

/// One stream to one scheduler, opened again whenever it ends.
struct Stream {
    scheduler: Arc<Scheduler>,
    host: Arc<Host>,
    accepts: Arc<Accepts>,
    /// Ends it.
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

    /// Opens the stream, and handles what comes on it until it ends or is to end. What the app has begun then goes on: left in
    /// the middle of it, the app would go on too, and beside it whatever comes next.
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
        // Some schedulers answer with the first trigger: this may take days.
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

    /// Handles what comes on the stream. `over`: nobody takes answers any more.
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
                    "jobs and reminders wait at scheduler {} ({times} times since this was last logged): those that the app has \
                     not answered hold the {} bytes that they may have; make it answer faster, or raise {}",
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
                    if !is_late || self.is_taken_late(&trigger) {
                        running.push(self.answer(trigger, is_late, answers.clone(), over.clone()));
                    }
                }
                // The sender is the scheduler's own.
                _ = detached.changed(), if !has_room => {}
                () = payloads.room(), if !has_memory => {}
                () = &mut given_up => return Ok(Ended::There),
            }
        }
    }

    /// Has what the app has begun go on without its stream, to its end or that of the process. What only waits comes again, and
    /// would be done twice. What goes on so already is not kept twice, or long ones would pile up with every break.
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
                "{count} triggers of a stream of scheduler {} that has ended go on; the scheduler does not hear what comes \
                 of them, and they come again",
                self.host.address()
            );
        }
    }

    /// Whether what arrives on a stream is handled when another has taken its place: reminders are, which go to wherever
    /// their actors are, and jobs while the app takes any. Others come again when the stream ends.
    fn is_taken_late(&self, trigger: &WatchJobsResponse) -> bool {
        match target(trigger) {
            Some(Type::Actor(_)) => true,
            Some(Type::Job(_)) => self.scheduler.accepts.borrow().jobs,
            None => false,
        }
    }

    /// Passes when a stream whose place another takes has had its time. At the end of the process the grace period counts.
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

    /// What the scheduler is told first: who is here, and for what.
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
        }))
    }

    /// Handles a trigger and answers it; what came of it, and whether it was late. A late one that fails is not answered: it
    /// may have come to the wrong sidecar, and comes again when the stream ends.
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
        // As it came, and as the app gets it. The queue of the workers counts what workflows and activities hold.
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
                // A stream that has ended is noticed where it is read.
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

/// Whether it is for an actor that sidecars run themselves.
fn is_internal(trigger: &WatchJobsResponse) -> bool {
    matches!(target(trigger), Some(Type::Actor(actor)) if actor.r#type.starts_with(INTERNAL_TYPES))
}

fn key(trigger: &WatchJobsResponse) -> String {
    let name = &trigger.name;
    match target(trigger) {
        // As the schedulers compose the names of reminders.
        Some(Type::Actor(actor)) => format!("{}||{}||{name}", actor.r#type, actor.id),
        _ => name.clone(),
    }
}

async fn handle(scheduler: &Scheduler, trigger: WatchJobsResponse, begun: DeliveryStarted) -> Outcome {
    let WatchJobsResponse {
        name, data, metadata, ..
    } = trigger;
    let target = metadata.and_then(|metadata| metadata.target?.r#type);
    let (receiver, actor) = match target {
        Some(Type::Job(_)) => (&scheduler.jobs, None),
        Some(Type::Actor(actor)) => (&scheduler.reminders, Some(actor)),
        None => {
            tracing::error!(
                target: LOG,
                "{name} is not delivered: the scheduler does not say whether it is a job or a reminder"
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
                actor,
                begun,
            };
            receiver.receive(trigger).await
        }
        None => {
            tracing::error!(target: LOG, "{name} is due, but this sidecar has no handler for it");
            Outcome::Failed
        }
    }
}

/// Waits until the scheduler has the last answers: it ends the stream then.
async fn drain_stream(mut triggers: Streaming<WatchJobsResponse>) {
    let ended = async { while let Ok(Some(_)) = triggers.message().await {} };
    // Without its end they may be lost, and the triggers come again.
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

    /// An app that answers as often as it may.
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

    /// Has triggers come to an app, within 100 bytes of payloads. Each step is how often the app answers, and how many it has
    /// begun with by then.
    async fn come(triggers: Vec<WatchJobsResponse>, steps: &[(usize, usize)]) {
        let settings = Settings {
            app_id: "app".into(),
            namespace: "ns".into(),
            addresses: Vec::new(),
            streams: 1,
            identity: None,
            max_message: 0,
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

    /// Invariant: what the app has not answered keeps the next triggers in the scheduler once it holds so many bytes.
    #[tokio::test(start_paused = true)]
    async fn triggers_wait_where_payloads_have_no_room() {
        let triggers = (0..10).map(|id| trigger(id, 20, Type::Job(TargetJob {})));
        come(triggers.collect(), &[(0, 3), (1, 4), (2, 6), (4, 10)]).await;
    }

    /// Invariant: activities that workers have, however many and for however long, do not keep other triggers in the scheduler.
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
