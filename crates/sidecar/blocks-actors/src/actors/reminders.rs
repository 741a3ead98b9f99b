//! Reminders, stored by the scheduler, which delivers due ones to a host of their type.

use std::sync::Weak;

use futures::future::BoxFuture;
use outrigger_actors::recurrence::{TimeError, reminder_schedule};
use outrigger_runtime::call::Reply;
use outrigger_runtime::scheduler::{Outcome, Receiver, SchedulerError, Trigger, WITHOUT};
use outrigger_telemetry::trace::Parent;
use outrigger_wire::common::v1::JobFailurePolicy;
use outrigger_wire::internals::v1::Reminder;
use outrigger_wire::scheduler::v1::job_target_metadata::Type;
use outrigger_wire::scheduler::v1::{Job, NamedJob};
use prost_types::Any;
use tonic::Code;

use super::app::{BYTES_VALUE, json};
use super::call::Message;
use super::internal::is_reserved;
use super::remote::empty;
use super::{ActorCall, ActorError, Actors, check_for_app, check_name, spans};
use crate::workflow::error::is_unknown;

const LOG: &str = "dapr.runtime.actors.reminders";

/// Why a reminder operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReminderError {
    /// This sidecar does not host the type.
    #[error("operations on actor reminders are only possible on hosted actor types")]
    NotHosted,
    /// A reminder of this name exists and must not be overwritten.
    #[error("actor reminder already exists: {0}")]
    Exists(String),
    /// There is none of this name.
    #[error("actor reminder not found: {0}")]
    NotFound(String),
    /// Storing failed.
    #[error("error creating actor reminder: {0}")]
    Create(ReminderCause),
    /// Reading failed.
    #[error("error getting actor reminder: {0}")]
    Get(ReminderCause),
    /// Deleting failed.
    #[error("error deleting actor reminder: {0}")]
    Delete(ReminderCause),
}

impl ReminderError {
    /// The remedy, which the contract's text does not name.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Create(cause) | Self::Get(cause) | Self::Delete(cause) => match cause {
                ReminderCause::NoScheduler { .. } => Some(WITHOUT),
                ReminderCause::Other(_) => None,
            },
            _ => None,
        }
    }
}

/// The cause of a failed reminder operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReminderCause {
    /// No scheduler is configured. The text is the contract's, verbatim.
    #[error("{frame}scheduler clients are disabled")]
    NoScheduler {
        /// The contract's prefix.
        frame: &'static str,
    },
    /// Any other cause.
    #[error("{0}")]
    Other(String),
}

impl From<SchedulerError> for ReminderCause {
    fn from(error: SchedulerError) -> Self {
        match error {
            SchedulerError::Disabled => {
                tracing::warn!(target: LOG, "{error}");
                Self::NoScheduler { frame: "" }
            }
            SchedulerError::Status(_) => Self::Other(error.to_string()),
        }
    }
}

/// An app's reminder request.
#[derive(Clone, Debug, Default)]
pub struct ReminderRequest {
    /// Actor type.
    pub kind: String,
    /// Actor id.
    pub id: String,
    /// Name of the reminder, unique for its actor.
    pub name: String,
    /// First due time; empty is now.
    pub due_time: String,
    /// Period; empty is once.
    pub period: String,
    /// Time to live; empty is unlimited.
    pub ttl: String,
    /// JSON for the app; empty is none.
    pub data: Vec<u8>,
    /// Whether to overwrite a reminder of the same name.
    pub overwrite: bool,
    /// What to do if a delivery fails.
    pub failure_policy: Option<JobFailurePolicy>,
}

/// A reminder stored by the scheduler.
#[derive(Clone, Debug, Default)]
pub struct KnownReminder {
    /// Name of the reminder, unique for its actor.
    pub name: String,
    /// Actor type.
    pub kind: String,
    /// Actor id.
    pub id: String,
    /// Its times and data.
    pub job: Job,
}

impl KnownReminder {
    /// Its data as JSON.
    ///
    /// # Errors
    /// If the data cannot be decoded.
    pub fn json(&self) -> Result<Option<Vec<u8>>, String> {
        let data = self.job.data.as_ref().map(json).transpose();
        let data = data.map_err(|error| error.to_string())?;
        Ok(data.filter(|json| !json.is_empty()))
    }
}

