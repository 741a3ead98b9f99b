//! Limits on the steps and activities of all sidecars of an app, which the scheduler applies.

use outrigger_resources::configuration::{GlobalLimit, Limited};
use outrigger_wire::scheduler::v1::concurrency_limit::Target;
use outrigger_wire::scheduler::v1::{ConcurrencyLimit, ConcurrencyLimitActor};
use outrigger_workflow::names::ActorTypes;

/// The limits as sidecars announce them to schedulers.
pub fn scheduler_limits(namespace: &str, app_id: &str, limits: &[GlobalLimit]) -> Vec<ConcurrencyLimit> {
    let types = ActorTypes::of(namespace, app_id);
    let limits = limits.iter().map(|limit| {
        let of = match limit.of {
            Limited::Workflows => &types.workflow,
            Limited::Activities => &types.activity,
        };
        ConcurrencyLimit {
            max_concurrent: limit.most,
            name: limit.name.clone(),
            target: Some(Target::Actor(ConcurrencyLimitActor { r#type: of.clone() })),
        }
    });
    limits.collect()
}
