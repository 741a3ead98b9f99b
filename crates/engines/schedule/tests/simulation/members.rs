//! Several schedulers that share a store: they join, leave, crash, freeze, and are cut off from the store, at random. Each
//! does what `scheduler` does on a shared store: an entry bound to a lease, a place once all agree, what it stores bound to
//! that entry. A failure tells its seed; `SIMULATION_SEEDS=from..to` tries others.

mod places;
mod runs;
mod store;
mod world;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use jiff::{SignedDuration, Timestamp};
use outrigger_schedule::engine::{Action, Engine, Host, HostId, Limits, Name, Target, TriggerId, Version};
use outrigger_schedule::job::{Job, Outcome, Progress};
use outrigger_schedule::quorum::{self, Entry, GroupMembers, View};
use outrigger_schedule::shard::Shard;

use crate::world::{APPS, Kind, LIMIT, Tally, target};

/// Seeds that every run of the tests tries.
const SEEDS: Range<u64> = 0..200;
/// Turns of a seed in which anything may happen, each of up to 200 ms.
const TURNS: u32 = 900;
const MEMBERS: usize = 4;
const NAMES: u64 = 16;
/// As in `scheduler`, in milliseconds.
const LEASE: u64 = 20_000;
const KEEP_EVERY: u64 = 5_000;
const MARGIN: u64 = 2_000;
const DRAIN: u64 = 3_000;
/// Until an attempt to write counts as not answered, and from then until the next one.
const CALL: u64 = 5_000;
const RETRY: u64 = 1_000;
/// An app that never answers while anything may happen.
const SILENT: usize = 2;
const LIMITS: Limits = Limits {
    in_flight: LIMIT,
    unstored: 8,
};

/// What a write of progress is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// The entry as it was last written, which is written anew after an attempt without an answer.
    Written,
    /// The member's entry, however often it was written since.
    Entry,
    /// Nothing.
    None,
}

/// What members do; others than [`RULES`] are there to show that the checks notice.
#[derive(Debug, Clone, Copy)]
struct Rules {
    fence: Fence,
    /// Nothing is sent once the lease may have ended, also where nobody has noticed yet.
    looks_at_lease: bool,
    /// Jobs are let go before another entry is written.
    releases: bool,
    /// What was not stored before others had the jobs never is.
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

/// An etcd, in short.
#[derive(Default)]
struct Store {
    revision: u64,
    jobs: BTreeMap<Name, Stored>,
    counters: BTreeMap<Name, Progress>,
    entries: BTreeMap<String, StoredEntry>,
    /// When each ends.
    leases: BTreeMap<u64, u64>,
    /// What became of jobs: `None` is a deletion.
    events: Vec<(u64, Name, Option<Stored>)>,
}

/// An answer of an app that is to be stored: the tick, and how it went.
#[derive(Clone, Copy)]
struct Answered {
    due: Timestamp,
    outcome: Outcome,
}

#[derive(Clone)]
struct Save {
    version: Version,
    /// `None`: the job is over.
    progress: Option<Progress>,
    /// All that it stores.
    answered: Vec<Answered>,
}

/// One attempt to store, on its way.
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
    /// The [`Process::tenure`] that it was sent in.
    tenure: u32,
}

struct Process {
    uid: u64,
    /// How far its clock is off, in milliseconds.
    skew: i64,
    lease: Option<u64>,
    /// Its lease has ended at this time at the earliest, less the margin.
    until: u64,
    keep_at: u64,
    engine: Engine,
    hosts: Vec<(HostId, usize)>,
    under_way: Vec<UnderWay>,
    /// Its place, and the revision that it has followed jobs to.
    place: Option<(Shard, u64)>,
    phase: Phase,
    fence: Option<Bound>,
    waiting: BTreeMap<Name, Save>,
    /// The latest [`Process::tenure`] of what waits.
    waiting_tenure: u32,
    /// Answers that the engine has been told of, and has said nothing about yet.
    told: HashMap<(Name, u64), Vec<Answered>>,
    /// The attempt whose answer is waited for, and until when.
    asked: Option<(u64, u64)>,
    /// An attempt was not answered: it may arrive yet.
    unanswered: bool,
    /// Nothing is attempted until then.
    retry_at: u64,
    stopping: bool,
    /// How often its engine has forgotten all jobs.
    tenure: u32,
}

#[derive(Default)]
struct Member {
    process: Option<Process>,
    is_cut_off: bool,
    /// The process does nothing until then.
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
    /// Ticks of which any outcome was given.
    answered: HashMap<(Name, u64), BTreeSet<Timestamp>>,
    wrong: Option<String>,
    tally: Tally,
    handovers: usize,
    refused: usize,
}

/// What a clock shows at a moment, in milliseconds, that is that far off.
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

/// Invariant: whatever becomes of members and of what they have on its way to the store, no job that was acknowledged is
/// lost, none comes early, none again after the success of that tick is stored, and none from a member that has lost its
/// place.
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

/// The checks notice members that leave out any one of the rules.
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
            "what one tenure has not stored is stored in the next",
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

/// Invariant: a namespace whose app never answers its herd of due jobs holds up no other one, on any member, also while
/// members join, and one crashes: what was that one's comes once its lease has ended.
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
                    // The app of the herd says nothing.
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
        // Members do not wait for those that never answer longer than for others.
        for (round, change) in ["none", "one joins", "one crashes"].into_iter().enumerate() {
            match change {
                "one joins" => begin(&mut world, 2),
                "one crashes" => world.members[1].process = None,
                _ => {}
            }
            for job in 0..12 {
                world.schedule(&format!("other{round}-{job}").into(), other, Kind::Once(1000), 0);
            }
            // An attempt to store how far jobs are may hang, and its answer get lost: a few times in a row at the most.
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
