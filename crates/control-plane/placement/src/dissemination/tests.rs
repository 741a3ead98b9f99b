mod fleet;
mod simulation;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(8);
const WINDOW: Duration = Duration::from_millis(100);

fn rules(handover: bool) -> Rules {
    Rules {
        timeout: TIMEOUT,
        window: WINDOW,
        replication_factor: 100,
        handover,
    }
}

fn host(name: &str, entities: &[&str]) -> Arc<Host> {
    Arc::new(Host {
        name: name.to_owned(),
        id: "app".to_owned(),
        namespace: "ns".to_owned(),
        entities: entities.iter().map(|&entity| entity.to_owned()).collect(),
        ..Host::default()
    })
}

fn order(to: StreamId, phase: Phase, version: u64) -> Effect {
    Effect::Order {
        to,
        phase,
        version,
        handover: false,
    }
}

fn publish(version: u64) -> Effect {
    Effect::Publish {
        version,
        handover: false,
    }
}

fn answer(phase: Phase, version: u64) -> Message {
    Message::Answer { phase, version }
}

/// A namespace with its clock.
struct Scene {
    namespace: Namespace,
    now: Time,
}

impl Scene {
    fn new() -> Self {
        Self {
            namespace: Namespace::new(rules(true), Time::ZERO),
            now: Duration::from_secs(100),
        }
    }

    fn join(&mut self, stream: StreamId, entities: &[&str]) -> Vec<Effect> {
        let host = host(&format!("h{stream}"), entities);
        self.namespace.join(self.now, stream, host);
        self.namespace.effects()
    }

    fn say(&mut self, stream: StreamId, message: Message) -> Vec<Effect> {
        self.namespace.message(self.now, stream, message);
        self.namespace.effects()
    }

    fn leave(&mut self, stream: StreamId) -> Vec<Effect> {
        self.namespace.leave(self.now, stream);
        self.namespace.effects()
    }

    fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.namespace.wake(self.now);
        self.namespace.effects()
    }

    /// All members answer until no order is left.
    fn settle(&mut self, mut effects: Vec<Effect>) {
        loop {
            let mut next = Vec::new();
            for effect in effects {
                if let Effect::Order {
                    to, phase, version, ..
                } = effect
                {
                    next.extend(self.say(to, answer(phase, version)));
                }
            }
            if next.is_empty() {
                match self.namespace.wake_at() {
                    None => return,
                    Some(at) => next = self.pass(at.saturating_sub(self.now)),
                }
            }
            effects = next;
        }
    }

    fn names(&self) -> Vec<&str> {
        self.namespace.hosts().map(|host| host.name.as_str()).collect()
    }
}

#[test]
fn phases_advance_when_all_answered() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    assert_eq!(
        scene.join(2, &["t"]),
        [order(1, Phase::Lock, 2), order(2, Phase::Lock, 2)]
    );
    assert_eq!(scene.say(1, answer(Phase::Lock, 2)), []);
    assert_eq!(
        scene.say(2, answer(Phase::Lock, 2)),
        [publish(2), order(1, Phase::Update, 2), order(2, Phase::Update, 2)]
    );
    assert_eq!(scene.say(2, answer(Phase::Update, 2)), []);
    assert_eq!(
        scene.say(1, answer(Phase::Update, 2)),
        [order(1, Phase::Unlock, 2), order(2, Phase::Unlock, 2)]
    );
    assert_eq!(scene.say(1, answer(Phase::Unlock, 2)), []);
    let took = Duration::ZERO;
    assert_eq!(
        scene.say(2, answer(Phase::Unlock, 2)),
        [Effect::Finished { took }]
    );
    assert_eq!(scene.namespace.wake_at(), None);
}

#[test]
fn new_leader_waits_for_hosts() {
    let mut scene = Scene::new();
    let settled = scene.now + SETTLE;
    scene.namespace = Namespace::new(rules(true), settled);
    assert_eq!(scene.join(1, &[]), []);
    assert_eq!(scene.namespace.wake_at(), Some(settled));
    assert_eq!(scene.join(2, &["t"]), []);
    scene.now += SETTLE / 2;
    assert_eq!(scene.join(3, &["t"]), []);
    let effects = scene.pass(SETTLE / 2);
    assert_eq!(effects.len(), 3, "one dissemination for all: {effects:?}");
    // No dissemination without actors either.
    scene.namespace = Namespace::new(rules(true), scene.now + SETTLE);
    assert_eq!(scene.join(4, &[]), []);
    assert_eq!(scene.pass(SETTLE).len(), 1 + 3);
    assert_eq!(scene.namespace.wake_at(), None);
    assert_eq!(scene.namespace.version(), 0);
}

