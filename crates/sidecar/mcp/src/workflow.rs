//! The workflows of a server, as a function of the history: hooks run as child workflows around an activity.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_resources::mcp_server::{Hook, McpServer};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, CreateChildWorkflowAction, OrchestrationStatus, ScheduleTaskAction,
    TaskFailureDetails, TaskRouter, WorkflowAction, WorkflowRequest,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::names::{self, Activity, Method};

/// Error type of a failed workflow.
const FAILED: &str = "MCPError";

/// A scheduled task: its kind and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduled<'a> {
    Activity(&'a str),
    Hook(&'a str),
}

/// The history of an instance, as far as these workflows need it.
#[derive(Debug, Default)]
pub(crate) struct History<'a> {
    /// Name of the workflow.
    pub(crate) name: &'a str,
    input: &'a str,
    scheduled: HashMap<i32, Scheduled<'a>>,
    /// Outputs of tasks, or texts of their failures.
    results: HashMap<i32, Result<&'a str, &'a str>>,
    /// The output of a terminated instance.
    terminated: Option<Option<&'a str>>,
    is_suspended: bool,
}

impl<'a> History<'a> {
    pub(crate) fn read(request: &'a WorkflowRequest) -> Self {
        let mut history = Self::default();
        for event in request.past_events.iter().chain(&request.new_events) {
            if let Some(event_type) = &event.event_type {
                history.add(event.event_id, event_type);
            }
        }
        history
    }

    fn add(&mut self, id: i32, event: &'a EventType) {
        let output = |result: &'a Option<String>| Ok(result.as_deref().unwrap_or_default());
        let failure = |details: &'a Option<TaskFailureDetails>| {
            Err(details
                .as_ref()
                .map_or("", |details| details.error_message.as_str()))
        };
        match event {
            EventType::ExecutionStarted(started) => {
                self.name = &started.name;
                self.input = started.input.as_deref().unwrap_or_default();
            }
            EventType::TaskScheduled(task) => {
                self.scheduled.insert(id, Scheduled::Activity(&task.name));
            }
            EventType::ChildWorkflowInstanceCreated(child) => {
                self.scheduled.insert(id, Scheduled::Hook(&child.name));
            }
            EventType::TaskCompleted(task) => {
                self.results.insert(task.task_scheduled_id, output(&task.result));
            }
            EventType::TaskFailed(task) => {
                self.results
                    .insert(task.task_scheduled_id, failure(&task.failure_details));
            }
            EventType::ChildWorkflowInstanceCompleted(child) => {
                self.results
                    .insert(child.task_scheduled_id, output(&child.result));
            }
            EventType::ChildWorkflowInstanceFailed(child) => {
                self.results
                    .insert(child.task_scheduled_id, failure(&child.failure_details));
            }
            EventType::ExecutionTerminated(terminated) => {
                self.terminated = Some(terminated.input.as_deref());
            }
            EventType::ExecutionSuspended(_) => self.is_suspended = true,
            EventType::ExecutionResumed(_) => self.is_suspended = false,
            _ => {}
        }
    }

    /// The next free number of an action.
    fn next(&self) -> i32 {
        self.scheduled
            .keys()
            .max()
            .map_or(0, |last| last.saturating_add(1))
    }
}

/// The actions of the next step of a workflow of `server`.
pub(crate) fn step(server: &McpServer, method: Method<'_>, history: &History<'_>) -> Vec<WorkflowAction> {
    if let Some(output) = history.terminated {
        let terminated = completed(OrchestrationStatus::Terminated, output.map(str::to_owned));
        return vec![action(history.next(), terminated)];
    }
    if history.is_suspended {
        return Vec::new();
    }
    let mut run = Run {
        server,
        history,
        next: 0,
        actions: Vec::new(),
    };
    let outcome = match method {
        Method::ListTools => run.list_tools(),
        Method::CallTool(tool) => run.call_tool(tool),
    };
    match outcome {
        Ok(output) => {
            let done = completed(OrchestrationStatus::Completed, Some(output));
            run.actions.push(action(run.next, done));
        }
        Err(Stop::Waits) => {}
        Err(Stop::Fails(why)) => {
            let id = run.next.max(history.next());
            run.actions.push(failed(id, why));
        }
    }
    run.actions
}

