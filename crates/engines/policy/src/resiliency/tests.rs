mod rebuild;

use std::time::Duration;

use super::*;

fn doc(name: &str) -> spec::Resiliency {
    spec::Resiliency {
        name: name.into(),
        namespace: "ns".into(),
        ..Default::default()
    }
}

fn with_retry(mut doc: spec::Resiliency, name: &str, retry: spec::Retry) -> spec::Resiliency {
    doc.policies.retries.insert(name.into(), retry);
    doc
}

fn with_timeout(mut doc: spec::Resiliency, name: &str, text: &str) -> spec::Resiliency {
    doc.policies.timeouts.insert(name.into(), text.into());
    doc
}

fn with_breaker(mut doc: spec::Resiliency, name: &str, trip: &str) -> spec::Resiliency {
    let breaker = spec::CircuitBreaker {
        trip: trip.into(),
        ..Default::default()
    };
    doc.policies.circuit_breakers.insert(name.into(), breaker);
    doc
}

fn with_app(mut doc: spec::Resiliency, id: &str, target: spec::AppTarget) -> spec::Resiliency {
    doc.targets.apps.insert(id.into(), target);
    doc
}

fn build(docs: &[spec::Resiliency]) -> Resiliency {
    let (built, problems) = Resiliency::build(docs, "me");
    assert_eq!(problems, []);
    built
}

fn retries(policy: &Policy) -> Option<u32> {
    policy.retry().unwrap().max_retries
}

#[test]
fn no_configuration_has_no_policies() {
    let none = Resiliency::none();
    let app = none.app("x");
    assert!(app.policy.is_none() && !app.has_target);
    assert!(
        none.component("store", ComponentKind::Statestore, Direction::Outbound)
            .is_none()
    );
    assert!(none.actor("T").before_lock.is_none());
    assert!(none.loaded().is_empty());
}

#[test]
fn named_policies_of_a_target() {
    let doc = with_timeout(doc("r"), "slow", "1500");
    let doc = with_retry(
        doc,
        "few",
        spec::Retry {
            max_retries: Some(2),
            ..Default::default()
        },
    );
    let doc = with_breaker(doc, "cb", "");
    let target = spec::AppTarget {
        timeout: "slow".into(),
        retry: "few".into(),
        circuit_breaker: "cb".into(),
        circuit_breaker_cache_size: 0,
    };
    let resiliency = build(&[with_app(doc, "app", target)]);
    let app = resiliency.app("app");
    let policy = app.policy.unwrap();
    assert!(app.has_target && !resiliency.app("other").has_target);
    assert_eq!(policy.timeout(), Some(Duration::from_millis(1500)));
    assert_eq!(retries(&policy), Some(2));
    assert_eq!(
        policy.retry().unwrap().backoff,
        Backoff::Constant(Duration::from_secs(5))
    );
    let labels = policy.labels().unwrap();
    let expected = Labels {
        name: "r",
        namespace: "ns",
        target: "app_app",
        direction: Direction::Outbound,
    };
    assert_eq!(labels, expected);
    assert!(resiliency.app("other").policy.is_none());
    assert_eq!(resiliency.loaded().len(), 1);
}

#[test]
fn undefined_names_mean_no_policy() {
    let target = spec::AppTarget {
        retry: "typo".into(),
        ..Default::default()
    };
    let app = build(&[with_app(doc("r"), "app", target)]).app("app");
    assert!(app.has_target && app.policy.is_none());
}

#[test]
fn entries_override_defaults() {
    let retry = |retries| spec::Retry {
        max_retries: Some(retries),
        ..Default::default()
    };
    let mut doc = doc("r");
    for (name, retries) in [
        ("DefaultRetryPolicy", 1),
        ("DefaultAppRetryPolicy", 2),
        ("DefaultComponentRetryPolicy", 3),
        ("DefaultComponentInboundRetryPolicy", 4),
        ("DefaultPubsubComponentOutboundRetryPolicy", 5),
    ] {
        doc = with_retry(doc, name, retry(retries));
    }
    doc = with_timeout(doc, "DefaultActorTimeoutPolicy", "1s");
    doc.targets
        .components
        .insert("own".into(), spec::ComponentTarget::default());
    let resiliency = build(&[with_app(doc, "own", spec::AppTarget::default())]);

    assert_eq!(retries(&resiliency.app("any").policy.unwrap()), Some(2));
    assert!(
        resiliency.app("own").policy.is_none(),
        "an entry, even empty, disables defaults"
    );
    let component = |name, kind, direction| {
        resiliency
            .component(name, kind, direction)
            .map(|policy| retries(&policy).unwrap())
    };
    assert_eq!(
        component("a", ComponentKind::Pubsub, Direction::Outbound),
        Some(5)
    );
    assert_eq!(component("a", ComponentKind::Pubsub, Direction::Inbound), Some(4));
    assert_eq!(
        component("a", ComponentKind::Statestore, Direction::Outbound),
        Some(3)
    );
    assert_eq!(
        component("own", ComponentKind::Statestore, Direction::Outbound),
        None
    );
    let actor = resiliency.actor("T");
    assert_eq!(retries(&actor.before_lock.unwrap()), Some(1));
    assert_eq!(actor.after_lock.unwrap().timeout(), Some(Duration::from_secs(1)));
    assert!(!actor.has_target);
}

