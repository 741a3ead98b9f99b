//! Several schedulers that share a store and randomly join, leave, crash, freeze, or lose their connection
//! to the store. Each follows the protocol of `scheduler` on a shared store: an entry bound to a lease, a
//! shard once all agree, and writes bound to that entry. A failure prints its seed;
//! `SIMULATION_SEEDS=from..to` selects others.

mod places;
mod runs;
mod store;
mod world;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};
use outrigger_schedule::engine::{
    self, Action, Engine, Host, HostId, Limits, Name, Target, TriggerId, Version,
};
use outrigger_schedule::job::{Job, Outcome, Progress};
use outrigger_schedule::quorum::{self, Entry, GroupMembers, View};
use outrigger_schedule::shard::Shard;

use crate::world::{APPS, Kind, LIMIT, Tally, target};

/// Seeds of every test run.
const SEEDS: Range<u64> = 0..200;
/// Turns per seed with random faults, each of up to 200 ms.
const TURNS: u32 = 900;
const MEMBERS: usize = 4;
const NAMES: u64 = 16;
/// As in `scheduler`, in milliseconds.
const LEASE: u64 = 20_000;
const KEEP_EVERY: u64 = 5_000;
const MARGIN: u64 = 2_000;
const DRAIN: u64 = 3_000;
/// Timeout of a write, and the pause before the next attempt.
const CALL: u64 = 5_000;
const RETRY: u64 = 1_000;
/// An app that does not respond while faults occur.
const SILENT: usize = 2;
const LIMITS: Limits = Limits {
    in_flight: LIMIT,
    unstored: 8,
};

/// The condition of a progress write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// The entry as last written; it is rewritten after a timed-out attempt.
    Written,
    /// The member's entry, however often it was rewritten.
    Entry,
    /// No condition.
    None,
}

/// Rules that members follow; others than [`RULES`] verify that the checks detect violations.
#[derive(Debug, Clone, Copy)]
struct Rules {
    fence: Fence,
    /// Stops dispatching once the lease may have ended, even before that is noticed.
    looks_at_lease: bool,
    /// Releases jobs before writing another entry.
    releases: bool,
    /// Drops progress that was not stored before another member took over.
    forgets: bool,
}

const RULES: Rules = Rules {
    fence: Fence::Written,
    looks_at_lease: true,
    releases: true,
    forgets: true,
};

struct Random(u64);

#[derive(Clone)]
struct Stored {
    app: usize,
    partition: u64,
    revision: u64,
    ticks: usize,
    job: Job,
}

struct StoredEntry {
    entry: Entry,
    lease: u64,
    created: u64,
    modified: u64,
}

/// A minimal etcd.
#[derive(Default)]
struct Store {
    revision: u64,
    jobs: BTreeMap<Name, Stored>,
    counters: BTreeMap<Name, Progress>,
    entries: BTreeMap<String, StoredEntry>,
    /// Expiry times.
    leases: BTreeMap<u64, u64>,
    /// Changes to jobs; `None` is a deletion.
    events: Vec<(u64, Name, Option<Stored>)>,
}

/// An app's answer to be stored: the tick and its outcome.
#[derive(Clone, Copy)]
struct Answered {
    due: Timestamp,
    outcome: Outcome,
}

#[derive(Clone)]
struct Save {
    version: Version,
    /// `None` if the job is over.
    progress: Option<Progress>,
    /// All answers that this stores.
    answered: Vec<Answered>,
}