impl Actors {
    /// Checks that this sidecar hosts the type. Without a state store it hosts none.
    async fn check_hosted(&self, kind: &str) -> Result<(), ActorError> {
        let hosted = self.known(kind).await?;
        match hosted.get(kind) {
            Some(_) if self.with.components.actor_store().is_some() => Ok(()),
            _ => Err(ReminderError::NotHosted.into()),
        }
    }

    /// Stores a reminder.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn register_reminder(&self, request: ReminderRequest) -> Result<(), ActorError> {
        check_for_app(&request.kind, &request.id)?;
        if request.name.is_empty() {
            return Err(ActorError::Illegal("reminder name cannot be empty".to_owned()));
        }
        check_name("name", &request.name)?;
        self.check_hosted(&request.kind).await?;
        let job =
            job(&request).map_err(|error| ReminderError::Create(ReminderCause::Other(error.to_string())))?;
        let scheduler = &self.with.scheduler;
        let metadata = scheduler.of_actor(&request.kind, &request.id);
        let stored = scheduler
            .schedule(&request.name, metadata, job, request.overwrite)
            .await;
        stored.map_err(|error| match error.code() {
            Code::AlreadyExists => ReminderError::Exists(request.name).into(),
            _ => ReminderError::Create(error.into()).into(),
        })
    }

    /// Reads a reminder.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn reminder(&self, kind: &str, id: &str, name: &str) -> Result<KnownReminder, ActorError> {
        check_for_app(kind, id)?;
        check_name("name", name)?;
        self.check_hosted(kind).await?;
        let scheduler = &self.with.scheduler;
        let job = scheduler.get(name, scheduler.of_actor(kind, id)).await;
        let job = job.map_err(|error| match error.code() {
            Code::NotFound => ReminderError::NotFound(name.to_owned()),
            _ => ReminderError::Get(framed(error.into())),
        })?;
        Ok(KnownReminder {
            name: name.to_owned(),
            kind: kind.to_owned(),
            id: id.to_owned(),
            job,
        })
    }

    /// Deletes a reminder; succeeds if there is none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn unregister_reminder(&self, kind: &str, id: &str, name: &str) -> Result<(), ActorError> {
        check_for_app(kind, id)?;
        check_name("name", name)?;
        self.check_hosted(kind).await?;
        let scheduler = &self.with.scheduler;
        let deleted = scheduler.delete(name, scheduler.of_actor(kind, id)).await;
        deleted.map_err(not_deleted)
    }

    /// The reminders of an actor, or of all actors of a type.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn reminders(&self, kind: &str, id: Option<&str>) -> Result<Vec<KnownReminder>, ActorError> {
        check_for_app(kind, id.unwrap_or_default())?;
        self.check_hosted(kind).await?;
        let scheduler = &self.with.scheduler;
        let listed = scheduler
            .list(scheduler.of_actor(kind, id.unwrap_or_default()))
            .await;
        let listed = listed.map_err(|error| ReminderError::Get(error.into()))?;
        Ok(listed.into_iter().filter_map(known).collect())
    }

    /// Deletes the reminders of an actor, or of all actors of a type.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn unregister_reminders(&self, kind: &str, id: Option<&str>) -> Result<(), ActorError> {
        check_for_app(kind, id.unwrap_or_default())?;
        self.check_hosted(kind).await?;
        let scheduler = &self.with.scheduler;
        let whose = scheduler.of_actor(kind, id.unwrap_or_default());
        scheduler.delete_all(whose, false).await.map_err(not_deleted)
    }

    /// Passes on the result that another app's reminder has for a workflow, as a call of that app. Other
    /// reminders of another app, and results that it must not send, are dropped.
    async fn pass_on(&self, app: &str, reminder: &Reminder, trace: Parent) -> Result<Reply, ActorError> {
        let sent = match self.with.workflow_access.handed_over(app, reminder) {
            Ok(call) => self.send(&Message::Call(&ActorCall { trace, ..call })).await,
            Err(denied) => Err(ActorError::Internal(denied)),
        };
        let Err(error) = sent else { return sent };
        let is_denied = error
            .status()
            .is_some_and(|(code, _)| code == Code::PermissionDenied);
        if !is_denied && !is_unknown(&error) {
            return Err(error);
        }
        let Reminder {
            name,
            actor_type,
            actor_id,
            ..
        } = reminder;
        tracing::warn!(
            target: LOG,
            "reminder {name} of app '{app}' for actor {actor_type}||{actor_id} is dropped: {error}"
        );
        Ok(empty())
    }

    /// Announces the hosted types to the scheduler after each new placement table.
    pub(super) async fn announce(&self) {
        let mut announced = self.announced.subscribe();
        loop {
            let names = announced.borrow_and_update().to_vec();
            self.with.scheduler.take_reminders_of(names);
            // `self` owns the sender.
            if announced.changed().await.is_err() {
                return;
            }
        }
    }
}

