//! Reruns the root from one of its events.

use super::*;

impl World {
    /// Creates an instance from the middle of the root's history.
    pub(super) fn rerun(&mut self) -> Result<(), Crash> {
        let root = self.load(ROOT).unwrap();
        let scheduled = root.history().into_iter().filter(|event| {
            matches!(
                event.event_type,
                Some(
                    EventType::TaskScheduled(_)
                        | EventType::TimerCreated(_)
                        | EventType::ChildWorkflowInstanceCreated(_)
                )
            )
        });
        let mut scheduled: Vec<_> = scheduled.map(|event| event.event_id).collect();
        scheduled.sort_unstable();
        // A client that does not know whether its request succeeded repeats it and gets `already exists`.
        if !scheduled.is_empty() && !self.is_stored(AGAIN) {
            self.remove(AGAIN)?;
            let request = RerunWorkflowFromEventRequest {
                source_instance_id: ROOT.to_owned(),
                event_id: u32::try_from(scheduled[scheduled.len() / 2]).unwrap(),
                new_instance_id: Some(AGAIN.to_owned()),
                ..RerunWorkflowFromEventRequest::default()
            };
            let state = root.fork(&request).unwrap();
            let (at, next_id) = (self.at(), &mut self.next_id);
            let mut new_id = || {
                *next_id += 1;
                next_id.to_string()
            };
            let (instance, change) = Instance::from_fork(AGAIN, state, at, &mut new_id).unwrap();
            self.next_id += 1;
            let name = format!("rerun-{}", self.next_id);
            self.remind(self.now, AGAIN, &name, Due::Rerun(instance.stored()));
            self.save(instance, change)?;
        }
        self.memory.insert(ROOT.to_owned(), root);
        Ok(())
    }

    /// `false`: retry.
    pub(super) fn begin_rerun(&mut self, id: &str, made: Counts) -> Result<bool, Crash> {
        let Some(instance) = self.load(id) else {
            return Ok(true);
        };
        let (at, next_id) = (self.at(), &mut self.next_id);
        let mut new_id = || {
            *next_id += 1;
            next_id.to_string()
        };
        let rerun = instance.rerun(made, APP, at, &mut new_id);
        let generation = instance.generation;
        let execution = instance.execution().to_owned();
        self.memory.insert(id.to_owned(), instance);
        self.set_timers(id, generation, &rerun.timers)?;
        let unsent = self.send(id, (generation, &execution), &rerun.tasks, &rerun.children)?;
        Ok(unsent.is_empty())
    }
}