#[test]
fn default_breakers_are_per_app() {
    let now = Instant::now();
    let resiliency = build(&[with_breaker(
        doc("r"),
        "DefaultCircuitBreakerPolicy",
        "totalFailures > 0",
    )]);
    let fail = |id: &str| {
        let policy = resiliency.app(id).policy.unwrap();
        let mut run = policy.start(Key::app(id, "m"), now);
        run.before(now).map(|_| run.after(Outcome::Final, now))
    };
    assert_eq!(fail("a"), Ok(None));
    assert_eq!(fail("a"), Err(BreakerError::Open));
    assert_eq!(fail("b"), Ok(None));
}

#[test]
fn component_directions_share_breaker() {
    let now = Instant::now();
    let mut doc = with_breaker(doc("r"), "cb", "totalFailures > 0");
    let names = spec::PolicyNames {
        circuit_breaker: "cb".into(),
        ..Default::default()
    };
    let target = spec::ComponentTarget {
        inbound: names.clone(),
        outbound: names,
    };
    doc.targets.components.insert("broker".into(), target);
    let resiliency = build(&[doc]);
    let policy = |direction| {
        resiliency
            .component("broker", ComponentKind::Pubsub, direction)
            .unwrap()
    };
    let (inbound, outbound) = (policy(Direction::Inbound), policy(Direction::Outbound));
    let mut run = inbound.start(Key::NONE, now);
    run.before(now).unwrap();
    run.after(Outcome::Final, now);
    let Some(Event::BreakerChanged { breaker, .. }) = run.take_events().pop() else {
        panic!("no event")
    };
    assert_eq!(breaker.name(), "cb-broker");
    assert_eq!(
        outbound.start(Key::NONE, now).before(now),
        Err(BreakerError::Open)
    );
    assert_eq!(inbound.operation(Key::NONE), "component[broker] input");
    assert_eq!(outbound.labels().unwrap().target, "Pubsub_broker");
}

#[test]
fn actor_breakers_follow_scope() {
    let now = Instant::now();
    let mut doc = with_timeout(with_breaker(doc("r"), "cb", "totalFailures > 0"), "t", "2s");
    for (kind, scope) in [("ByType", "type"), ("ById", "id"), ("Both", "both")] {
        let target = spec::ActorTarget {
            circuit_breaker: "cb".into(),
            circuit_breaker_scope: scope.into(),
            timeout: "t".into(),
            ..Default::default()
        };
        doc.targets.actors.insert(kind.into(), target);
    }
    let resiliency = build(&[doc]);
    let after_one_failure = |kind: &str| {
        let policy = resiliency.actor(kind).before_lock.unwrap();
        assert_eq!(policy.timeout(), None);
        let mut run = policy.start(Key::actor("1"), now);
        run.before(now).unwrap();
        run.after(Outcome::Final, now);
        let Some(Event::BreakerChanged { breaker, .. }) = run.take_events().pop() else {
            panic!("no event")
        };
        let other = policy.start(Key::actor("2"), now).before(now).is_ok();
        (
            breaker.name().to_owned(),
            other,
            policy.operation(Key::actor("1")),
        )
    };
    let expect = |name: &str, other, operation: &str| (name.to_owned(), other, operation.to_owned());
    assert_eq!(
        after_one_failure("ByType"),
        expect("ByType", false, "actor[ByType, 1]")
    );
    assert_eq!(
        after_one_failure("ById"),
        expect("ById-1", true, "actor[ById, 1]")
    );
    assert_eq!(
        after_one_failure("Both"),
        expect("Both-1", true, "actor[Both, 1]")
    );
    assert!(resiliency.actor("ById").has_target);
}