#[test]
fn ignores_answers_to_other_phases() {
    let mut scene = Scene::new();
    assert_eq!(scene.join(1, &["t"]), [order(1, Phase::Lock, 1)]);
    for message in [
        answer(Phase::Update, 1),
        answer(Phase::Unlock, 1),
        answer(Phase::Lock, 0),
        answer(Phase::Lock, 2),
    ] {
        assert_eq!(scene.say(1, message), []);
    }
    assert_eq!(scene.say(7, answer(Phase::Lock, 1)), [], "unknown stream");
    assert!(!scene.say(1, answer(Phase::Lock, 1)).is_empty());
}

#[test]
fn hosts_without_actors_cause_no_dissemination() {
    let mut scene = Scene::new();
    let alone =
        |to, version| [Phase::Lock, Phase::Update, Phase::Unlock].map(|phase| order(to, phase, version));
    let published = [publish(0)];
    assert_eq!(scene.join(1, &[]), [&published[..], &alone(1, 0)].concat());
    assert_eq!(scene.join(2, &[]), alone(2, 0), "published already");
    for phase in [Phase::Lock, Phase::Update, Phase::Unlock] {
        assert_eq!(scene.say(1, answer(phase, 0)), []);
    }
    assert_eq!(scene.say(1, Message::Report(host("h1", &[]))), alone(1, 0));
    assert_eq!(scene.leave(1), []);
    assert_eq!(scene.namespace.version(), 0);
}

#[test]
fn treats_old_hosts_reports_as_answers() {
    let mut scene = Scene::new();
    assert_eq!(scene.join(1, &["t"]), [order(1, Phase::Lock, 1)]);
    let say = || Message::ReportOrAnswer(host("h1", &["t"]));
    assert_eq!(scene.say(1, say()), [publish(1), order(1, Phase::Update, 1)]);
    assert_eq!(scene.say(1, say()), [order(1, Phase::Unlock, 1)]);
    assert_eq!(scene.say(1, say()).len(), 1, "it has ended");
    assert_eq!(scene.say(1, say()), [], "a report that changes nothing");
    scene.now += WINDOW;
    let other = Message::ReportOrAnswer(host("h1", &["t", "u"]));
    assert_eq!(scene.say(1, other), [order(1, Phase::Lock, 2)]);
}

#[test]
fn leave_during_lock_joins_dissemination() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    scene.join(2, &["t"]);
    assert_eq!(scene.join(3, &["t"]), []);
    assert_eq!(scene.leave(2), []);
    let effects = scene.say(1, answer(Phase::Lock, 2));
    assert_eq!(effects[0], publish(2));
    assert_eq!(scene.names(), ["h1"]);
    scene.settle(effects);
    assert_eq!(scene.names(), ["h1", "h3"]);
    assert_eq!(scene.namespace.version(), 3);
}

#[test]
fn hands_over_if_all_hosts_can() {
    let can = |name: &str, entities: &[&str]| {
        let host = Host::clone(&host(name, entities));
        Arc::new(Host {
            hands_over: true,
            ..host
        })
    };
    let handed = |effects: &[Effect]| {
        let of = |effect: &Effect| match effect {
            Effect::Order { handover, .. } | Effect::Publish { handover, .. } => Some(*handover),
            _ => None,
        };
        let mut all: Vec<_> = effects.iter().filter_map(of).collect();
        all.dedup();
        assert_eq!(all.len(), 1, "{effects:?}");
        all[0]
    };
    let mut scene = Scene::new();
    scene.namespace.join(scene.now, 1, can("h1", &["t"]));
    let effects = scene.namespace.effects();
    assert!(handed(&effects));
    scene.settle(effects);
    scene.now += WINDOW;
    scene.namespace.join(scene.now, 2, can("h2", &["t"]));
    let effects = scene.namespace.effects();
    assert!(handed(&effects));
    scene.settle(effects);
    // A host that leaves on purpose is named with the table.
    scene.now += WINDOW;
    let effects = scene.say(1, Message::Report(can("h1", &[])));
    assert!(handed(&effects));
    scene.say(1, answer(Phase::Lock, 3));
    let effects = scene.say(2, answer(Phase::Lock, 3));
    assert!(handed(&effects));
    assert_eq!(scene.namespace.leaving().collect::<Vec<_>>(), ["h1"]);
    scene.settle(effects);
    // A host without handover stops all, with or without actors.
    scene.now += WINDOW;
    let alone = scene.join(3, &[]);
    assert!(
        alone
            .iter()
            .skip(1)
            .all(|effect| !handed(std::slice::from_ref(effect)))
    );
    let effects = scene.say(2, Message::Report(can("h2", &["t", "u"])));
    assert!(!handed(&effects));
    scene.settle(effects);
    assert_eq!(scene.namespace.leaving().count(), 0);
    let mut off = Namespace::new(rules(false), Time::ZERO);
    off.join(scene.now, 1, can("h1", &["t"]));
    assert!(!handed(&off.effects()));
}

