//! SIGKILL between any two steps of a write: a process kills itself at a fault point, and others take over.

mod embedded;
mod migration;
mod shared;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::NamedTempFile;

use crate::tally::Tally;

/// Names the fault point.
const VARIABLE: &str = "OUTRIGGER_SCHEDULER_FAULT";
/// Prints the fault points instead.
const LIST: &str = "list";
/// Fault points of the stores themselves.
const ETCD: [&str; 2] = ["before etcd is asked", "etcd has answered"];
const POSTGRES: [&str; 12] = [
    "before it is committed",
    "begun",
    "committed",
    "conditions read",
    "keys deleted",
    "keys of leases deleted",
    "keys written",
    "leases ended",
    "range deleted",
    "revision counted",
    "tables are there",
    "tables made",
];

/// A fault point, and which of its occurrences kills the process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    name: String,
    time: usize,
}

impl Place {
    /// The value of the variable for this point.
    fn variable(&self) -> String {
        format!("{}#{}", self.name, self.time)
    }

    /// The first `most` occurrences of each point.
    fn all(listed: &[String], most: usize) -> Vec<Self> {
        let mut times = BTreeMap::<&String, usize>::new();
        let mut all = Vec::new();
        for name in listed {
            let time = times.entry(name).or_default();
            *time += 1;
            if *time <= most {
                all.push(Self {
                    name: name.clone(),
                    time: *time,
                });
            }
        }
        all
    }

    /// The first occurrence of each point in each phase; `begins` has the phases' start indices.
    fn of_phases(listed: &[String], begins: &[usize]) -> Vec<Self> {
        let mut all = BTreeSet::new();
        for (at, &begin) in begins.iter().enumerate() {
            let end = begins.get(at + 1).map_or(listed.len(), |&end| end);
            for name in &listed[begin..end] {
                let before = listed[..begin].iter().filter(|other| *other == name);
                all.insert(Self {
                    name: name.clone(),
                    time: before.count() + 1,
                });
            }
        }
        all.into_iter().collect()
    }
}

/// The fault points that a process printed.
struct Said(NamedTempFile);

impl Said {
    fn new() -> Self {
        Self(NamedTempFile::new().unwrap())
    }

    fn file(&self) -> Stdio {
        self.0.as_file().try_clone().unwrap().into()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.0.path()).unwrap()
    }

    fn places(&self) -> Vec<String> {
        let text = self.text();
        let named = text.lines().filter_map(|line| line.strip_prefix("fault point: "));
        named.map(str::to_owned).collect()
    }
}

/// Kills a process at each of these points, in parallel lanes. `dies` tells whether the point was reached,
/// and the fate of jobs. Later occurrences may not be reached, if more was batched than in the listing run.
async fn at_each<L, F>(
    places: Vec<Place>,
    lanes: Vec<L>,
    dies: fn(L, Place) -> F,
) -> (BTreeSet<String>, Tally)
where
    L: Send + 'static,
    F: Future<Output = (L, bool, Tally)> + Send + 'static,
{
    let count = places.len();
    let left = Arc::new(Mutex::new(places.into_iter()));
    let lanes: Vec<_> = lanes
        .into_iter()
        .map(|mut lane| {
            let left = Arc::clone(&left);
            tokio::spawn(async move {
                let (mut died, mut total) = (Vec::new(), Tally::default());
                loop {
                    let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(place) = next else {
                        return (died, total);
                    };
                    let (again, has_died, tally) = dies(lane, place.clone()).await;
                    lane = again;
                    total.add(tally);
                    assert!(has_died || place.time > 1, "no process reaches {place:?}");
                    if has_died {
                        died.push(place.name);
                    }
                }
            })
        })
        .collect();
    let (mut died, mut total, mut kills) = (BTreeSet::new(), Tally::default(), 0);
    for lane in lanes {
        let (names, tally) = lane.await.unwrap();
        kills += names.len();
        died.extend(names);
        total.add(tally);
    }
    println!("killed {kills} times, at {count} places: {died:?}");
    (died, total)
}

fn set(names: &[&[&str]]) -> BTreeSet<String> {
    names.concat().into_iter().map(str::to_owned).collect()
}
