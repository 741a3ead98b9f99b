//! `--migrate` between all kinds of stores: the process is killed at each point, then the same command runs
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_wire::scheduler::v1::Job;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::store::Store;
use super::{ETCD, LIST, POSTGRES, Place, Said, VARIABLE, at_each, set};
use crate::crash::Process;
use crate::running::{Sidecar, app, arguments, due, schedule, start_with, until};
use crate::tally::Tally;

/// More than one batch.
const JOBS: usize = 60;
/// Maximum number of occurrences per point, since jobs of one kind are written in a loop.
const TIMES: usize = 2;
/// The entry of a migration among those of schedulers.
const MIGRATION: &str = "migration";

const TO_SHARED: [&str; 6] = [
    "conflicts looked for",
    "jobs written",
    "lease given back",
    "lease granted",
    "looked for all",
    "store reserved",
];
/// Not reached by a copy, which deletes no ranges.
const NOT_COPIED: [&str; 1] = ["range deleted"];
/// Not reached when reading, which deletes no keys; the tables exist.
const NOT_READ: [&str; 3] = ["keys deleted", "range deleted", "tables made"];
const FROM_SHARED: [&str; 3] = ["lease given back", "lease granted", "store reserved"];
const TO_FILE: [&str; 6] = [
    "before it is committed",
    "committed",
    "file in its place",
    "file made",
    "job written",
    "store made",
];

type Pairs = BTreeMap<String, Vec<u8>>;

enum End {
    Shared(Store),
    /// The folder of an embedded store.
    Embedded(TempDir),
}

impl End {
    fn name(&self) -> String {
        match self {
            Self::Shared(store) => store.name(),
            Self::Embedded(_) => "embedded".to_owned(),
        }
    }

    fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Shared(_) => None,
            Self::Embedded(folder) => Some(folder.path().to_owned()),
        }
    }

    /// All of its complete pairs.
    async fn pairs(&self) -> Pairs {
        let mut pairs = match self {
            Self::Shared(store) => store.pairs().await,
            Self::Embedded(folder) => in_file(&own(folder.path()).join("jobs.db")),
        };
        // Written by a scheduler that was started on it.
        pairs.retain(|key, _| !key.starts_with("dapr/leadership/"));
        pairs
    }
}

/// The folder of a scheduler's files in this data folder.
fn own(folder: &Path) -> PathBuf {
    folder.join("default-dapr-scheduler-server-0")
}

fn in_file(file: &Path) -> Pairs {
    if !file.exists() {
        return Pairs::new();
    }
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut statement = connection
        .prepare("SELECT CAST(key AS TEXT), value FROM pairs")
        .unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    rows.map(Result::unwrap).collect()
}

/// The keys that only one side has, or with different values.
fn differing<'a>(one: &'a Pairs, other: &'a Pairs) -> Vec<&'a String> {
    let of_one = one.iter().filter(|(key, value)| other.get(*key) != Some(value));
    let missing = other.keys().filter(|key| !one.contains_key(*key));
    of_one.map(|(key, _)| key).chain(missing).collect()
}

/// A copy between two stores, with the expected pairs.
struct Way {
    from: End,
    to: End,
    all: Pairs,
}

