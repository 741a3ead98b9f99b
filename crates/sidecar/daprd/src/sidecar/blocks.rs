//! Starts and ends the building blocks with the sidecar.

use std::sync::Arc;

use outrigger_blocks::Blocks;
use outrigger_blocks::state::State;
use outrigger_runtime::life::{Lifecycle, Stage, Tasks};

/// Subscribes to the internal topics of state stores with an outbox. They end with the calls, whose
/// transactions they publish.
pub(super) async fn start_outbox(state: &Arc<State>, lifecycle: &mut Lifecycle) {
    state.begin_outbox().await;
    let Tasks { tasks, stop } = lifecycle.tasks(Stage::Reload, "the stores that have an outbox");
    tasks.spawn(Arc::clone(state).follow_outbox(stop));
    let (ending, draining) = (Arc::clone(state), Arc::clone(state));
    let drained = async move { draining.outbox_drained().await };
    lifecycle.add(
        Stage::Calls,
        "events of the outbox",
        move || ending.end_outbox(),
        drained,
    );
}

/// Registers the ends of the blocks' background work. `pauses` means that subscriptions pause before they
/// end.
pub(super) fn end_with(blocks: &Blocks, pauses: bool, lifecycle: &mut Lifecycle) {
    let (reading, handling) = (Arc::clone(&blocks.bindings), Arc::clone(&blocks.bindings));
    let reading = move || reading.end_reading();
    lifecycle.add(Stage::Reading, "input bindings", reading, async {});
    let handled = async move { handling.drained().await };
    lifecycle.add(Stage::Events, "events of input bindings", || {}, handled);
    let (reading, handling) = (
        Arc::clone(&blocks.subscriptions),
        Arc::clone(&blocks.subscriptions),
    );
    let reading = async move {
        if pauses {
            reading.pause().await;
        }
        reading.end_reading();
    };
    lifecycle.add(Stage::Reading, "subscriptions", || {}, reading);
    let handled = async move { handling.drained().await };
    lifecycle.add(Stage::Events, "events of subscriptions", || {}, handled);
    let (stopping, watching) = (
        Arc::clone(&blocks.configuration),
        Arc::clone(&blocks.configuration),
    );
    let stop = move || stopping.stop();
    let stopped = async move { watching.stopped().await };
    lifecycle.add(Stage::Calls, "configuration subscriptions", stop, stopped);
}