#[test]
fn batches_later_changes() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    assert_eq!(effects, [order(1, Phase::Lock, 1)]);
    scene.say(1, answer(Phase::Lock, 1));
    for stream in 2..100 {
        assert_eq!(scene.join(stream, &["t"]), [], "it waits");
    }
    assert_eq!(scene.join(100, &[]), [], "it must not call by the old table now");
    assert_eq!(scene.say(1, Message::Report(host("h1", &["u"]))), []);
    assert_eq!(scene.leave(2), []);
    scene.say(1, answer(Phase::Update, 1));
    let effects = scene.say(1, answer(Phase::Unlock, 1));
    assert_eq!(
        effects.len(),
        1 + 3,
        "dissemination done, and the host without actors has the table"
    );
    let effects = scene.pass(WINDOW);
    assert_eq!(effects.len(), 1 + 97 + 1);
    scene.settle(effects);
    assert_eq!(
        scene.namespace.version(),
        1 + 97 + 1,
        "one dissemination; each report counts"
    );
}

#[test]
fn each_changing_report_is_a_version() {
    let mut scene = Scene::new();
    for stream in 1..=3 {
        scene.join(stream, &[]);
    }
    let effects = scene.say(1, Message::Report(host("h1", &["t"])));
    assert_eq!(effects[0], order(1, Phase::Lock, 1));
    for stream in 2..=3 {
        let report = || Message::Report(host(&format!("h{stream}"), &["t"]));
        assert_eq!(scene.say(stream, report()), []);
        assert_eq!(scene.say(stream, report()), [], "nothing new");
    }
    scene.settle(effects);
    assert_eq!(scene.namespace.version(), 3);
}

#[test]
fn window_batches_changes_after_dissemination() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    for stream in 2..10 {
        assert_eq!(scene.join(stream, &["t"]), []);
        scene.now += WINDOW / 20;
    }
    assert_eq!(scene.leave(2), []);
    assert_eq!(scene.pass(WINDOW).len(), 8);
}

#[test]
fn next_dissemination_starts_without_window() {
    let mut scene = Scene::new();
    let rules = Rules {
        window: Duration::ZERO,
        ..rules(false)
    };
    scene.namespace = Namespace::new(rules, Time::ZERO);
    scene.join(1, &["t"]);
    for stream in [2, 3] {
        assert_eq!(scene.join(stream, &["t"]), []);
    }
    for phase in [Phase::Lock, Phase::Update] {
        scene.say(1, answer(phase, 1));
    }
    let effects = scene.say(1, answer(Phase::Unlock, 1));
    let [_finished, orders @ ..] = &effects[..] else {
        panic!("it has ended");
    };
    assert_eq!(orders, [1, 2, 3].map(|to| order(to, Phase::Lock, 3)));
}

#[test]
fn drops_silent_host_and_continues() {
    for silent_in in [Phase::Lock, Phase::Update, Phase::Unlock] {
        let mut scene = Scene::new();
        let effects = scene.join(1, &["t"]);
        scene.settle(effects);
        scene.now += WINDOW;
        scene.join(2, &["t"]);
        for phase in [Phase::Lock, Phase::Update, Phase::Unlock] {
            if phase == silent_in {
                scene.say(1, answer(phase, 2));
                break;
            }
            scene.say(1, answer(phase, 2));
            scene.say(2, answer(phase, 2));
        }
        assert_eq!(scene.pass(TIMEOUT - Duration::from_millis(1)), []);
        let effects = scene.pass(Duration::from_millis(1));
        assert_eq!(
            effects[0],
            Effect::Expire {
                stream: 2,
                version: 2
            }
        );
        assert!(effects.len() > 1, "the other continues at once: {effects:?}");
        scene.settle(effects);
        assert_eq!(scene.names(), ["h1"]);
        let version = if silent_in == Phase::Lock { 2 } else { 3 };
        assert_eq!(scene.namespace.version(), version, "{silent_in:?}");
    }
}