#[test]
fn overrides_builtin_retries_within_limits() {
    let none = Resiliency::none();
    assert_eq!(retries(none.builtin(Builtin::ServiceRetries)), Some(3));
    assert_eq!(retries(none.builtin(Builtin::ActorNotFoundRetries)), Some(5));
    assert!(!none.builtin(Builtin::ActorReminderRetries).may_retry());
    assert!(none.builtin(Builtin::ServiceRetries).labels().is_none());

    let override_with = |name: &str, retries| {
        let retry = spec::Retry {
            max_retries: retries,
            duration: "10ms".into(),
            ..Default::default()
        };
        Resiliency::build([&with_retry(doc("r"), name, retry)], "me")
    };
    let (more, problems) = override_with("DaprBuiltInServiceRetries", Some(7));
    assert!(problems.is_empty());
    assert_eq!(retries(more.builtin(Builtin::ServiceRetries)), Some(7));
    for few in [Some(2), Some(-1), None] {
        let (reset, problems) = override_with("DaprBuiltInServiceRetries", few);
        assert_eq!(
            retries(reset.builtin(Builtin::ServiceRetries)),
            Some(3),
            "{few:?}"
        );
        assert!(!problems[0].error && reset.loaded().len() == 1);
    }
    let (refused, problems) = override_with("DaprBuiltInActorNotFoundRetries", Some(9));
    assert_eq!(retries(refused.builtin(Builtin::ActorNotFoundRetries)), Some(5));
    assert!(
        problems[0]
            .text
            .contains("protected policy DaprBuiltInActorNotFoundRetries")
    );
}

#[test]
fn merges_documents_in_scope() {
    let first = with_timeout(doc("first"), "t", "1s");
    let target = spec::AppTarget {
        timeout: "t".into(),
        ..Default::default()
    };
    let second = with_app(with_timeout(doc("second"), "t", "2s"), "app", target);
    let mut foreign = with_timeout(doc("foreign"), "t", "3s");
    foreign.scopes = vec!["other".into()];
    let resiliency = build(&[first, second, foreign]);
    let policy = resiliency.app("app").policy.unwrap();
    assert_eq!(policy.timeout(), Some(Duration::from_secs(2)));
    assert_eq!(policy.labels().unwrap().name, "second");
    assert_eq!(resiliency.loaded().len(), 2);
}

#[test]
fn reports_all_errors_of_document() {
    let bad = with_retry(
        doc("bad"),
        "r",
        spec::Retry {
            policy: "sometimes".into(),
            duration: "soon".into(),
            ..Default::default()
        },
    );
    let mut bad = with_breaker(bad, "cb", "((");
    if let Some(breaker) = bad.policies.circuit_breakers.get_mut("cb") {
        breaker.max_requests = -1;
        breaker.timeout = "late".into();
    }
    let target = spec::ActorTarget {
        circuit_breaker: "cb".into(),
        ..Default::default()
    };
    bad.targets.actors.insert("Cart".into(), target);
    let (resiliency, problems) = Resiliency::build([&bad], "me");
    let warns = |part: &str| {
        assert!(
            problems.iter().any(|problem| problem.text.contains(part)),
            "{part}: {problems:?}"
        );
    };
    for part in [
        "soon",
        "policy: unexpected back off policy type: sometimes",
        "maxRequests: -1",
        "late",
        "actor circuit breakers must include scope",
    ] {
        warns(part);
    }
    assert_eq!(problems.len(), 6);
    assert!(
        problems
            .iter()
            .all(|problem| problem.error && !problem.effect.is_empty())
    );
    assert!(resiliency.loaded().is_empty());
}

#[test]
fn skips_and_reports_bad_policy() {
    let bad = with_timeout(doc("bad"), "t", "soon");
    let bad = with_timeout(bad, "DefaultTimeoutPolicy", "1s");
    let bad = with_retry(
        bad,
        "r",
        spec::Retry {
            policy: "sometimes".into(),
            ..Default::default()
        },
    );
    let bad = with_breaker(bad, "cb", "((");
    let target = spec::AppTarget {
        timeout: "DefaultTimeoutPolicy".into(),
        retry: "r".into(),
        ..Default::default()
    };
    let bad = with_app(bad, "app", target);
    let (resiliency, problems) = Resiliency::build([&bad], "me");
    assert_eq!(problems.len(), 3);
    assert!(problems.iter().all(|problem| {
        problem.error && problem.text.starts_with("Could not read resiliency policy bad: ")
    }));
    assert!(
        problems[1]
            .text
            .contains("unexpected back off policy type: sometimes")
    );
    let effects: Vec<&str> = problems.iter().map(|problem| problem.effect.as_str()).collect();
    assert_eq!(
        effects,
        [
            "the timeout \"t\" does not apply; no target names it",
            "the retry policy \"r\" does not apply to apps.app",
            "the circuit breaker \"cb\" does not apply; no target names it",
        ]
    );
    let app = resiliency.app("app");
    let policy = app.policy.unwrap();
    assert!(app.has_target && policy.retry().is_none());
    assert_eq!(policy.timeout(), Some(Duration::from_secs(1)));
    assert!(resiliency.loaded().is_empty());
}

