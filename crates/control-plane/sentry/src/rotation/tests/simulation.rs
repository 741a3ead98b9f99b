//! A fleet in simulated time: replicas of sentry that crash at any step and race each other, and sidecars
//! that know only their last renewal. Invariant: every valid certificate leads to a root trusted by every
//! live sidecar and every reader of the published bundle.

use std::collections::BTreeSet;

use outrigger_identity::pem;
use time::ext::NumericalDuration;

use super::super::record::{anchor, chain_life};
use super::super::*;
use super::{made, rotation, start};
use crate::x509;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
/// Lifetime of certificates and tolerated clock skew, as in a real fleet.
const TTL: Duration = Duration::hours(24);
const SKEW: Duration = Duration::minutes(15);
/// More than two rotations.
const END: Duration = Duration::days(2 * 365);
const SIDECARS: usize = 6;

/// A root certificate in DER.
type Root = Vec<u8>;

/// A small random number generator (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_in(&mut self, parts: u64) -> bool {
        self.below(parts) == 0
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        most * (self.below(1000) as f64 / 1000.0)
    }
}

/// The state that a replica signs with and hands out.
#[derive(Clone)]
struct InUse {
    contents: Contents,
    signs: Root,
    /// Root of the previous CA and its expiry.
    before: Option<(Root, OffsetDateTime)>,
    bundle: BTreeSet<Root>,
    /// Version of the store it was loaded from, and the time until which a reload has no effect.
    version: u64,
    idle_until: OffsetDateTime,
}

/// The state between read and write.
struct Draft {
    version: u64,
    map: u64,
    contents: Contents,
    changed: Vec<File>,
    idle_until: OffsetDateTime,
}

enum State {
    Down,
    Idle,
    /// Has read; will write the draft, then the ConfigMap.
    Writing(Draft),
    /// Has written; will write the ConfigMap.
    Publishing(Draft),
}

struct Replica {
    state: State,
    in_use: Option<InUse>,
    at: OffsetDateTime,
}

struct Sidecar {
    leaf: Root,
    /// Expiry of its certificate.
    until: OffsetDateTime,
    bundle: BTreeSet<Root>,
    renews: OffsetDateTime,
}

struct World {
    chance: Chance,
    rotation: Rotation,
    now: OffsetDateTime,
    /// Local files, written one by one, instead of a Secret, which is written atomically.
    files: bool,
    store: Contents,
    version: u64,
    map: BTreeSet<Root>,
    map_version: u64,
    replicas: Vec<Replica>,
    sidecars: Vec<Sidecar>,
    switches: usize,
    crashes: usize,
}

fn bundle(contents: &Contents) -> BTreeSet<Root> {
    let roots = pem::parse_certificates(contents.get(File::Root).unwrap()).unwrap();
    roots.iter().map(|root| root.to_vec()).collect()
}

fn in_use(contents: Contents, version: u64, idle_until: OffsetDateTime, now: OffsetDateTime) -> InUse {
    let get = |file| contents.get(file).unwrap().to_vec();
    let material = x509::Pem {
        root: get(File::Root),
        issuer: get(File::Issuer),
        key: get(File::IssuerKey),
    };
    x509::load_at(&material, now).unwrap_or_else(|fault| panic!("{}", fault.problem));
    let signs = anchor(&material.root, &material.issuer).unwrap().to_vec();
    let before = previous(&contents).map(|before| {
        let root = anchor(&before.root, &before.issuer).unwrap().to_vec();
        (root, chain_life(&before.root, &before.issuer).unwrap().until)
    });
    let bundle = bundle(&contents);
    InUse {
        contents,
        signs,
        before,
        bundle,
        version,
        idle_until,
    }
}

