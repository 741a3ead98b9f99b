//! Access of other apps to the workflows and activities of this app, by WorkflowAccessPolicy.
//!
//! The caller is the app of the peer's certificate. Calls of this app need no decision. Without a policy all calls
//! are allowed, except calls that another app's API sends to an actor by its type.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use outrigger_policy::workflow_access::{AllowList, Target};
use outrigger_resources::WorkflowAccessPolicy;
use outrigger_resources::workflow_access_policy::Operation;
use outrigger_telemetry::metrics::{Counter, Family, Registry};
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::backend::v1::{
    ActivityInvocation, BackendWorkflowState, CreateWorkflowInstanceRequest,
};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::internals::v1::Reminder;
use outrigger_workflow::Arrival;
use outrigger_workflow::event::ends;
use outrigger_workflow::names::{self, ActorTypes, Purpose};
use prost::Message as _;
use tonic::Status;

use super::engine::request;
use super::protocol::{arrival, methods};
use crate::actors::internal::is_reserved;
use crate::actors::{API_CALL, ActorCall, ActorError, Caller, HANDED_BY};

const LOG: &str = "dapr.acl.workflow";

/// Text of a denial without details.
pub(crate) const DENIED: &str = "access denied by workflow access policy";

/// The policies in scope, as applied last.
struct Policies {
    allowed: AllowList,
    /// Names of the valid ones.
    names: Vec<String>,
}

/// Decides about calls of other apps.
pub struct WorkflowAccess {
    app_id: Arc<str>,
    types: ActorTypes,
    policies: ArcSwapOption<Policies>,
    allowed: Family<Counter, 3>,
    denied: Family<Counter, 3>,
}

impl WorkflowAccess {
    /// No policy for the workflows of an app.
    pub fn new(app_id: Arc<str>, namespace: &str, registry: &Registry) -> Self {
        let labels = ["src_app_id", "operation", "type"];
        Self {
            types: ActorTypes::of(namespace, &app_id),
            app_id,
            policies: ArcSwapOption::empty(),
            allowed: registry.counter(
                "runtime_workflow_acl_action_allowed_total",
                "Calls of other apps to workflows and activities that a policy allowed.",
                labels,
            ),
            denied: registry.counter(
                "runtime_workflow_acl_action_denied_total",
                "Calls of other apps to workflows and activities that no policy allowed.",
                labels,
            ),
        }
    }

    /// Replaces all policies, from the next call on.
    pub fn apply(&self, policies: &[WorkflowAccessPolicy]) {
        let valid = policies.iter().filter(|policy| policy.mistakes.is_empty());
        let names = valid.map(|policy| policy.name.clone()).collect();
        let policies = AllowList::compile(policies).map(|allowed| Policies { allowed, names });
        self.policies.store(policies.map(Arc::new));
    }

    /// Names of the valid policies.
    pub fn names(&self) -> Vec<String> {
        let policies = self.policies.load();
        policies
            .as_ref()
            .map(|policies| policies.names.clone())
            .unwrap_or_default()
    }

    /// Admits a call of a peer before it is routed. The actor decides about calls that need a name.
    pub(crate) fn admit(&self, call: &ActorCall) -> Result<(), Status> {
        if call.caller == Caller::Own || !is_reserved(&call.kind) {
            return Ok(());
        }
        let guarded = self.guard(call);
        let is_named = [&self.types.workflow, &self.types.activity].contains(&&call.kind);
        match (&call.caller, guarded) {
            // The app of a peer names a type that apps cannot use, and nothing says that it may.
            (_, None) if call.metadata.contains_key(API_CALL) => {
                let reserved = ActorError::Reserved(call.kind.clone());
                Err(Status::permission_denied(reserved.to_string()))
            }
            (_, None) => Ok(()),
            (Caller::App(_), Some(_)) if is_named => Ok(()),
            (Caller::App(_), Some(guarded)) => Err(guarded.unknown_method()),
            (_, Some(_)) => {
                tracing::warn!(target: LOG, "a call of actor type {} is denied: the caller has no certificate", call.kind);
                Err(Status::permission_denied(DENIED))
            }
        }
    }

