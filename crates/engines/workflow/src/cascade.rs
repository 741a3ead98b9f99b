//! Terminates the children of a terminated instance.

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionTerminatedEvent, HistoryPropagationScope};
use prost_types::Timestamp;

use crate::event::{Awaited, NO_ID, event};
use crate::facts::Child;
use crate::instance::Instance;
use crate::origin::Origin;
use crate::step::Message;

impl Instance {
    /// The terminations of its children in progress, if it has ended by a recursive termination. They are sent
    /// once the end is stored, and sent again if that was interrupted: an ended child ignores them.
    #[must_use]
    pub fn cascade(&self, at: Timestamp) -> Vec<Message> {
        let Some(terminated) = self.recursive_end() else {
            return Vec::new();
        };
        let open = |child: &&Child| self.facts.is_open(Awaited::Child, child.event);
        let open = self.facts.children().filter(open);
        open.map(|child| Message {
            target: child.id.clone(),
            app: child.app.clone(),
            event: event(NO_ID, at, EventType::ExecutionTerminated(terminated.clone())),
            origin: Origin::default(),
            cause: None,
            propagates: HistoryPropagationScope::None,
        })
        .collect()
    }

    /// Whether [`Instance::cascade`] has messages.
    pub(crate) fn cascades(&self) -> bool {
        self.recursive_end().is_some() && self.facts.open(Awaited::Child).next().is_some()
    }

    fn recursive_end(&self) -> Option<&ExecutionTerminatedEvent> {
        let terminated = self.facts.terminated.as_deref();
        terminated.filter(|terminated| terminated.recurse && self.is_completed())
    }
}
