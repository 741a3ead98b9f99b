//! Kills of a scheduler at random times; [`crate::points`] kills it between chosen steps.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::running::{Sidecar, TIMEOUT, app, arguments, client, due, schedule};
use crate::tally::Tally;

/// Number of log lines kept.
const LINES: usize = 20;

/// The last lines of a scheduler's log.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Collects lines until the process has exited, which would block on an unread log.
    fn follow(&self, lines: std::io::Lines<BufReader<ChildStdout>>) {
        let tail = self.clone();
        std::thread::spawn(move || {
            lines.for_each(|line| tail.push(line.unwrap_or_else(|error| error.to_string())));
        });
    }

    fn text(&self) -> String {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.make_contiguous().join("\n")
    }
}

/// A scheduler process, killed on drop. If the test has failed, its last log lines are printed.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
    tail: Tail,
}

impl Process {
    fn start(folder: &Path) -> Self {
        Self::start_with(&arguments(folder))
    }

    /// Starts it with these flags.
    pub(crate) fn start_with(arguments: &[String]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// Like `start_with`, with environment variables.
    pub(crate) fn start_in(arguments: &[String], variables: &[(&str, &str)]) -> Self {
        Self::try_start(arguments, variables, Stdio::inherit()).expect("the process did not start")
    }

    /// Like `start_in`, with a destination of stderr. `None` if the process exits before it serves.
    pub(crate) fn try_start(arguments: &[String], variables: &[(&str, &str)], said: Stdio) -> Option<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_scheduler"))
            .args(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let started = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|line| line.contains("Running gRPC server on "));
        let Some(started) = started else {
            child.wait().unwrap();
            return None;
        };
        let address = started.split("Running gRPC server on ").nth(1).unwrap();
        let address = address.split('"').next().unwrap().to_owned();
        let tail = Tail::default();
        tail.follow(lines);
        Some(Self { child, address, tail })
    }

    /// Whether it has exited.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = match self.child.try_wait() {
                Ok(None) => "runs".to_owned(),
                Ok(Some(status)) => format!("has ended ({status})"),
                Err(error) => error.to_string(),
            };
            let (address, text) = (&self.address, self.tail.text());
            eprintln!("the scheduler at {address} {status}; last log lines:\n{text}");
        }
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Schedules jobs one by one until the process is gone; returns the acknowledged ones with their due times.
async fn schedule_until_killed(address: String, round: usize) -> Vec<(String, Timestamp)> {
    let mut client = client(address).await;
    let mut acknowledged = Vec::new();
    for at in 0.. {
        let name = format!("r{round}-{at}");
        let time = Timestamp::now() + Duration::from_millis(at % 700);
        match client
            .schedule_job(schedule(&name, app("app"), due(&time.to_string())))
            .await
        {
            Ok(_) => acknowledged.push((name, time)),
            Err(_) => return acknowledged,
        }
    }
    unreachable!("schedules until the process is gone");
}

/// Receives triggers until the process is gone, or all of `wanted` have arrived.
async fn take(address: String, wanted: Option<HashSet<String>>, fired: &mut HashMap<String, Timestamp>) {
    let mut client = client(address).await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    let begun = Instant::now();
    while wanted
        .as_ref()
        .is_none_or(|wanted| wanted.iter().any(|name| !fired.contains_key(name)))
    {
        let next = tokio::time::timeout(TIMEOUT, sidecar.triggers.message()).await;
        let Ok(Ok(Some(trigger))) = next else {
            assert!(wanted.is_none(), "jobs are lost after {:?}", begun.elapsed());
            return;
        };
        fired.entry(trigger.name).or_insert_with(Timestamp::now);
        sidecar.succeed(trigger.id);
    }
}

/// Invariant: after a kill at any time and a restart, no acknowledged job is lost or triggered early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_lose_no_acknowledged_job() {
    let folder = tempfile::tempdir().unwrap();
    let (mut acknowledged, mut fired) = (HashMap::new(), HashMap::new());
    for round in 0..6 {
        let process = Process::start(folder.path());
        let scheduling = tokio::spawn(schedule_until_killed(process.address.clone(), round));
        let address = process.address.clone();
        let taking = tokio::spawn(async move {
            let mut fired = HashMap::new();
            take(address, None, &mut fired).await;
            fired
        });
        // A different time in each round.
        tokio::time::sleep(Duration::from_millis(150 + 83 * round as u64)).await;
        drop(process);
        acknowledged.extend(scheduling.await.unwrap());
        for (name, at) in taking.await.unwrap() {
            fired.entry(name).or_insert(at);
        }
    }
    let process = Process::start(folder.path());
    let all: HashSet<String> = acknowledged.keys().cloned().collect();
    assert!(!all.is_empty(), "no round scheduled anything");
    take(process.address.clone(), Some(all), &mut fired).await;
    Tally::of(&acknowledged, |name| {
        fired.get(name).copied().into_iter().collect()
    })
    .report("killed under calls, six times");
}
