mod fleet;
mod simulation;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(8);

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

/// A namespace, and the time in it.
struct Scene {
    namespace: Namespace,
    now: Time,
}

impl Scene {
    fn new() -> Self {
        Self {
            namespace: Namespace::new(TIMEOUT, true, Time::ZERO),
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

    /// All answer until nothing is asked of them.
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
fn a_round_goes_from_phase_to_phase_when_all_have_answered() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
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
fn a_new_leader_lets_hosts_come_before_it_begins() {
    let mut scene = Scene::new();
    let settled = scene.now + SETTLE;
    scene.namespace = Namespace::new(TIMEOUT, true, settled);
    assert_eq!(scene.join(1, &[]), []);
    assert_eq!(scene.namespace.wake_at(), Some(settled));
    assert_eq!(scene.join(2, &["t"]), []);
    scene.now += SETTLE / 2;
    assert_eq!(scene.join(3, &["t"]), []);
    let effects = scene.pass(SETTLE / 2);
    assert_eq!(effects.len(), 3, "one round for all: {effects:?}");
    // Without actors there is no round either.
    scene.namespace = Namespace::new(TIMEOUT, true, scene.now + SETTLE);
    assert_eq!(scene.join(4, &[]), []);
    assert_eq!(scene.pass(SETTLE).len(), 1 + 3);
    assert_eq!(scene.namespace.wake_at(), None);
    assert_eq!(scene.namespace.version(), 0);
}

#[test]
fn answers_to_another_phase_or_round_do_not_count() {
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
    assert_eq!(scene.say(7, answer(Phase::Lock, 1)), [], "of nobody");
    assert!(!scene.say(1, answer(Phase::Lock, 1)).is_empty());
}

#[test]
fn hosts_without_actors_cause_no_round() {
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
fn hosts_before_1_17_answer_with_anything() {
    let mut scene = Scene::new();
    assert_eq!(scene.join(1, &["t"]), [order(1, Phase::Lock, 1)]);
    let say = || Message::ReportOrAnswer(host("h1", &["t"]));
    assert_eq!(scene.say(1, say()), [publish(1), order(1, Phase::Update, 1)]);
    assert_eq!(scene.say(1, say()), [order(1, Phase::Unlock, 1)]);
    assert_eq!(scene.say(1, say()).len(), 1, "it has ended");
    assert_eq!(scene.say(1, say()), [], "a report that changes nothing");
    scene.now += GATHER;
    let other = Message::ReportOrAnswer(host("h1", &["t", "u"]));
    assert_eq!(scene.say(1, other), [order(1, Phase::Lock, 2)]);
}

#[test]
fn who_goes_while_locking_belongs_to_the_round_and_who_comes_to_the_next() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
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
fn actors_are_handed_over_where_all_hosts_can() {
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
    scene.now += GATHER;
    scene.namespace.join(scene.now, 2, can("h2", &["t"]));
    let effects = scene.namespace.effects();
    assert!(handed(&effects));
    scene.settle(effects);
    // One that leaves on purpose is told to all with the table.
    scene.now += GATHER;
    let effects = scene.say(1, Message::Report(can("h1", &[])));
    assert!(handed(&effects));
    scene.say(1, answer(Phase::Lock, 3));
    let effects = scene.say(2, answer(Phase::Lock, 3));
    assert!(handed(&effects));
    assert_eq!(scene.namespace.leaving().collect::<Vec<_>>(), ["h1"]);
    scene.settle(effects);
    // One that cannot stops all, whether it has actors or not.
    scene.now += GATHER;
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
    let mut off = Namespace::new(TIMEOUT, false, Time::ZERO);
    off.join(scene.now, 1, can("h1", &["t"]));
    assert!(!handed(&off.effects()));
}

#[test]
fn what_changes_later_becomes_one_round_after_this_one() {
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
        "the round is over, and the one without actors has the table"
    );
    let effects = scene.pass(GATHER);
    assert_eq!(effects.len(), 1 + 97 + 1);
    scene.settle(effects);
    assert_eq!(
        scene.namespace.version(),
        1 + 97 + 1,
        "one round; each report counts"
    );
}

#[test]
fn each_report_that_changes_something_is_a_version() {
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
fn rounds_are_apart() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    for stream in 2..10 {
        assert_eq!(scene.join(stream, &["t"]), []);
        scene.now += GATHER / 20;
    }
    assert_eq!(scene.pass(GATHER).len(), 9);
}

#[test]
fn who_does_not_answer_is_left_behind_and_the_others_go_on() {
    for silent_in in [Phase::Lock, Phase::Update, Phase::Unlock] {
        let mut scene = Scene::new();
        let effects = scene.join(1, &["t"]);
        scene.settle(effects);
        scene.now += GATHER;
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
        assert!(effects.len() > 1, "the other goes on at once: {effects:?}");
        scene.settle(effects);
        assert_eq!(scene.names(), ["h1"]);
        let rounds = if silent_in == Phase::Lock { 2 } else { 3 };
        assert_eq!(scene.namespace.version(), rounds, "{silent_in:?}");
    }
}

#[test]
fn nobody_is_left_behind_for_the_time_that_another_took() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
    scene.join(2, &["t"]);
    scene.say(1, answer(Phase::Lock, 2));
    scene.now += TIMEOUT - Duration::from_secs(1);
    scene.say(2, answer(Phase::Lock, 2));
    // The second has one second left, the first all of its time.
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
    // It took nearly all of its own time meanwhile.
    let expired = Effect::Expire {
        stream: 1,
        version: 2,
    };
    assert_eq!(scene.pass(Duration::from_millis(1))[0], expired);
}

#[test]
fn the_last_one_that_does_not_answer_leaves_nothing() {
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
fn a_newcomer_late_in_a_round_waits_for_the_next() {
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
    let effects = scene.pass(GATHER);
    assert_eq!(effects, [order(2, Phase::Lock, 2)]);
}

#[test]
fn a_host_that_leaves_is_forgotten_in_a_round_of_the_others() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
    let effects = scene.join(2, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
    assert_eq!(scene.leave(1), [order(2, Phase::Lock, 3)]);
    assert_eq!(scene.names(), ["h2"]);
    assert!(!scene.namespace.is_empty());
    scene.leave(2);
    assert!(scene.namespace.is_empty());
}

#[test]
fn a_host_that_hosts_nothing_any_more_leaves_the_table() {
    let mut scene = Scene::new();
    let effects = scene.join(1, &["t"]);
    scene.settle(effects);
    scene.now += GATHER;
    assert_eq!(
        scene.say(1, Message::Report(host("h1", &[]))),
        [order(1, Phase::Lock, 2)]
    );
    assert_eq!(scene.names(), [""; 0]);
}

/// Hosts of before 1.17 answer with their report, whatever is asked, and may do so before a new leader asks.
#[test]
fn what_is_answered_before_a_new_leader_asks_counts() {
    for answers in [2, 3] {
        let mut scene = Scene::new();
        scene.namespace = Namespace::new(TIMEOUT, true, scene.now + Duration::from_secs(1));
        assert_eq!(scene.join(1, &["a"]), []);
        for _ in 0..answers {
            assert_eq!(scene.say(1, Message::ReportOrAnswer(host("h1", &["a"]))), []);
        }
        scene.pass(Duration::from_secs(1));
        assert_eq!(scene.namespace.running.is_none(), answers == 3);
    }
    // Of each host for the phases in their order, whatever others do.
    let mut scene = Scene::new();
    scene.namespace = Namespace::new(TIMEOUT, true, scene.now + Duration::from_secs(1));
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
