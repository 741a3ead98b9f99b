//! Runs the tables: every attack against every listener with the required protocol.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::stream::{self, StreamExt};

use crate::attacks::{Attack, SILENCES, all};
use crate::child::{forget_peak, usage};
use crate::fleet::Fleet;
use crate::h1::SMUGGLED;
use crate::honest;
use crate::listeners::{LISTENERS, Listener, Process};

/// Timeout of an attack.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(45);
/// Memory that a process may have gained at the end, MiB.
const KEPT: u64 = 64;
/// Time within which a silent client must be disconnected. The limits are 10 seconds for most states and 60
/// for the first request to sentry, but test machines are busy.
const SILENCE: Duration = Duration::from_secs(85);
/// Allowed CPU time of a process while clients are silent, including that for honest clients.
const SILENT_WORK: Duration = Duration::from_secs(30);
/// Source address of attackers; honest clients use 127.0.0.1.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Processes attacked concurrently: more would delay each other.
const AT_ONCE: usize = 4;
/// All processes.
pub const PROCESSES: [Process; 10] = [
    Process::Sidecar,
    Process::SecureSidecar,
    Process::SocketSidecar,
    Process::Sentry,
    Process::Placement,
    Process::Scheduler,
    Process::PlainPlacement,
    Process::PlainScheduler,
    Process::Operator,
    Process::Injector,
];

/// Whether the environment selects this row.
fn wanted(name: &str) -> bool {
    std::env::var("HOSTILE").map_or(true, |part| name.contains(&part))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attacks_are_bounded_and_clients_served() {
    let fleet = Fleet::start().await;
    let attacked = stream::iter(PROCESSES).map(|process| attack_process(&fleet, process));
    let failures: Vec<String> = attacked.buffer_unordered(AT_ONCE).concat().await;
    let smuggled: Vec<String> = fleet
        .app
        .seen()
        .into_iter()
        .filter(|head| head.contains(SMUGGLED))
        .collect();
    if !failures.is_empty() {
        fleet.print_logs();
    }
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(smuggled.is_empty(), "the app received {smuggled:?}");
}

/// All attacks on the listeners of one process, sequentially.
async fn attack_process(fleet: &Fleet, process: Process) -> Vec<String> {
    let id = fleet.server(process).id();
    let first = usage(id).unwrap();
    let mut failures = Vec::new();
    for attack in all().filter(|attack| wanted(attack.name)) {
        let listeners = LISTENERS
            .iter()
            .filter(|l| l.process == process && l.offers(attack.needs));
        // Unix sockets differ from the ports only in how connections are accepted.
        let listeners = listeners.filter(|l| l.socket.is_none() || attack.is_crowd());
        for listener in listeners {
            if let Err(why) = attack_listener(fleet, attack, listener, id).await {
                failures.push(format!("{}: {}: {why}", listener.name, attack.name));
            }
            if usage(id).is_none() {
                failures.push(format!("{process:?} has ended"));
                return failures;
            }
        }
    }
    // Freed memory returns to the system within moments.
    let kept = || usage(id).map_or(0, |last| last.resident.saturating_sub(first.resident)) >> 10;
    let mut waits = 0;
    while kept() > KEPT && waits < 100 {
        waits += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if kept() > KEPT {
        failures.push(format!("{process:?} kept {} MiB", kept()));
    }
    failures
}

/// One cell of the table.
async fn attack_listener(
    fleet: &Fleet,
    attack: &Attack,
    listener: &'static Listener,
    id: u32,
) -> Result<(), String> {
    let target = fleet.target(listener);
    let before = usage(id).ok_or("the process has exited")?;
    forget_peak(id);
    let (stop, started) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let honest = tokio::spawn(honest::keep_calling(target.clone(), Arc::clone(&stop)));
    let received = tokio::time::timeout(ATTACK_TIMEOUT, attack.run(target.from(ATTACKER))).await;
    stop.store(true, Ordering::Release);
    let served = honest.await.map_err(|panic| panic.to_string())?;
    let after = usage(id).ok_or("the process has exited")?;
    let memory = after.peak.saturating_sub(before.resident) >> 10;
    let work = (after.work - before.work).as_millis();
    println!(
        "{:32} {:52} {memory:>5} MiB {work:>6} ms of {:>6} {served:?}",
        listener.name,
        attack.name,
        started.elapsed().as_millis()
    );
    let received = received.map_err(|_| format!("not over after {ATTACK_TIMEOUT:?}"))?;
    let mut wrong = String::new();
    if let Err(why) = attack.verdict.judge(attack.needs, &received) {
        let _infallible = write!(wrong, "{why}; ");
    }
    if let Err(why) = served {
        let _infallible = write!(wrong, "{why}; ");
    }
    if memory > attack.memory {
        let _infallible = write!(wrong, "{memory} MiB exceed {}; ", attack.memory);
    }
    if work > u128::from(attack.work) {
        let _infallible = write!(wrong, "{work} ms of CPU time exceed {}; ", attack.work);
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_disconnected() {
    let fleet = Fleet::start().await;
    let cells = SILENCES
        .iter()
        .filter(|silence| wanted(silence.name))
        .flat_map(|silence| {
            let listeners = LISTENERS.iter().filter(|listener| listener.offers(silence.needs));
            listeners.map(move |listener| (silence, listener))
        });
    let silent = cells.map(|(silence, listener)| {
        let target = fleet.target(listener);
        async move {
            let started = Instant::now();
            let ended = tokio::time::timeout(SILENCE, (silence.run)(target.from(ATTACKER))).await;
            println!("{:32} {:52} {:?}", listener.name, silence.name, started.elapsed());
            ended
                .is_err()
                .then(|| format!("{}: {}: still connected", listener.name, silence.name))
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let honest: Vec<_> = LISTENERS
        .iter()
        .map(|listener| tokio::spawn(honest::keep_calling(fleet.target(listener), Arc::clone(&stop))))
        .collect();
    let work = |process| usage(fleet.server(process).id()).map(|used| used.work);
    let before = PROCESSES.map(work);
    let mut failures: Vec<String> = join_all(silent).await.into_iter().flatten().collect();
    for (process, before) in PROCESSES.into_iter().zip(before) {
        let (Some(before), Some(after)) = (before, work(process)) else {
            failures.push(format!("{process:?} has ended"));
            continue;
        };
        let work = after.saturating_sub(before);
        println!("{process:?}: {work:?} of CPU time");
        if work > SILENT_WORK {
            failures.push(format!("{process:?}: {work:?} of CPU time"));
        }
    }
    stop.store(true, Ordering::Release);
    for served in honest {
        failures.extend(served.await.unwrap().err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
