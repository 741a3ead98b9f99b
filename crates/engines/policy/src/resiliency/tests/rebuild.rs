//! Breakers across a reload.

use super::*;

fn fuse(mut doc: spec::Resiliency, name: &str, timeout: &str) -> spec::Resiliency {
    let breaker = spec::CircuitBreaker {
        trip: "consecutiveFailures > 0".into(),
        timeout: timeout.into(),
        ..Default::default()
    };
    doc.policies.circuit_breakers.insert(name.into(), breaker);
    doc
}

/// Whether the breaker of a policy rejects a call.
fn is_open(policy: Option<&Policy>) -> bool {
    let now = Instant::now();
    policy.unwrap().start(Key::actor("k"), now).before(now).is_err()
}

/// Opens the breaker of a policy.
fn fail(policy: Option<&Policy>) {
    let now = Instant::now();
    let mut run = policy.unwrap().start(Key::actor("k"), now);
    run.before(now).unwrap();
    run.after(Outcome::Failure { code: None }, now);
}

/// Breakers for everything without an entry, and for an app, an actor type and a component.
fn fused(own: &str, default: &str) -> spec::Resiliency {
    let mut doc = fuse(doc("d"), "own", own);
    for level in ["App", "Actor", "StatestoreComponentOutbound"] {
        doc = fuse(doc, &format!("Default{level}CircuitBreakerPolicy"), default);
    }
    let breaker = || "own".to_owned();
    doc.targets.apps.insert(
        "app".into(),
        spec::AppTarget {
            circuit_breaker: breaker(),
            ..Default::default()
        },
    );
    doc.targets.actors.insert(
        "Kind".into(),
        spec::ActorTarget {
            circuit_breaker: breaker(),
            circuit_breaker_scope: "id".into(),
            ..Default::default()
        },
    );
    let mut component = spec::ComponentTarget::default();
    component.outbound.circuit_breaker = breaker();
    doc.targets.components.insert("store".into(), component);
    doc
}

/// The policies with an entry, then those without.
fn all(built: &Resiliency) -> [Option<Arc<Policy>>; 6] {
    let component = |name| built.component(name, ComponentKind::Statestore, Direction::Outbound);
    [
        built.app("app").policy,
        built.actor("Kind").before_lock,
        component("store"),
        built.app("other").policy,
        built.actor("Other").before_lock,
        component("other"),
    ]
}

#[test]
fn rebuild_keeps_unchanged_breakers() {
    let built = build(&[fused("1h", "1h")]);
    all(&built).iter().for_each(|policy| fail(policy.as_deref()));
    let open = |built: &Resiliency| all(built).map(|policy| is_open(policy.as_deref()));
    assert_eq!(open(&built), [true; 6]);

    // Other rules of the same targets change.
    let slow = with_timeout(fused("1h", "1h"), "DefaultTimeoutPolicy", "7s");
    let (slower, problems) = built.rebuild([&slow], "me");
    assert_eq!(problems, []);
    assert_eq!(
        slower.app("other").policy.unwrap().timeout(),
        Some(Duration::from_secs(7))
    );
    assert_eq!(open(&slower), [true; 6]);

    let (own, _) = slower.rebuild([&fused("2h", "1h")], "me");
    assert_eq!(open(&own), [false, false, false, true, true, true]);
    let (default, _) = slower.rebuild([&fused("1h", "2h")], "me");
    assert_eq!(open(&default), [true, true, true, false, false, false]);
    // Runs in progress keep their policy.
    assert_eq!(open(&slower), [true; 6]);
}