    /// Admits a due reminder of a peer: reminders of workflows come from this app only.
    pub(crate) fn admit_reminder(&self, caller: &Caller, kind: &str) -> Result<(), Status> {
        if !is_reserved(kind) || self.policies.load().is_none() {
            return Ok(());
        }
        let (counter, app, result) = match caller {
            Caller::Own => (&self.allowed, &*self.app_id, Ok(())),
            Caller::App(app) => (&self.denied, app.as_str(), Err(Status::permission_denied(DENIED))),
            Caller::Unknown => (&self.denied, "", Err(Status::permission_denied(DENIED))),
        };
        counter.with([app, "invoke", "reminder"]).inc();
        if result.is_err() {
            tracing::warn!(target: LOG, "a reminder of actor type {kind} from app '{app}' is denied");
        }
        result
    }

    /// The call of another app that passes on its reminder.
    ///
    /// # Errors
    /// The reminder does not carry an event for a workflow of this app.
    pub(crate) fn handed_over(&self, app: &str, reminder: &Reminder) -> Result<ActorCall, Status> {
        let is_event = names::purpose(&reminder.name) == Some(Purpose::Event);
        let by = HeaderValue::from_str(app).ok();
        let by = by.filter(|_| is_event && reminder.actor_type == self.types.workflow);
        let by = by.ok_or_else(|| {
            Status::permission_denied("reminders of another app may only carry results of tasks")
        })?;
        let data = reminder.data.clone().unwrap_or_default();
        let mut call = request(
            &reminder.actor_type,
            &reminder.actor_id,
            methods::ADD_EVENT,
            data.value,
        );
        call.metadata.insert(HANDED_BY, by);
        call.caller = Caller::App(app.to_owned());
        Ok(call)
    }

    /// Admits a peer of another namespace to no workflow, if there is a policy.
    pub(crate) fn denial_of_namespace(&self, kind: &str) -> Option<Status> {
        let is_denied = is_reserved(kind) && self.policies.load().is_some();
        is_denied.then(|| Status::permission_denied(DENIED))
    }

    /// A call that the policies decide about; `None` for calls of this app, and without policies. A call that
    /// passes on another app's reminder is always decided about: the app cannot send the call itself if
    /// placement keeps it away.
    pub(crate) fn guard<'a>(&'a self, call: &'a ActorCall) -> Option<Guarded<'a>> {
        let app = match &call.caller {
            Caller::Own => return None,
            Caller::App(app) => app.as_str(),
            Caller::Unknown => "",
        };
        let policies = self.policies.load_full();
        if policies.is_none() && !call.metadata.contains_key(HANDED_BY) {
            return None;
        }
        Some(Guarded {
            access: self,
            policies,
            app,
            call,
        })
    }
}

/// The request of a call of a workflow.
pub(crate) enum Asked {
    /// An operation. The name of the workflow is in the call, or is that of the instance.
    Operation(Operation, Option<String>),
    /// Takes the result of a task that the workflow scheduled.
    Result(Box<Arrival>),
}

/// A call of another app, and the policies that decide about it.
pub(crate) struct Guarded<'a> {
    access: &'a WorkflowAccess,
    /// Without policies, only results of tasks are allowed.
    policies: Option<Arc<Policies>>,
    /// The calling app; empty without a certificate.
    pub(crate) app: &'a str,
    call: &'a ActorCall,
}

const WORKFLOW: &str = "workflow";
const ACTIVITY: &str = "activity";

