//! The cron binding.
use async_trait::async_trait;
use outrigger_component::Kind;
use outrigger_component_conformance::{self as conformance, Source};
use outrigger_components_testing::Components;

fn components() -> Components {
    Components::of(outrigger_components_local::add)
}

/// The clock causes the events.
struct Clock;

#[async_trait]
impl Source for Clock {
    async fn cause(&self, _: &str) {}

    fn has_payload(&self) -> bool {
        false
    }

    fn repeats(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cron_passes_conformance() {
    for schedule in ["@every 50ms", "* * * * * *"] {
        let binding = components()
            .input("bindings.cron", "v1", &[("schedule", schedule)])
            .await;
        conformance::input_binding(&binding.unwrap(), &Clock).await;
    }
}

#[tokio::test]
async fn invalid_schedules_are_named() {
    for schedule in ["", "every day", "99 * * * *"] {
        let opened = components()
            .input("bindings.cron", "v1", &[("schedule", schedule)])
            .await;
        let error = opened.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration);
        assert!(error.to_string().contains("schedule"), "{error}");
    }
}
