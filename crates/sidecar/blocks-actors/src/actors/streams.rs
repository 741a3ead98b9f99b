//! Apps that receive the calls of their actors over a stream that they open, in place of a port.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use outrigger_accept::LogThrottle;
use outrigger_actors::settings::{Given, GivenType, Settings, SettingsError, TypeSettings};
use outrigger_runtime::call::{AppStatus, Reply};
use outrigger_wire::internals::v1::Reminder;
use outrigger_wire::runtime::v1::subscribe_actor_events_request_alpha1::RequestType as Said;
use outrigger_wire::runtime::v1::subscribe_actor_events_response_alpha1::ResponseType as Asked;
use outrigger_wire::runtime::v1::{
    ActorReentrancyConfig, SubscribeActorEventsRequestAlpha1, SubscribeActorEventsRequestFailedAlpha1,
    SubscribeActorEventsRequestInitialAlpha1, SubscribeActorEventsRequestInvokeResponseAlpha1,
    SubscribeActorEventsResponseAlpha1, SubscribeActorEventsResponseDeactivateRequestAlpha1,
    SubscribeActorEventsResponseInvokeRequestAlpha1, SubscribeActorEventsResponseReminderRequestAlpha1,
    SubscribeActorEventsResponseTimerRequestAlpha1,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;

use super::call::Message;
use super::host::{HostedType, Types};
use super::remote::{cancelled, empty, request};
use super::{ActorCall, ActorError, Actors, LOG, internal};

/// Requests queued for an app; further callers wait.
const MAX_QUEUED: usize = 128;
/// Marks the reply of an actor that failed.
const ERROR_RESPONSE: HeaderName = HeaderName::from_static("x-daprerrorresponseheader");

/// The open streams of the app.
#[derive(Default)]
pub(super) struct AppStreams {
    /// Oldest first. Changed together with the hosted types.
    open: ArcSwap<Vec<Arc<AppStream>>>,
    /// Ends of actors whose types no stream lists any longer.
    pub(super) tasks: TaskTracker,
}

/// A stream of the app.
struct AppStream {
    settings: Settings,
    requests: mpsc::Sender<SubscribeActorEventsResponseAlpha1>,
    /// Id of the last request.
    last: AtomicU64,
    /// Requests without an answer, by id.
    pending: Mutex<HashMap<u64, oneshot::Sender<Said>>>,
    warning: Mutex<LogThrottle>,
    ended: CancellationToken,
}

/// The sidecar's end of a stream; dropping it unregisters its actor types.
pub struct HostStream {
    actors: Arc<Actors>,
    stream: Arc<AppStream>,
}

/// A request whose answer is awaited, until dropped.
struct Pending<'a>(&'a AppStream, u64);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.pending().remove(&self.1);
    }
}

impl AppStreams {
    /// The newest stream that lists a type.
    fn of(&self, kind: &str) -> Result<Arc<AppStream>, ActorError> {
        let open = self.open.load();
        let mut newest = open.iter().rev();
        let found = newest.find(|stream| stream.settings.types.contains_key(kind));
        let found = found.cloned();
        found.ok_or_else(|| ActorError::Invoke("actor host is not connected".to_owned()))
    }

    /// The types of all streams, with the settings of the newest.
    fn types(&self) -> HashMap<String, TypeSettings> {
        let open = self.open.load();
        let all = open.iter().flat_map(|stream| &stream.settings.types);
        all.map(|(kind, settings)| (kind.clone(), *settings)).collect()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<AppStream>>)) {
        let mut open = self.open.load().to_vec();
        change(&mut open);
        self.open.store(Arc::new(open));
    }
}

impl AppStream {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Said>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer.
    async fn ask(&self, request: impl FnOnce(String) -> Asked) -> Result<Said, ActorError> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        self.pending().insert(id, answer);
        let _pending = Pending(self, id);
        let message = SubscribeActorEventsResponseAlpha1 {
            response_type: Some(request(id.to_string())),
        };
        let said = async {
            self.requests.send(message).await.ok()?;
            answered.await.ok()
        };
        let said = tokio::select! {
            biased;
            said = said => said,
            () = self.ended.cancelled() => None,
        };
        said.ok_or_else(|| ActorError::Invoke("actor host disconnected before responding".to_owned()))
    }

    /// Passes an answer to the call that waits for it.
    fn answered(&self, said: Option<Said>) {
        let id = match &said {
            Some(Said::InvokeResponse(answer)) => answer.id.as_str(),
            Some(Said::ReminderResponse(answer) | Said::TimerResponse(answer)) => &answer.id,
            Some(Said::DeactivateResponse(answer)) => &answer.id,
            Some(Said::RequestFailed(answer)) => &answer.id,
            Some(Said::InitialRequest(_)) | None => "",
        };
        let waiting = id.parse().ok().and_then(|id: u64| self.pending().remove(&id));
        let Some(waiting) = waiting else {
            let mut warning = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(times) = warning.happened() {
                tracing::warn!(
                    target: LOG,
                    "dropped {times} messages of the actor stream: no call awaits the id {id:?}"
                );
            }
            return;
        };
        if let Some(said) = said {
            // A caller that gave up needs no answer.
            let _gone = waiting.send(said);
        }
    }
}