/// The actions that fail a workflow.
pub(crate) fn fail(history: &History<'_>, why: String) -> Vec<WorkflowAction> {
    vec![failed(history.next(), why)]
}

/// A result of `tools/call` that reports an error.
pub(crate) fn error_result(text: &str) -> String {
    json!({"content": [{"type": "text", "text": text}], "isError": true}).to_string()
}

fn action(id: i32, action: WorkflowActionType) -> WorkflowAction {
    WorkflowAction {
        id,
        workflow_action_type: Some(action),
        router: None,
    }
}

fn completed(status: OrchestrationStatus, result: Option<String>) -> WorkflowActionType {
    WorkflowActionType::CompleteWorkflow(CompleteWorkflowAction {
        workflow_status: status.into(),
        result,
        ..CompleteWorkflowAction::default()
    })
}

fn failed(id: i32, why: String) -> WorkflowAction {
    let complete = CompleteWorkflowAction {
        workflow_status: OrchestrationStatus::Failed.into(),
        failure_details: Some(TaskFailureDetails {
            error_type: FAILED.to_owned(),
            error_message: why,
            ..TaskFailureDetails::default()
        }),
        ..CompleteWorkflowAction::default()
    };
    action(id, WorkflowActionType::CompleteWorkflow(complete))
}

/// Why a run does not continue.
enum Stop {
    /// A task is not done.
    Waits,
    Fails(String),
}

/// The input of `CallTool`, which a hook may replace.
#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

/// The part of a hook's output that replaces the result: its JSON in base64.
#[derive(Default, Deserialize)]
struct Replaced {
    #[serde(default)]
    result: Option<String>,
}

/// The subject of hooks, for their inputs and errors.
struct Subject<'a> {
    /// The tool, and its arguments.
    call: Option<(&'a str, Option<&'a Map<String, Value>>)>,
}

/// One pass through a workflow: tasks with a result pass, the first one without stops it.
struct Run<'a> {
    server: &'a McpServer,
    history: &'a History<'a>,
    /// Number of the next task.
    next: i32,
    actions: Vec<WorkflowAction>,
}