impl Guarded<'_> {
    /// Decides about a call of a workflow whose name is known.
    pub(crate) fn workflow(&self, operation: Operation, name: &str) -> Result<(), Status> {
        let (app, id) = (self.app, &self.call.id);
        if app.is_empty() {
            let what = format!(
                "caller identity missing on workflow '{}' operation",
                operation.name()
            );
            return Err(self.deny(WORKFLOW, operation.name(), &what));
        }
        if self.allows(Target::Workflow(operation, name)) {
            self.count(&self.access.allowed, operation.name(), WORKFLOW);
            return Ok(());
        }
        let operation = operation.name();
        let what = format!("app '{app}' operation '{operation}' on workflow '{name}' (instance '{id}')");
        Err(self.deny(WORKFLOW, operation, &what))
    }

    /// Decides about a call of an activity; `invocation` as the activity reads it.
    pub(crate) fn activity(&self, invocation: Option<ActivityInvocation>) -> Result<(), Status> {
        let schedule = Operation::Schedule.name();
        if self.call.method != methods::EXECUTE {
            return Err(self.unknown_method());
        }
        let Some(name) = invocation.and_then(task_name) else {
            return Err(self.malformed(ACTIVITY));
        };
        let app = self.app;
        if app.is_empty() {
            let what = format!("caller identity missing on activity '{name}' schedule");
            return Err(self.deny(ACTIVITY, schedule, &what));
        }
        if self.allows(Target::Activity(&name)) {
            self.count(&self.access.allowed, schedule, ACTIVITY);
            return Ok(());
        }
        Err(self.deny(
            ACTIVITY,
            schedule,
            &format!("app '{app}' schedule on activity '{name}'"),
        ))
    }

    fn allows(&self, target: Target<'_>) -> bool {
        let policies = self.policies.as_ref();
        policies.is_some_and(|policies| policies.allowed.allows(self.app, target))
    }

    /// The request of the call.
    pub(crate) fn asked(&self) -> Result<Asked, Status> {
        let body = &self.call.body;
        let asked = match self.call.method.as_str() {
            methods::CREATE => {
                created_name(body).map(|name| Asked::Operation(Operation::Schedule, Some(name)))
            }
            methods::RERUN => rerun_name(body).map(|name| Asked::Operation(Operation::Rerun, Some(name))),
            methods::FORK => Some(Asked::Operation(Operation::Rerun, None)),
            methods::PURGE | methods::PURGE_TREE => Some(Asked::Operation(Operation::Purge, None)),
            methods::WATCH => Some(Asked::Operation(Operation::Get, None)),
            methods::ADD_EVENT => added(body),
            _ => return Err(self.unknown_method()),
        };
        asked.ok_or_else(|| self.malformed(WORKFLOW))
    }

    /// The status of a call with a method that other apps cannot call, or cannot call so.
    pub(crate) fn unknown_method(&self) -> Status {
        let kind = match self.call.kind == self.access.types.activity {
            true => ACTIVITY,
            false => WORKFLOW,
        };
        let what = format!("app '{}' cannot invoke method '{}'", self.app, self.call.method);
        // Not the method, which the peer chooses freely.
        self.deny(kind, "other", &what)
    }

    fn malformed(&self, kind: &str) -> Status {
        let method = &self.call.method;
        self.deny(kind, method, &format!("malformed request for method '{method}'"))
    }

    fn deny(&self, kind: &str, operation: &str, what: &str) -> Status {
        self.count(&self.access.denied, operation, kind);
        tracing::warn!(target: LOG, "{DENIED}: {what}");
        Status::permission_denied(format!("{DENIED}: {what}"))
    }

    fn count(&self, counter: &Family<Counter, 3>, operation: &str, kind: &str) {
        counter.with([self.app, operation, kind]).inc();
    }
}

/// The status of a call whose workflow has no readable name.
pub(crate) fn undecided(error: &Status) -> Status {
    tracing::error!(target: LOG, "cannot read the name of a workflow for its access policy: {error}");
    Status::internal("failed to evaluate workflow access policy")
}

fn created_name(body: &[u8]) -> Option<String> {
    let request = CreateWorkflowInstanceRequest::decode(body).ok()?;
    started_name(request.start_event?)
}

fn started_name(event: HistoryEvent) -> Option<String> {
    match event.event_type? {
        EventType::ExecutionStarted(started) => Some(started.name),
        _ => None,
    }
}

/// The name of the workflow that a given history starts.
fn rerun_name(body: &[u8]) -> Option<String> {
    let state = BackendWorkflowState::decode(body).ok()?;
    let mut started = state
        .history
        .into_iter()
        .chain(state.inbox)
        .filter_map(started_name);
    let name = started.next()?;
    started.all(|other| other == name).then_some(name)
}

fn task_name(invocation: ActivityInvocation) -> Option<String> {
    match invocation.history_event?.event_type? {
        EventType::TaskScheduled(task) => Some(task.name),
        _ => None,
    }
}

fn added(body: &[u8]) -> Option<Asked> {
    let arrival = arrival(body).ok()?;
    let event = &arrival.event;
    let operation = match event.event_type.as_ref()? {
        EventType::ExecutionTerminated(_) => Operation::Terminate,
        EventType::EventRaised(_) => Operation::Raise,
        EventType::ExecutionSuspended(_) => Operation::Pause,
        EventType::ExecutionResumed(_) => Operation::Resume,
        EventType::TimerFired(_) => return None,
        _ => return ends(event).is_some().then(|| Asked::Result(Box::new(arrival))),
    };
    Some(Asked::Operation(operation, None))
}

#[cfg(test)]
mod tests;