impl World {
    fn new(seed: u64, replicas: usize, files: bool) -> Self {
        let rotation = rotation(RotationMode::Own, Terms::new(HOUR * 24, HOUR / 4));
        let mut chance = Chance(seed);
        // A CA rotated late has the shortest overlaps.
        let left = rotation.terms.step * 5 + chance.up_to(rotation.terms.step * 5);
        let age = if (seed / 3).is_multiple_of(2) {
            Duration::ZERO
        } else {
            365.days() - left
        };
        let store = made(&rotation, start() - age);
        let map = bundle(&store);
        let first = in_use(store.clone(), 0, start(), start());
        let replica = |chance: &mut Chance| Replica {
            state: State::Idle,
            in_use: Some(first.clone()),
            at: start() + chance.up_to(Duration::HOUR),
        };
        let replicas = (0..replicas).map(|_| replica(&mut chance)).collect();
        let sidecar = |chance: &mut Chance| Sidecar {
            leaf: first.signs.clone(),
            until: start() + TTL,
            bundle: first.bundle.clone(),
            renews: start() + chance.up_to(TTL / 2),
        };
        let sidecars = (0..SIDECARS).map(|_| sidecar(&mut chance)).collect();
        Self {
            chance,
            rotation,
            now: start(),
            files,
            store,
            version: 0,
            map,
            map_version: 0,
            replicas,
            sidecars,
            switches: 0,
            crashes: 0,
        }
    }

    fn run(&mut self) {
        while self.now < start() + END {
            let replica = (0..self.replicas.len())
                .min_by_key(|index| self.replicas[*index].at)
                .unwrap();
            let sidecar = (0..SIDECARS)
                .min_by_key(|index| self.sidecars[*index].renews)
                .unwrap();
            let (at, renews) = (self.replicas[replica].at, self.sidecars[sidecar].renews);
            self.now = at.min(renews);
            let before = (self.version, self.map_version);
            if at <= renews {
                self.step(replica);
            } else {
                self.renew(sidecar);
            }
            // Time alone only ends validity.
            if at > renews || before != (self.version, self.map_version) {
                self.check();
            }
        }
    }

    /// The next action of a replica; a crash may precede it.
    fn step(&mut self, index: usize) {
        let state = std::mem::replace(&mut self.replicas[index].state, State::Idle);
        let busy = matches!(state, State::Writing(_) | State::Publishing(_));
        if self.chance.one_in(if busy { 4 } else { 400 }) && !matches!(state, State::Down) {
            self.crash(index, &state);
            return;
        }
        let soon = Duration::milliseconds(1 + self.chance.below(200) as i64);
        let (next, pause) = match state {
            State::Down => self.read(index, soon),
            State::Idle => self.read(index, soon),
            State::Writing(draft) => self.write(index, draft, soon),
            State::Publishing(draft) => self.publish(index, draft, soon),
        };
        let replica = &mut self.replicas[index];
        (replica.state, replica.at) = (next, self.now + pause);
    }

    /// Stops for a while and drops work in progress.
    fn crash(&mut self, index: usize, state: &State) {
        self.crashes += 1;
        if let (State::Writing(draft), true) = (state, self.files) {
            let written = self.chance.below(1 + draft.changed.len() as u64) as usize;
            self.put(draft, written);
        }
        let longest = if self.chance.one_in(5) {
            20.days()
        } else {
            Duration::HOUR
        };
        let replica = &mut self.replicas[index];
        (replica.state, replica.in_use) = (State::Down, None);
        replica.at = self.now + self.chance.up_to(longest);
    }

    fn poll_interval(&mut self) -> Duration {
        let poll_interval = Duration::try_from(self.rotation.terms.poll_interval()).unwrap();
        // An unresponsive API, or a suspended process.
        if self.chance.one_in(20) {
            self.chance.up_to(self.rotation.terms.step)
        } else {
            poll_interval
        }
    }

    fn read(&mut self, index: usize, soon: Duration) -> (State, Duration) {
        let before = self.replicas[index].in_use.as_ref();
        let settled = before.is_some_and(|before| before.contents == self.store)
            && (self.files || self.map == before.unwrap().bundle);
        if let Some(before) = before
            && settled
            && before.version == self.version
            && self.now < before.idle_until
        {
            return (State::Idle, self.poll_interval());
        }
        let mut contents = self.store.clone();
        let advanced = self.rotation.advance(&mut contents, self.now, settled).unwrap();
        if advanced.step == Some(RotationStep::Switch) {
            self.switches += 1;
        }
        let idle_until = match advanced.status {
            Status::On {
                next: (RotationStep::Confirm, _),
                ..
            } => self.now,
            Status::On { next: (_, due), .. } => due,
            other => panic!("{other:?}"),
        };
        let draft = Draft {
            version: self.version,
            map: self.map_version,
            contents,
            changed: advanced.changed,
            idle_until,
        };
        (State::Writing(draft), soon)
    }