impl Run<'_> {
    fn list_tools(&mut self) -> Result<String, Stop> {
        let subject = Subject { call: None };
        for hook in &self.server.middleware.before_list_tools {
            let ran = self.hook(hook, &self.input(&subject))?;
            ran.map_err(|why| Stop::Fails(format!("beforeListTools failed: {why}")))?;
        }
        let listed = self.activity(Activity::ListTools, None)?;
        let listed = listed.map_err(|why| Stop::Fails(format!("list-tools activity failed: {why}")))?;
        let hooks = &self.server.middleware.after_list_tools;
        self.after("afterListTools", hooks, &subject, listed)
    }

    fn call_tool(&mut self, tool: &str) -> Result<String, Stop> {
        let mut arguments = match parsed::<Arguments>(self.history.input) {
            Ok(input) => input.arguments,
            Err(why) => return Ok(error_result(&format!("failed to parse CallToolInput: {why}"))),
        };
        for hook in &self.server.middleware.before_call_tool {
            let subject = Subject {
                call: Some((tool, arguments.as_ref())),
            };
            let output = match self.hook(hook, &self.input(&subject))? {
                Ok(output) if hook.mutate => parsed::<Arguments>(&output),
                Ok(_) => continue,
                Err(why) => Err(why),
            };
            match output {
                Ok(replaced) => arguments = replaced.arguments,
                Err(why) => return Ok(error_result(&format!("beforeCallTool: {why}"))),
            }
        }
        let input = names::call_input(tool, arguments.as_ref());
        let called = self.activity(Activity::CallTool, Some(input))?;
        let result = called.unwrap_or_else(|why| error_result(&why));
        let subject = Subject {
            call: Some((tool, arguments.as_ref())),
        };
        let hooks = &self.server.middleware.after_call_tool;
        self.after("afterCallTool", hooks, &subject, result)
    }

    /// Runs the hooks after an operation, and returns its result, which they may replace.
    fn after(
        &mut self,
        kind: &str,
        hooks: &[Hook],
        subject: &Subject<'_>,
        mut result: String,
    ) -> Result<String, Stop> {
        for hook in hooks {
            let mut input = self.input(subject);
            input["result"] = STANDARD.encode(&result).into();
            let about = self.about(subject);
            let name = &hook.workflow.name;
            let which = if hook.mutate { "mutating hook" } else { "hook" };
            let fails = |what: String| Stop::Fails(format!("{kind} failed: {which} {name:?} {what}"));
            let output = self.hook(hook, &input)?;
            let output = output.map_err(|why| fails(format!("failed for {about}: {why}")))?;
            if hook.mutate {
                let malformed = |why| fails(format!("returned malformed result for {about}: {why}"));
                result = replaced(&output).map_err(malformed)?;
            }
        }
        Ok(result)
    }

    fn input(&self, subject: &Subject<'_>) -> Value {
        let mut input = json!({"name": self.server.name});
        if let Some((tool, arguments)) = subject.call {
            input["toolName"] = tool.into();
            if let Some(arguments) = arguments {
                input["arguments"] = Value::Object(arguments.clone());
            }
        }
        input
    }

    fn about(&self, subject: &Subject<'_>) -> String {
        let server = &self.server.name;
        match subject.call {
            Some((tool, _)) => format!("tool {tool:?} on MCPServer {server:?}"),
            None => format!("MCPServer {server:?}"),
        }
    }

    fn hook(&mut self, hook: &Hook, input: &Value) -> Result<Result<String, String>, Stop> {
        let app_id = &hook.workflow.app_id;
        let router = (!app_id.is_empty()).then(|| TaskRouter {
            target_app_id: Some(app_id.clone()),
            ..TaskRouter::default()
        });
        let name = &hook.workflow.name;
        let create = CreateChildWorkflowAction {
            name: name.clone(),
            input: Some(input.to_string()),
            router,
            ..CreateChildWorkflowAction::default()
        };
        self.task(
            Scheduled::Hook(name),
            WorkflowActionType::CreateChildWorkflow(create),
        )
    }

    fn activity(
        &mut self,
        activity: Activity,
        input: Option<String>,
    ) -> Result<Result<String, String>, Stop> {
        let name = activity.name(&self.server.name);
        let schedule = ScheduleTaskAction {
            name: name.clone(),
            input,
            ..ScheduleTaskAction::default()
        };
        self.task(
            Scheduled::Activity(&name),
            WorkflowActionType::ScheduleTask(schedule),
        )
    }

    /// The output of the next task, or the text of its failure.
    fn task(
        &mut self,
        expected: Scheduled<'_>,
        task: WorkflowActionType,
    ) -> Result<Result<String, String>, Stop> {
        let id = self.next;
        self.next += 1;
        let scheduled = self.history.scheduled.get(&id);
        // Under other middleware, its result is not that of this task.
        if scheduled.is_some_and(|scheduled| *scheduled != expected) {
            return Err(Stop::Fails(format!(
                "the middleware of MCPServer {:?} changed during the call: call again",
                self.server.name
            )));
        }
        match self.history.results.get(&id) {
            Some(Ok(output)) => Ok(Ok((*output).to_owned())),
            Some(Err(why)) => Ok(Err(format!("task failed with an error: {why}"))),
            None => {
                if scheduled.is_none() {
                    self.actions.push(action(id, task));
                }
                Err(Stop::Waits)
            }
        }
    }
}

/// Parses a JSON object; an empty text or null is the default.
fn parsed<T: Default + for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
    if text.is_empty() {
        return Ok(T::default());
    }
    let parsed: Option<T> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(parsed.unwrap_or_default())
}

/// The result that a hook returned.
fn replaced(output: &str) -> Result<String, String> {
    let encoded = parsed::<Replaced>(output)?.result.unwrap_or_default();
    let bytes = STANDARD.decode(encoded).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(_)) => Ok(text),
        Ok(_) => Err("it is not a JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
