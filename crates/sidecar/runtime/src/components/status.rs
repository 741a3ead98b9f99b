//! The status of each component, for the status page.

use outrigger_component::may_be_secret;
use outrigger_redact::Secrets;
use outrigger_resources::Component;

use super::Components;

/// Characters kept of an error.
const MAX_TEXT: usize = 2048;

/// The state of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// It runs.
    Loaded,
    /// It waits for its secret store.
    Waiting,
    /// It failed to start.
    Failed,
    /// It is not loaded on purpose.
    Skipped,
}

impl ComponentState {
    /// The lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// A component with its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentStatus {
    /// `metadata.name` of its resource.
    pub name: String,
    /// `state.redis`.
    pub kind: String,
    /// `v1`; may be empty.
    pub version: String,
    /// Its state.
    pub state: ComponentState,
    /// Why it does not run, without values of properties that may be secrets; empty if it runs.
    pub why: String,
    /// Its file and line, or those of the invalid value.
    pub place: String,
}

impl ComponentStatus {
    fn new(component: &Component, state: ComponentState, why: String) -> Self {
        Self {
            name: component.name.clone(),
            kind: component.kind.clone(),
            version: component.version.clone(),
            state,
            why,
            place: component.source.to_string(),
        }
    }
}

/// A component that does not run.
pub(super) type LeftOut = ComponentStatus;

impl Components {
    /// The status of every component, running ones first.
    pub fn status(&self) -> Vec<ComponentStatus> {
        let table = self.table();
        let live = table.live.iter();
        let live =
            live.map(|live| ComponentStatus::new(&live.component, ComponentState::Loaded, String::new()));
        let waiting = table.parked.iter().map(|parked| {
            let why = format!("its secret store {} is not loaded", parked.secret_store);
            ComponentStatus::new(parked, ComponentState::Waiting, why)
        });
        let left_out = table.left_out.values().cloned();
        live.chain(waiting).chain(left_out).collect()
    }

    /// Records why a component does not run; `place`: that of the invalid value.
    pub(super) fn leave_out(
        &self,
        component: &Component,
        state: ComponentState,
        why: String,
        place: Option<String>,
    ) {
        let secret = component.metadata.iter().filter(|item| may_be_secret(&item.name));
        let secrets = Secrets::new(secret.map(|item| item.text()));
        let why = secrets.redact(&why).chars().take(MAX_TEXT).collect();
        let mut status = ComponentStatus::new(component, state, why);
        status.place = place.unwrap_or(status.place);
        self.table().left_out.insert(component.name.clone(), status);
    }

    /// Keeps only components that are still wanted.
    pub(super) fn retain_left_out(&self, wanted: &[Component]) {
        let is_wanted = |name: &String| wanted.iter().any(|component| component.name == *name);
        self.table().left_out.retain(|name, _| is_wanted(name));
    }
}