    /// The first `count` of the changed files.
    fn put(&mut self, draft: &Draft, count: usize) {
        for file in &draft.changed[..count] {
            self.store.set(*file, draft.contents.get(*file).unwrap().to_vec());
            self.version += 1;
        }
        if self.files {
            self.map = bundle(&self.store);
        }
    }

    fn write(&mut self, index: usize, mut draft: Draft, soon: Duration) -> (State, Duration) {
        if !draft.changed.is_empty() {
            if draft.version != self.version {
                // Another replica was faster: read again.
                return (State::Idle, soon);
            }
            self.put(&draft, draft.changed.len());
            draft.version = self.version;
        }
        if self.files {
            self.take(index, &draft);
            return (
                State::Idle,
                if draft.changed.is_empty() {
                    self.poll_interval()
                } else {
                    soon
                },
            );
        }
        (State::Publishing(draft), soon)
    }

    fn publish(&mut self, index: usize, draft: Draft, soon: Duration) -> (State, Duration) {
        let wanted = bundle(&draft.contents);
        if wanted != self.map {
            if draft.map != self.map_version {
                return (State::Idle, soon);
            }
            self.map = wanted;
            self.map_version += 1;
        }
        self.take(index, &draft);
        (
            State::Idle,
            if draft.changed.is_empty() {
                self.poll_interval()
            } else {
                soon
            },
        )
    }

    fn take(&mut self, index: usize, draft: &Draft) {
        let taken = in_use(draft.contents.clone(), draft.version, draft.idle_until, self.now);
        self.replicas[index].in_use = Some(taken);
    }

    fn renew(&mut self, index: usize) {
        let up: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|replica| replica.in_use.as_ref())
            .collect();
        let sentry = (!up.is_empty()).then(|| up[self.chance.below(up.len() as u64) as usize].clone());
        // Its own certificate is up to half a lifetime old.
        let shown_since = self.now - self.chance.up_to(TTL / 2);
        let terms = self.rotation.terms;
        let sidecar = &mut self.sidecars[index];
        let restarts = self.chance.one_in(500) || sidecar.until <= self.now;
        let trusted = if restarts { &self.map } else { &sidecar.bundle };
        let Some(sentry) = sentry else {
            sidecar.renews = self.now + 10.minutes();
            return;
        };
        let shows = match &sentry.before {
            Some((root, until)) if terms.shows_previous(*until, shown_since) => root,
            _ => &sentry.signs,
        };
        assert!(
            trusted.contains(shows),
            "a sidecar does not believe sentry at {}",
            self.now
        );
        *sidecar = Sidecar {
            leaf: sentry.signs,
            until: self.now + TTL,
            bundle: sentry.bundle,
            renews: self.now + TTL / 2 + self.chance.up_to(Duration::MINUTE),
        };
    }

    fn check(&self) {
        let live = || self.sidecars.iter().filter(|sidecar| self.now < sidecar.until);
        // By a slow clock a certificate is valid for longer.
        let valid = self
            .sidecars
            .iter()
            .filter(|sidecar| self.now < sidecar.until + SKEW);
        for shown in valid {
            assert!(
                self.map.contains(&shown.leaf),
                "nobody in the control plane believes it at {}",
                self.now
            );
            for sidecar in live() {
                assert!(
                    sidecar.bundle.contains(&shown.leaf),
                    "a peer does not believe it at {}",
                    self.now
                );
            }
        }
    }
}

#[test]
fn every_valid_certificate_is_always_trusted() {
    for seed in 0..18 {
        let (replicas, files) = [(1, true), (2, false), (3, false)][seed as usize % 3];
        let mut world = World::new(seed, replicas, files);
        world.run();
        // Some decisions are discarded by replicas that lost the race.
        assert!(world.switches >= 2, "seed {seed}: {} rotations", world.switches);
        assert!(world.crashes >= 1, "seed {seed}: {} crashes", world.crashes);
        assert!(bundle(&world.store).len() <= 2, "seed {seed}");
    }
}
