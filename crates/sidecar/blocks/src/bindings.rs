//! Bindings: output bindings, which the app calls, and input bindings, whose events are delivered to the app.

mod category;
mod deliver;
mod input;
mod output;

use std::sync::Arc;
use std::time::Duration;

use outrigger_component::bindings::{Invoke, Invoked};
use outrigger_component::{InputBinding, OutputBinding, Pairs};
use outrigger_redact::Secrets;
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::trace::{Parent, Tracer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::input::{Input, Phase, Phases};
use self::output::Output;

pub use output::BindingError;

const LOG: &str = "dapr.runtime.processor.binding";

/// An input binding before it is started.
struct NewInput {
    /// The component's name.
    name: String,
    /// The binding.
    component: Arc<dyn InputBinding>,
    /// The app's path for events.
    route: String,
    /// Whether the component declares the direction `input`; otherwise the app is asked whether it wants
    /// events.
    declared: bool,
}

/// Dependencies and limits of bindings.
pub struct Dependencies {
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// The app, if there is one.
    pub app: Option<Arc<AppChannel>>,
    /// Starts the spans of events.
    pub tracer: Tracer,
    /// Timeout of asking the app whether it wants events.
    pub asking: Duration,
    /// Longest response of the app, bytes.
    pub max_answer: usize,
}

/// All bindings of the sidecar.
pub struct Bindings {
    outputs: Registry<Output>,
    inputs: Registry<Input>,
    dependencies: Dependencies,
    phases: Phases,
    /// Readers of events, and calls of output bindings requested in responses to events.
    tasks: TaskTracker,
}

impl Bindings {
    /// No bindings yet. Events are read between [`Bindings::follow`] and [`Bindings::end_reading`].
    pub fn new(dependencies: Dependencies) -> Arc<Self> {
        Arc::new(Self {
            outputs: Registry::default(),
            inputs: Registry::default(),
            dependencies,
            phases: Phases::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Adds or replaces an output binding.
    fn insert_output(&self, name: &str, component: Arc<dyn OutputBinding>, hidden: Secrets) -> Registration {
        let output = Output::new(name, component, &self.dependencies.resilience, hidden);
        self.outputs.insert(name, output)
    }

    /// Adds or replaces an input binding. A replaced one hands over the events that it has read before the
    /// new one starts. A removed one stops reading and ends once the app has handled its events.
    fn insert_input(self: &Arc<Self>, new: NewInput) -> Registration {
        let name = new.name.clone();
        let before = self.inputs.get(&name).map(|before| before.end());
        let input = Input::new(new, &self.dependencies.resilience);
        let end = input.ending();
        let registration = self.inputs.insert(&name, input).then(move || end.cancel());
        if let Some(input) = self.inputs.get(&name)
            && self.dependencies.app.is_some()
        {
            self.tasks.spawn(input::live(
                Arc::downgrade(self),
                input,
                self.phases.clone(),
                before,
            ));
        }
        registration
    }

    /// Reads events while the app is healthy, until `stop`.
    pub async fn follow(&self, health: Health, stop: CancellationToken) {
        let following = async {
            loop {
                health.until_healthy().await;
                self.phases.set(Phase::Reading);
                health.until_unhealthy().await;
                self.phases.set(Phase::Suspended);
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// Stops reading events permanently.
    pub fn end_reading(&self) {
        self.phases.set(Phase::Ended);
    }

    /// Waits until the app has handled all events that were read, after [`Bindings::end_reading`].
    pub async fn drained(&self) {
        self.phases.idle().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Calls an output binding.
    ///
    /// # Errors
    /// [`BindingError`].
    pub async fn invoke(&self, name: &str, call: &Invoke) -> Result<Option<Invoked>, BindingError> {
        if call.operation.is_empty() {
            return Err(BindingError::NoOperation);
        }
        match self.outputs.get(name) {
            Some(output) => output.invoke(name, call).await,
            None => Err(BindingError::NotFound {
                binding: name.to_owned(),
            }),
        }
    }
}

/// Adds the trace of the call to the metadata for an output binding; `replace` overwrites the caller's
/// values.
pub fn attach_trace(metadata: &mut Pairs, trace: &Parent, replace: bool) {
    let context = trace
        .context
        .map(|context| context.traceparent().as_str().to_owned());
    let state = trace.state.as_ref().map(|state| state.as_str().to_owned());
    for (name, value) in [("traceparent", context), ("tracestate", state)] {
        if let Some(value) = value
            && (replace || !metadata.contains_key(name))
        {
            metadata.insert(name.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attaches_trace_once() {
        let trace = Parent::from_text("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b");
        let mut metadata = Pairs::from([("traceparent".to_owned(), "mine".to_owned())]);
        attach_trace(&mut metadata, &trace, false);
        assert_eq!(metadata["traceparent"], "mine");
        assert_eq!(metadata["tracestate"], "a=b");
        attach_trace(&mut metadata, &trace, true);
        assert!(metadata["traceparent"].starts_with("00-4bf92f35"));
        let mut empty = Pairs::new();
        attach_trace(&mut empty, &Parent::default(), true);
        assert!(empty.is_empty());
    }
}