fn not_deleted(error: SchedulerError) -> ActorError {
    ReminderError::Delete(error.into()).into()
}

/// Adds the contract's prefix for a single reminder.
fn framed(cause: ReminderCause) -> ReminderCause {
    const FRAME: &str = "api error: code = Internal desc = failed to get job due to: ";
    match cause {
        ReminderCause::NoScheduler { .. } => ReminderCause::NoScheduler { frame: FRAME },
        ReminderCause::Other(text) => ReminderCause::Other(format!("{FRAME}{text}")),
    }
}

fn known(named: NamedJob) -> Option<KnownReminder> {
    let target = named.metadata?.target?.r#type?;
    let Type::Actor(actor) = target else { return None };
    Some(KnownReminder {
        name: named.name,
        kind: actor.r#type,
        id: actor.id,
        job: named.job.unwrap_or_default(),
    })
}

fn job(request: &ReminderRequest) -> Result<Job, TimeError> {
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let (schedule, repeats) = reminder_schedule(&request.period)?.unzip();
    Ok(Job {
        schedule,
        repeats: repeats.flatten(),
        due_time: given(&request.due_time),
        ttl: given(&request.ttl),
        data: data(&request.data),
        failure_policy: request.failure_policy,
    })
}

/// Wraps JSON as timers and reminders carry it.
pub(super) fn data(json: &Vec<u8>) -> Option<Any> {
    (!json.is_empty()).then(|| Any {
        type_url: BYTES_VALUE.to_owned(),
        value: prost::Message::encode_to_vec(json),
    })
}

/// Passes due reminders to their actors while these exist.
pub(super) struct ReminderReceiver(pub(super) Weak<Actors>);

impl Receiver for ReminderReceiver {
    fn receive(&self, trigger: Trigger) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let (Some(actors), Some(actor)) = (self.0.upgrade(), trigger.actor) else {
                return Outcome::Failed;
            };
            let reminder = Reminder {
                actor_id: actor.id,
                actor_type: actor.r#type,
                name: trigger.name,
                data: trigger.data,
                ..Reminder::default()
            };
            let mut span = spans::due(&actors.with.tracer, &reminder);
            let trace = span.as_parent();
            let creator = trigger.creator.as_str();
            let is_own = creator.is_empty() || creator == &*actors.with.app_id;
            let sent = if is_own || !is_reserved(&reminder.actor_type) {
                let due = Message::Due(&reminder, &trace, &trigger.begun);
                actors.send(&due).await
            } else {
                trigger.begun.set();
                actors.pass_on(creator, &reminder, trace).await
            };
            spans::note(&mut span, &sent);
            drop(span);
            let hosted = actors.hosted.load_full();
            if let Some(kind) = hosted.get(&reminder.actor_type) {
                kind.metrics.reminder_fired(sent.is_ok());
            }
            match sent {
                Ok(_) => Outcome::Success,
                Err(ActorError::Ended) => Outcome::Undelivered,
                Err(error) => {
                    let Reminder {
                        name,
                        actor_type,
                        actor_id,
                        ..
                    } = &reminder;
                    tracing::warn!(target: LOG, "reminder {name} of actor {actor_type}||{actor_id} failed: {error}");
                    Outcome::Failed
                }
            }
        })
    }
}