#[test]
fn wrong_type_disables_only_its_policy() {
    let yaml = "kind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    timeouts:\n      short: 1s\n      \
                odd: [1]\n    retries:\n      few:\n        maxRetries: some\n        duration: soon\n      \
                two: {maxRetries: 2}\n    circuitBreakers: none\n  targets:\n    apps:\n      one: {timeout: short, retry: \
                few, circuitBreaker: cb}\n      two: {timeout: odd, retry: two}\n";
    let docs = outrigger_resources::load::text(yaml, "me").unwrap().resiliency;
    let (resiliency, problems) = Resiliency::build(&docs, "me");
    let told: Vec<_> = problems
        .iter()
        .map(|problem| (problem.place.line, problem.to_string()))
        .collect();
    let lines: Vec<usize> = told.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [8, 11, 14, 12], "{told:#?}");
    for ((_, text), part) in told.iter().zip([
        "the timeout \"odd\" does not apply to apps.two",
        "the retry policy \"few\" does not apply to apps.one",
        "nothing that spec.policies.circuitBreakers says applies",
        "the retry policy \"few\" does not apply to apps.one",
    ]) {
        assert!(text.ends_with(part), "{text}");
    }
    let one = resiliency.app("one").policy.unwrap();
    assert_eq!(one.timeout(), Some(Duration::from_secs(1)));
    assert!(
        one.retry().is_none(),
        "not with defaults in place of wrong values"
    );
    let two = resiliency.app("two").policy.unwrap();
    assert_eq!((two.timeout(), retries(&two)), (None, Some(2)));
}

#[test]
fn names_replacement_of_bad_policy() {
    let bad_retry = spec::Retry {
        duration: "soon".into(),
        ..Default::default()
    };
    let first = with_timeout(doc("first"), "t", "1s");
    let second = with_timeout(doc("second"), "t", "soon");
    let second = with_timeout(second, "DefaultTimeoutPolicy", "soon");
    let second = with_retry(second, Builtin::ServiceRetries.name(), bad_retry);
    let (_, problems) = Resiliency::build([&first, &second], "me");
    let effects: Vec<&str> = problems.iter().map(|problem| problem.effect.as_str()).collect();
    assert_eq!(
        effects,
        [
            "the timeout \"DefaultTimeoutPolicy\" does not apply to targets without an entry",
            "the timeout \"t\" of another document applies",
            "the built-in retry policy applies",
        ]
    );
}

#[test]
fn actor_breakers_require_scope() {
    let mut doc = with_breaker(doc("r"), "cb", "");
    for (kind, scope) in [("None", ""), ("Odd", "cluster")] {
        let target = spec::ActorTarget {
            circuit_breaker: "cb".into(),
            circuit_breaker_scope: scope.into(),
            ..Default::default()
        };
        doc.targets.actors.insert(kind.into(), target);
    }
    let (resiliency, problems) = Resiliency::build([&doc], "me");
    let texts: Vec<&str> = problems.iter().map(|problem| problem.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "Could not read resiliency policy r: actor circuit breakers must include scope",
            r#"Could not read resiliency policy r: unknown circuit breaker scope "cluster""#,
        ]
    );
    assert!(resiliency.actor("None").has_target && resiliency.actor("None").before_lock.is_none());
    assert_eq!(problems[0].effect, "actors.None has no circuit breaker");
}

#[test]
fn policies_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Resiliency>();
    shared::<Policy>();
}

#[test]
fn waiting_policy_retries_uncounted() {
    let ms = Duration::from_millis;
    let policy = Policy::waiting("outbox", ms(10), ms(100), ms(1000));
    assert!(policy.is_waiting() && policy.labels().is_none());
    let start = Instant::now();
    let mut run = policy.start(Key::NONE, start);
    let (mut now, mut pauses) = (start, Vec::new());
    loop {
        run.before(now).unwrap();
        let Some(pause) = run.after(Outcome::Failure { code: None }, now) else {
            break;
        };
        pauses.push(pause);
        now += pause;
    }
    assert!(
        pauses[0] <= ms(15) && pauses.iter().all(|pause| *pause <= ms(150)),
        "{pauses:?}"
    );
    assert!(
        now - start > ms(700) && now - start <= ms(1000),
        "{:?}",
        now - start
    );
}

#[test]
fn reports_undefined_policy_with_hint() {
    let target = |timeout: &str, retry: &str| spec::AppTarget {
        timeout: timeout.into(),
        retry: retry.into(),
        ..Default::default()
    };
    let one = with_app(doc("one"), "a", target("quick", "pubsubRetyr"));
    let other = with_retry(doc("other"), "pubsubRetry", spec::Retry::default());
    let other = with_app(with_timeout(other, "quick", "1s"), "b", target("", "pubsubRetry"));
    let problems = undefined([&one, &other], "me");
    assert_eq!(
        problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "Resiliency policy one: no retry policy is named \"pubsubRetyr\"; did you mean pubsubRetry? \
             calls of the target go without it"
        ],
    );
    assert!(problems[0].error);
    assert_eq!(undefined([&other], "me"), []);
}
