//! What workers answer, and the pieces of work that it is for.

use outrigger_wire::durabletask::{ActivityResponse, OrchestratorResponse};

use super::{Cancelled, Key, PendingWork, WorkQueue, WorkerResponse};

impl WorkQueue {
    /// A worker has run a turn. Its answer comes back where nobody waits for it here.
    pub fn step_done(&self, response: OrchestratorResponse) -> Option<OrchestratorResponse> {
        let key = Key::Step(response.instance_id.clone());
        let Some(piece) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        // Who gives up in this moment needs no answer.
        let _gone = piece.answer.send(Ok(WorkerResponse::Step(response)));
        None
    }

    /// A worker has run a turn, and its answer cannot be taken. Whether somebody waited for it here.
    pub fn reject_step(&self, instance: &str, token: &str, why: Cancelled) -> bool {
        let piece = self.answered(&Key::Step(instance.to_owned()), token);
        piece.is_some_and(|piece| piece.answer.send(Err(why)).is_ok())
    }

    /// A worker has run an activity. Its answer comes back where nobody waits for it here.
    pub fn activity_done(&self, response: ActivityResponse) -> Option<ActivityResponse> {
        let key = Key::Activity(response.instance_id.clone(), response.task_id);
        let Some(piece) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        let _gone = piece.answer.send(Ok(WorkerResponse::Activity(response)));
        None
    }

    /// Takes out the piece that an answer is for.
    fn answered(&self, key: &Key, token: &str) -> Option<PendingWork> {
        let mut work = self.locked();
        let number = match token {
            "" => work.by_key.get(key).copied()?,
            token => token.strip_prefix(&self.origin)?.parse().ok()?,
        };
        let piece = work.pieces.get(&number)?;
        // What was not sent yet cannot be what the worker answers.
        if piece.key != *key || piece.item.is_some() {
            return None;
        }
        work.take(number)
    }
}
