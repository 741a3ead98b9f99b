//! Bindings: what the app calls in outside systems, and what they tell the app.

mod deliver;
mod input;
mod output;

use std::sync::Arc;
use std::time::Duration;

use outrigger_component::bindings::{Invoke, Invoked};
use outrigger_component::{InputBinding, OutputBinding, Pairs};
use outrigger_telemetry::trace::{Parent, Tracer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::input::{Input, Phase, Phases};
use self::output::Output;
use super::registry::{Registry, Users};
use crate::app::{AppChannel, Health};
use crate::resilience::Resilience;

pub use output::BindingError;

const LOG: &str = "dapr.runtime.processor.binding";

/// Whether a component is used in a direction, by its property `direction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It says so.
    Declared,
    /// It says nothing.
    Possible,
    /// It says otherwise.
    Not,
}

impl Use {
    /// What the property, a comma list, says about `direction`: `input` or `output`.
    pub fn of(property: Option<&str>, direction: &str) -> Self {
        let Some(list) = property else {
            return Self::Possible;
        };
        let named = list
            .split(',')
            .any(|item| item.trim().eq_ignore_ascii_case(direction));
        if named { Self::Declared } else { Self::Not }
    }
}

/// An input binding as it was started.
pub struct OpenedInput {
    /// The component's name.
    pub name: String,
    /// The binding.
    pub component: Arc<dyn InputBinding>,
    /// The app's path.
    pub route: String,
    /// Whether the component says that the app wants its events; otherwise the app is asked.
    pub declared: bool,
}

/// What the block works with.
pub struct Surroundings {
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// The app, where there is one.
    pub app: Option<Arc<AppChannel>>,
    /// Starts the spans of events.
    pub tracer: Tracer,
    /// How long the app may take to say whether it wants events.
    pub asking: Duration,
    /// Longest answer of the app, bytes.
    pub max_answer: usize,
}

/// Every binding of the sidecar.
pub struct Bindings {
    outputs: Registry<Output>,
    inputs: Registry<Input>,
    surroundings: Surroundings,
    phases: Phases,
    /// Calls of output bindings that an event's answer asked for.
    following: TaskTracker,
}

impl Bindings {
    /// Without bindings. Events are read between [`Bindings::follow`] and [`Bindings::end_reading`].
    pub fn new(surroundings: Surroundings) -> Arc<Self> {
        Arc::new(Self {
            outputs: Registry::default(),
            inputs: Registry::default(),
            surroundings,
            phases: Phases::default(),
            following: TaskTracker::new(),
        })
    }

    /// Adds an output binding, in the place of one with its name.
    pub fn insert_output(&self, name: &str, component: Arc<dyn OutputBinding>) -> Users {
        let output = Output::new(name, component, &self.surroundings.resilience);
        self.outputs.insert(name, output)
    }

    /// Takes an output binding out.
    pub fn remove_output(&self, name: &str) {
        self.outputs.remove(name);
    }

    /// Adds an input binding, in the place of one with its name: that one hands over what it has taken first.
    pub fn insert_input(self: &Arc<Self>, opened: OpenedInput) -> Users {
        let name = opened.name.clone();
        let before = self.inputs.get(&name).map(|before| before.end());
        let input = Input::new(opened, &self.surroundings.resilience);
        let users = self.inputs.insert(&name, input);
        if let Some(input) = self.inputs.get(&name)
            && self.surroundings.app.is_some()
        {
            tokio::spawn(input::live(
                Arc::downgrade(self),
                input,
                self.phases.clone(),
                before,
            ));
        }
        users
    }

    /// Takes an input binding out: it reads nothing more, and ends when the app has handled what was read.
    pub fn remove_input(&self, name: &str) {
        if let Some(input) = self.inputs.get(name) {
            input.end();
        }
        self.inputs.remove(name);
    }

    /// Reads events while the app is well, until `stop`.
    pub async fn follow(&self, health: Health, stop: CancellationToken) {
        let following = async {
            loop {
                health.until_healthy().await;
                self.phases.set(Phase::Reading);
                health.until_unhealthy().await;
                self.phases.set(Phase::Resting);
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// Reads no new events, for good.
    pub fn end_reading(&self) {
        self.phases.set(Phase::Ended);
    }

    /// Waits until the app has handled all events that were read.
    pub async fn drained(&self) {
        self.phases.idle().await;
        self.following.close();
        self.following.wait().await;
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

/// Tells an output binding which trace the call belongs to; `replace`: whatever the caller wrote there.
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
    fn directions_are_lists() {
        let says = |property| (Use::of(property, "input"), Use::of(property, "output"));
        assert_eq!(says(None), (Use::Possible, Use::Possible));
        assert_eq!(says(Some("input")), (Use::Declared, Use::Not));
        assert_eq!(says(Some(" Output , INPUT")), (Use::Declared, Use::Declared));
        assert_eq!(says(Some("")), (Use::Not, Use::Not));
    }

    #[test]
    fn the_trace_is_told_once() {
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