impl HostStream {
    /// Handles a message of the app.
    pub fn answered(&self, message: SubscribeActorEventsRequestAlpha1) {
        self.stream.answered(message.request_type);
    }

    /// Completes when the sidecar needs the stream no longer.
    pub async fn ended(&self) {
        self.actors.ended.cancelled().await;
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        let actors = &self.actors;
        let going = actors.change_types(|known| {
            actors.streams.change(|open| {
                open.retain(|stream| !Arc::ptr_eq(stream, &self.stream));
            });
            actors.restream(known)
        });
        self.stream.ended.cancel();
        if !going.is_empty() {
            tracing::info!(target: LOG, "Unregistering hosted actors: their stream has ended");
            let actors = Arc::clone(&self.actors);
            self.actors
                .streams
                .tasks
                .spawn(async move { actors.end_types(going).await });
        }
    }
}

impl Actors {
    /// Whether the app may open actor streams; other apps are called at their port.
    pub fn has_streams(&self) -> bool {
        self.with.app.as_ref().is_none_or(|app| app.is_grpc())
    }

    /// Completes when the sidecar has ended its actors.
    pub async fn until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Opens a stream of the app and hosts its actor types. Returns the requests for the app.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn open_app_stream(
        self: &Arc<Self>,
        initial: SubscribeActorEventsRequestInitialAlpha1,
    ) -> Result<(HostStream, mpsc::Receiver<SubscribeActorEventsResponseAlpha1>), SettingsError> {
        let mut settings = Settings::new(given(initial)?, self.with.disseminate_timeout)?;
        self.announce_settings(&mut settings);
        let (requests, queued) = mpsc::channel(MAX_QUEUED);
        let stream = Arc::new(AppStream {
            settings,
            requests,
            last: AtomicU64::new(0),
            pending: Mutex::default(),
            warning: Mutex::default(),
            ended: CancellationToken::new(),
        });
        self.change_types(|known| {
            self.streams.change(|open| open.push(Arc::clone(&stream)));
            // A type that is listed already stays.
            let _none = self.restream(known);
        });
        self.app_known.send_replace(true);
        let actors = Arc::clone(self);
        Ok((HostStream { actors, stream }, queued))
    }

    /// Adjusts the hosted types to the open streams, and returns the types that end. A type that still ends is
    /// hosted again afterwards.
    pub(super) fn restream(&self, known: &mut Types) -> Vec<Arc<HostedType>> {
        let mut wanted = self.streams.types();
        if known.is_unhealthy {
            wanted.clear();
        }
        if let Some(newest) = self.streams.open.load().last() {
            known.drain = newest.settings.drain;
        }
        let before = std::mem::take(&mut known.streamed).into_iter();
        let (mut stay, going): (Vec<_>, Vec<_>) = before.partition(|kind| wanted.contains_key(&*kind.name));
        for kind in stay.iter().chain(&known.going) {
            wanted.remove(&*kind.name);
        }
        stay.extend(
            wanted
                .iter()
                .map(|(name, settings)| Arc::new(self.hosted_type(name, *settings))),
        );
        known.streamed = stay;
        known.retire(&going);
        going
    }

    /// Calls an actor in the app over a stream.
    pub(super) async fn call_stream(
        &self,
        message: &Message<'_>,
        reentry: Option<&str>,
    ) -> Result<Reply, ActorError> {
        let stream = self.streams.of(message.kind())?;
        message.begins();
        match message {
            Message::Call(call) => match stream.ask(|id| invocation(id, call, reentry)).await? {
                Said::InvokeResponse(answer) => Ok(reply(answer)),
                Said::RequestFailed(failed) if failed.code == Code::NotFound as u32 => {
                    Err(ActorError::NoMethod(call.method.clone()))
                }
                other => Err(unexpected("invoke", other)),
            },
            Message::Due(reminder, ..) if reminder.is_timer => {
                match stream.ask(|id| due_timer(id, reminder)).await? {
                    Said::TimerResponse(answer) => Ok(ended(answer.cancel)),
                    other => Err(unexpected("timer", other)),
                }
            }
            Message::Due(reminder, ..) => match stream.ask(|id| due_reminder(id, reminder)).await? {
                Said::ReminderResponse(answer) => Ok(ended(answer.cancel)),
                other => Err(unexpected("reminder", other)),
            },
        }
    }

    /// Deactivates an actor in the app over a stream.
    pub(super) async fn deactivate_over_stream(&self, kind: &str, id: &str) -> Result<(), ActorError> {
        let stream = self.streams.of(kind)?;
        let request = |request| {
            Asked::DeactivateRequest(SubscribeActorEventsResponseDeactivateRequestAlpha1 {
                id: request,
                actor_type: kind.to_owned(),
                actor_id: id.to_owned(),
            })
        };
        match stream.ask(request).await? {
            Said::DeactivateResponse(_) => Ok(()),
            other => Err(unexpected("deactivate", other)),
        }
    }