/// A write in transit.
#[derive(Clone)]
struct Attempt {
    number: u64,
    member: usize,
    uid: u64,
    fence: Bound,
    arrives: u64,
    batch: Vec<(Name, Save)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Bound {
    tenure: u32,
    created: u64,
    modified: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Write(GroupMembers),
    Look,
    End,
}

enum Phase {
    Looking,
    Holding { until: u64, then: Then },
    Flushing(Then),
}

struct UnderWay {
    host: HostId,
    trigger: TriggerId,
    name: Name,
    version: Version,
    due: Timestamp,
    /// The [`Process::tenure`] in which it was sent.
    tenure: u32,
}

struct Process {
    uid: u64,
    /// Clock error in milliseconds.
    skew: i64,
    lease: Option<u64>,
    /// Earliest end of its lease, minus a margin.
    until: u64,
    keep_at: u64,
    engine: Engine,
    hosts: Vec<(HostId, usize)>,
    under_way: Vec<UnderWay>,
    /// Its shard, and the revision up to which it has followed jobs.
    place: Option<(Shard, u64)>,
    phase: Phase,
    fence: Option<Bound>,
    waiting: BTreeMap<Name, Save>,
    /// The latest [`Process::tenure`] of waiting writes.
    waiting_tenure: u32,
    /// Answers passed to the engine that it has not acted on yet.
    told: HashMap<(Name, u64), Vec<Answered>>,
    /// The attempt in progress and its deadline.
    asked: Option<(u64, u64)>,
    /// An attempt timed out: it may still arrive.
    unanswered: bool,
    /// Time of the next attempt.
    retry_at: u64,
    stopping: bool,
    /// How often its engine was cleared.
    tenure: u32,
}

#[derive(Default)]
struct Member {
    process: Option<Process>,
    is_cut_off: bool,
    /// The process is frozen until then.
    frozen_until: u64,
}

struct World {
    rules: Rules,
    random: Random,
    now: u64,
    store: Store,
    members: Vec<Member>,
    attempts: Vec<Attempt>,
    numbers: u64,
    /// Ticks whose success is stored.
    done: HashMap<(Name, u64), BTreeSet<Timestamp>>,
    /// Ticks with any outcome.
    answered: HashMap<(Name, u64), BTreeSet<Timestamp>>,
    wrong: Option<String>,
    tally: Tally,
    handovers: usize,
    refused: usize,
}

/// A clock with this error in milliseconds.
fn clock(now: u64, skew: i64) -> Timestamp {
    let began: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
    began + SignedDuration::from_millis(i64::try_from(now).unwrap() + skew)
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = text.split_once("..").expect("SIMULATION_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// Invariant: whatever happens to members and to writes in transit, no acknowledged job is lost, none fires
/// early, none fires again after its success is stored, and none is fired by a member that has lost its
/// shard.
#[test]
fn churning_members_lose_no_jobs() {
    let mut total = Tally::default();
    let (mut handovers, mut refused) = (0, 0);
    for seed in seeds() {
        match World::new(seed, RULES).play() {
            Ok(world) => {
                total.add(world.tally);
                handovers += world.handovers;
                refused += world.refused;
            }
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    println!("{handovers} places taken, {refused} writes of former members refused");
    assert!(handovers > 0 && refused > 0, "nothing was tried");
    total.report("core: members that crash, join, leave, freeze and are cut off");
}

/// The checks detect members that violate any one rule.
#[test]
fn checks_detect_rule_violations() {
    let without = [
        (
            "no fence",
            Rules {
                fence: Fence::None,
                ..RULES
            },
        ),
        (
            "a fence that late attempts pass",
            Rules {
                fence: Fence::Entry,
                ..RULES
            },
        ),
        (
            "no look at the lease",
            Rules {
                looks_at_lease: false,
                ..RULES
            },
        ),
        (
            "a later tenure stores writes that an earlier one left",
            Rules {
                forgets: false,
                ..RULES
            },
        ),
        (
            "no letting go",
            Rules {
                releases: false,
                ..RULES
            },
        ),
    ];
    for (what, rules) in without {
        let noticed =
            (0..2000).find_map(|seed| World::new(seed, rules).play().err().map(|wrong| (seed, wrong)));
        let (seed, wrong) = noticed.unwrap_or_else(|| panic!("{what}: not noticed"));
        println!("{what}: seed {seed}: {wrong}");
    }
}

/// Invariant: a namespace whose app does not respond to its burst of due jobs blocks no other namespace on
/// any member, also while members join and one crashes. The crashed member's jobs are delivered once its
/// lease has ended.
#[test]
fn burst_blocks_no_namespace_on_any_member() {
    for seed in 0..20 {
        let mut world = World::new(seed, RULES);
        let herd = SILENT;
        let other = (0..APPS)
            .find(|app| target(*app).namespace() != target(herd).namespace())
            .unwrap();
        let begin = |world: &mut World, at| {
            world.start(at);
            world.connect(at, herd);
            world.connect(at, other);
        };
        let pass = |world: &mut World, millis: u64| {
            for _ in 0..millis / 50 {
                for at in 0..MEMBERS {
                    // The app of the burst does not respond.
                    world.answer(at, Outcome::Success, true);
                }
                world.turn(50);
                assert_eq!(world.wrong, None, "seed {seed}");
            }
        };
        begin(&mut world, 0);
        begin(&mut world, 1);
        pass(&mut world, 2_000);
        for job in 0..200 {
            world.schedule(&format!("herd{job}").into(), herd, Kind::Once(0), 0);
        }
        // Unresponsive apps do not delay membership changes.
        for (round, change) in ["none", "one joins", "one crashes"].into_iter().enumerate() {
            match change {
                "one joins" => begin(&mut world, 2),
                "one crashes" => world.members[1].process = None,
                _ => {}
            }
            for job in 0..12 {
                world.schedule(&format!("other{round}-{job}").into(), other, Kind::Once(1000), 0);
            }
            // A write of progress may hang, and its response may be lost, at most a few times in a row.
            pass(&mut world, LEASE + DRAIN + 4 * CALL);
            let left: Vec<_> = world
                .store
                .jobs
                .keys()
                .filter(|name| name.starts_with("other"))
                .collect();
            assert!(left.is_empty(), "seed {seed}, {change}: {left:?}");
        }
        assert_eq!(world.store.jobs.len(), 200, "the herd waits");
    }
}