impl Way {
    /// The output of the command, and whether it succeeded.
    fn migrate(&self, variables: &[(&str, &str)], said: &Said) -> (bool, String) {
        let folder = self
            .from
            .folder()
            .or_else(|| self.to.folder())
            .unwrap_or_default();
        let output = Command::new(env!("CARGO_BIN_EXE_scheduler"))
            .arg(format!("--etcd-data-dir={}", folder.display()))
            .args(["--migrate", &self.from.name(), &self.to.name()])
            .envs(variables.iter().copied())
            .stderr(said.file())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text + &said.text())
    }

    /// Runs the command with this point, then again without it; returns the printed points.
    async fn life(&mut self, point: &str) -> Vec<String> {
        if let End::Embedded(folder) = &mut self.to {
            *folder = tempfile::tempdir().unwrap();
        }
        let said = Said::new();
        let (done, text) = self.migrate(&[(VARIABLE, point)], &said);
        let places = said.places();
        assert!(done || !places.is_empty(), "{text}");
        let copied = self.to.pairs().await;
        let is_part = copied.iter().all(|(key, value)| self.all.get(key) == Some(value));
        assert!(is_part, "the target has pairs that the source lacks");
        let has = |folder: &str| copied.contains_key(&format!("dapr/{folder}/app||ns||app||again"));
        assert_eq!(has("jobs"), has("counters"), "half of a job is copied");
        if point != LIST {
            self.again(copied.len() == self.all.len()).await;
        }
        let (from, to) = (self.from.pairs().await, self.to.pairs().await);
        assert_eq!(
            differing(&from, &self.all),
            Vec::<&String>::new(),
            "the source has changed"
        );
        assert_eq!(
            differing(&to, &self.all),
            Vec::<&String>::new(),
            "of {point}: the target differs"
        );
        if let End::Shared(store) = &self.to {
            store.clear().await;
        }
        places
    }

    /// Runs the command again after the lease lifetime. `has_all` means that the killed one had copied
    /// everything.
    async fn again(&self, has_all: bool) {
        for end in [&self.from, &self.to] {
            if let End::Shared(store) = end {
                store.lease_ends(MIGRATION).await;
            }
        }
        let (done, text) = self.migrate(&[], &Said::new());
        let End::Embedded(folder) = &self.to else {
            assert!(done, "{text}");
            return;
        };
        assert!(done != has_all, "{text}");
        assert!(done || text.contains("already exists"), "{text}");
        if has_all {
            drop(Process::start_with(&arguments(folder.path())));
        }
        assert!(
            !own(folder.path()).join("migrating").exists(),
            "a partial store is left"
        );
    }

    async fn dies(mut self, place: Place) -> (Self, bool, Tally) {
        let has_died = !self.life(&place.variable()).await.is_empty();
        (self, has_died, Tally::default())
    }

    async fn dies_at_each(mut self) -> BTreeSet<String> {
        let listed = self.life(LIST).await;
        at_each(Place::all(&listed, TIMES), vec![self], Self::dies)
            .await
            .0
    }
}

/// Stores jobs, one of which was triggered once.
async fn fill(store: &Store) -> Pairs {
    let running = start_with(&store.flags("filling")).await;
    let mut client = running.client().await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    for at in 0..JOBS {
        let request = schedule(&format!("job-{at}"), app("app"), due("1h"));
        client.schedule_job(request).await.unwrap();
    }
    let again = Job {
        schedule: Some("@every 1h".to_owned()),
        ..due("0s")
    };
    client
        .schedule_job(schedule("again", app("app"), again))
        .await
        .unwrap();
    let trigger = sidecar.next().await;
    sidecar.succeed(trigger.id);
    until("the trigger is stored", || async {
        store
            .pairs()
            .await
            .contains_key("dapr/counters/app||ns||app||again")
    })
    .await;
    drop(sidecar);
    running.stop().await;
    store.pairs().await
}

/// Invariants, wherever the command is killed: the source is unchanged; the target has each job completely or
/// not at all, and an embedded target has all or none. The same command completes the copy after the leases
/// expire, without a running scheduler.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn killed_migration_can_be_resumed() {
    let (Some(etcds), Some(databases)) = (Store::etcds(2).await, Store::databases(2).await) else {
        return;
    };
    let Ok([etcd, etcd_target]) = <[Store; 2]>::try_from(etcds) else {
        unreachable!("both schedulers are members")
    };
    let Ok([postgres, postgres_target]) = <[Store; 2]>::try_from(databases) else {
        unreachable!("both schedulers are members")
    };
    let all = fill(&etcd).await;
    let folder = || End::Embedded(tempfile::tempdir().unwrap());
    let way = |from, to| Way {
        from,
        to,
        all: all.clone(),
    };
    // Each is the source of the next.
    let first = way(End::Shared(etcd), End::Shared(postgres));
    let (done, text) = first.migrate(&[], &Said::new());
    assert!(done, "{text}");
    let second = way(first.to, folder());
    let (done, text) = second.migrate(&[], &Said::new());
    assert!(done, "{text}");
    let third = way(second.to, End::Shared(etcd_target));
    let first = way(first.from, End::Shared(postgres_target));
    let second = way(second.from, folder());

    let (to_postgres, to_file, to_etcd) = tokio::join!(
        tokio::spawn(first.dies_at_each()),
        tokio::spawn(second.dies_at_each()),
        tokio::spawn(third.dies_at_each()),
    );
    let but = |less: &[&str]| {
        POSTGRES
            .into_iter()
            .filter(|place| !less.contains(place))
            .collect::<Vec<_>>()
    };
    let (target, source) = (but(&NOT_COPIED), but(&NOT_READ));
    assert_eq!(to_postgres.unwrap(), set(&[&TO_SHARED, &ETCD, &target]));
    assert_eq!(to_file.unwrap(), set(&[&FROM_SHARED, &source, &TO_FILE]));
    assert_eq!(to_etcd.unwrap(), set(&[&TO_SHARED, &ETCD]));
}
