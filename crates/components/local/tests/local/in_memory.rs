//! The in-memory state store.

use outrigger_component::state::{Get, Set};
use outrigger_component_conformance::{self as conformance, StateRules};
use outrigger_components_testing::Components;

fn components() -> Components {
    Components::of(outrigger_components_local::add)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_conformance() {
    let store = components().state("state.in-memory", "v1", &[]).await.unwrap();
    conformance::state(&store, StateRules::default()).await;
    conformance::state_after_close(&store).await;
}

#[tokio::test]
async fn stores_are_independent() {
    let first = components().state("state.in-memory", "", &[]).await.unwrap();
    let second = components().state("state.in-memory", "", &[]).await.unwrap();
    let set = Set {
        key: "key".to_owned(),
        ..Set::default()
    };
    first.set(&set).await.unwrap();
    assert!(second.get(&Get::key("key")).await.unwrap().is_none());
    let etag = first.get(&Get::key("key")).await.unwrap().unwrap().etag;
    second.set(&set).await.unwrap();
    assert_ne!(second.get(&Get::key("key")).await.unwrap().unwrap().etag, etag);
}