#[test]
fn timeout_counts_only_own_delay() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    scene.join(2, &["t"]);
    scene.say(1, answer(Phase::Lock, 2));
    scene.now += TIMEOUT - Duration::from_secs(1);
    scene.say(2, answer(Phase::Lock, 2));
    // The second has one second left, the first its full time.
    assert_eq!(scene.pass(Duration::from_millis(999)), []);
    let expired = Effect::Expire {
        stream: 2,
        version: 2,
    };
    assert_eq!(scene.pass(Duration::from_millis(1)), [expired]);
    assert_eq!(scene.pass(TIMEOUT - Duration::from_millis(1001)), []);
    assert_eq!(
        scene.say(1, answer(Phase::Update, 2)),
        [order(1, Phase::Unlock, 2)]
    );
    // It used nearly all of its time itself.
    let expired = Effect::Expire {
        stream: 1,
        version: 2,
    };
    assert_eq!(scene.pass(Duration::from_millis(1))[0], expired);
}

#[test]
fn last_silent_host_empties_namespace() {
    let mut scene = Scene::new();
    scene.join(1, &["t"]);
    let effects = scene.pass(TIMEOUT);
    assert_eq!(
        effects[0],
        Effect::Expire {
            stream: 1,
            version: 1
        }
    );
    assert!(scene.namespace.is_empty());
    assert_eq!(scene.namespace.wake_at(), None);
}

#[test]
fn late_joiner_waits_for_next_dissemination() {
    let mut scene = Scene::new();
    scene.join(1, &["t"]);
    scene.now += TIMEOUT / 4;
    assert_eq!(scene.join(2, &["t"]), []);
    scene.now += TIMEOUT;
    let effects = scene.pass(Duration::ZERO);
    assert_eq!(
        effects[0],
        Effect::Expire {
            stream: 1,
            version: 1
        }
    );
    let effects = scene.pass(WINDOW);
    assert_eq!(effects, [order(2, Phase::Lock, 2)]);
}

#[test]
fn drops_leaving_host_with_next_table() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    let effects = scene.join(2, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    assert_eq!(scene.leave(1), [order(2, Phase::Lock, 3)]);
    assert_eq!(scene.names(), ["h2"]);
    assert!(!scene.namespace.is_empty());
    scene.leave(2);
    assert!(scene.namespace.is_empty());
}

#[test]
fn host_without_types_leaves_table() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += WINDOW;
    assert_eq!(
        scene.say(1, Message::Report(host("h1", &[]))),
        [order(1, Phase::Lock, 2)]
    );
    assert_eq!(scene.names(), [""; 0]);
}

/// Hosts before 1.17 answer every order with their report, and may do so before a new leader asks.
#[test]
fn counts_answers_before_the_order() {
    for answers in [2, 3] {
        let mut scene = Scene::new();
        scene.namespace = Namespace::new(rules(true), scene.now + Duration::from_secs(1));
        assert_eq!(scene.join(1, &["a"]), []);
        for _ in 0..answers {
            assert_eq!(scene.say(1, Message::ReportOrAnswer(host("h1", &["a"]))), []);
        }
        scene.pass(Duration::from_secs(1));
        assert_eq!(scene.namespace.running.is_none(), answers == 3);
    }
    // Early answers count per host, for the phases in order.
    let mut scene = Scene::new();
    scene.namespace = Namespace::new(rules(true), scene.now + Duration::from_secs(1));
    for stream in [1, 2] {
        scene.join(stream, &["a"]);
    }
    for _ in 0..3 {
        scene.say(1, Message::ReportOrAnswer(host("h1", &["a"])));
    }
    scene.pass(Duration::from_secs(1));
    let version = scene.namespace.version;
    for phase in [Phase::Lock, Phase::Update, Phase::Unlock] {
        assert!(scene.namespace.running.is_some(), "{phase:?}");
        scene.say(2, answer(phase, version));
    }
    assert!(scene.namespace.running.is_none());
}