    /// Logs warnings about settings and the types, and removes reserved types.
    pub(super) fn announce_settings(&self, settings: &mut Settings) {
        for warning in &settings.warnings {
            tracing::warn!(target: LOG, "{warning}");
        }
        let mut names: Vec<_> = settings.types.keys().collect();
        names.sort_unstable();
        if !names.is_empty() {
            tracing::info!(target: LOG, "Registering hosted actors: {names:?}");
        }
        settings.types.retain(|name, _| {
            let reserved = internal::is_reserved(name);
            if reserved {
                tracing::warn!(
                    target: LOG,
                    "ignoring actor type {name} of the app: the name is reserved"
                );
            }
            !reserved
        });
    }
}

fn given(initial: SubscribeActorEventsRequestInitialAlpha1) -> Result<Given, SettingsError> {
    let entries = initial.entities_config.into_iter().map(|entry| {
        let common = given_type(
            entry.actor_idle_timeout,
            entry.drain_ongoing_call_timeout,
            entry.reentrancy,
        );
        Ok::<_, SettingsError>((entry.entities, common?))
    });
    Ok(Given {
        entities: initial.entities,
        common: given_type(
            initial.actor_idle_timeout,
            initial.drain_ongoing_call_timeout,
            initial.reentrancy,
        )?,
        drain_rebalanced: initial.drain_rebalanced_actors,
        entries: entries.collect::<Result<_, _>>()?,
    })
}

fn given_type(
    idle: Option<prost_types::Duration>,
    drain: Option<prost_types::Duration>,
    reentrancy: Option<ActorReentrancyConfig>,
) -> Result<GivenType, SettingsError> {
    let time = |given: Option<prost_types::Duration>, name| {
        let time = given.map(|given| {
            Duration::try_from(given).map_err(|_| SettingsError::Duration {
                name,
                text: format!("{}.{:09}s", given.seconds, given.nanos),
            })
        });
        time.transpose()
    };
    let reentrancy = reentrancy.filter(|reentrancy| reentrancy.enabled);
    Ok(GivenType {
        idle: time(idle, "actor_idle_timeout")?,
        drain: time(drain, "drain_ongoing_call_timeout")?,
        reentrancy: reentrancy.map(|reentrancy| reentrancy.max_stack_depth.map(i64::from)),
    })
}

fn invocation(id: String, call: &ActorCall, reentry: Option<&str>) -> Asked {
    let mut message = request(call);
    let metadata = message.metadata.drain();
    let metadata = metadata.filter_map(|(name, values)| Some((name, values.values.into_iter().next()?)));
    let mut metadata: HashMap<_, _> = metadata.collect();
    if let Some(reentry) = reentry {
        metadata.insert("Dapr-Reentrancy-Id".to_owned(), reentry.to_owned());
    }
    Asked::InvokeRequest(SubscribeActorEventsResponseInvokeRequestAlpha1 {
        id,
        actor_type: call.kind.clone(),
        actor_id: call.id.clone(),
        method: call.method.clone(),
        data: call.body.clone(),
        metadata,
    })
}

fn due_reminder(id: String, reminder: &Reminder) -> Asked {
    Asked::ReminderRequest(SubscribeActorEventsResponseReminderRequestAlpha1 {
        id,
        actor_type: reminder.actor_type.clone(),
        actor_id: reminder.actor_id.clone(),
        name: reminder.name.clone(),
        due_time: reminder.due_time.clone(),
        period: reminder.period.clone(),
        data: reminder.data.clone(),
    })
}

fn due_timer(id: String, reminder: &Reminder) -> Asked {
    Asked::TimerRequest(SubscribeActorEventsResponseTimerRequestAlpha1 {
        id,
        actor_type: reminder.actor_type.clone(),
        actor_id: reminder.actor_id.clone(),
        name: reminder.name.clone(),
        due_time: reminder.due_time.clone(),
        period: reminder.period.clone(),
        callback: reminder.callback.clone(),
        data: reminder.data.clone(),
    })
}

fn reply(answer: SubscribeActorEventsRequestInvokeResponseAlpha1) -> Reply {
    let mut reply = Reply::new(AppStatus::Http(200), answer.data.into());
    for (name, value) in answer.metadata {
        let name = HeaderName::try_from(name);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            reply.headers.insert(name, value);
        }
    }
    reply.content_type = reply.headers.remove(CONTENT_TYPE);
    if answer.error {
        reply
            .headers
            .insert(ERROR_RESPONSE, HeaderValue::from_static("true"));
    }
    reply
}

/// The reply of a timer or reminder.
fn ended(is_cancelled: bool) -> Reply {
    match is_cancelled {
        true => cancelled(),
        false => empty(),
    }
}

/// The error for a failure, or for an answer of another kind than `what`.
fn unexpected(what: &str, said: Said) -> ActorError {
    ActorError::Invoke(match said {
        Said::RequestFailed(SubscribeActorEventsRequestFailedAlpha1 { message, .. }) => {
            format!("error from actor service: {message}")
        }
        _ => format!("actor host returned an unexpected response type for {what}"),
    })
}

#[cfg(test)]
mod tests;
