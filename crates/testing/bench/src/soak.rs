//! Connections opened and closed at a steady rate, with a call on each: memory must stay flat.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::Failure;
use crate::load::{Call, Connection, Pacer, Traffic};
use crate::plan::{Plan, Protocol, Resolver, System};
use crate::procfs::{Role, Watched};
use crate::session::raise_descriptor_limit;
use crate::systems::{Backend, Stack};

/// Source addresses: closed connections block their ports for a minute, so one address has too few.
const SOURCES: u64 = 16;
/// Maximum calls in flight.
const UNDER_WAY: usize = 256;
/// Number of memory samples.
const SAMPLES: u32 = 20;
/// Tolerated growth after the first fifth.
const FLAT: f64 = 0.05;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) bin_dir: PathBuf,
    pub(crate) resolver: Resolver,
    pub(crate) seconds: f64,
    /// Connections per second.
    pub(crate) rate: f64,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Runs the soak and prints memory as it proceeds.
///
/// # Errors
///
/// If memory grows, calls fail, or the processes cannot be started.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    raise_descriptor_limit();
    let dir = tempfile::Builder::new().prefix("outrigger-soak-").tempdir()?;
    let plan = Plan {
        bin_dir: options.bin_dir.clone(),
        resolver: options.resolver,
        ..Plan::quick()
    };
    let app = Backend::start(Protocol::Http, dir.path()).await?;
    let stack = Stack::start(System::Outrigger, Protocol::Http, &app, &plan, dir.path()).await?;
    let counts = Arc::new(Counts::default());
    let samples = churn(options, &stack.call(64)?, stack.watched(), &counts).await?;
    stack.stop().await?;
    app.stop().await?;
    verdict(&samples, &counts)
}

/// Resident bytes of both sidecars, at regular intervals.
async fn churn(
    options: &Options,
    call: &Call,
    watched: &Watched,
    counts: &Arc<Counts>,
) -> Result<Vec<u64>, Failure> {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY));
    let traffic = Arc::new(Traffic::default());
    let mut pacer = Pacer::start(options.rate)?;
    let started = Instant::now();
    let every = Duration::from_secs_f64(options.seconds) / SAMPLES;
    let mut samples = Vec::new();
    let mut number = 0;
    while samples.len() < SAMPLES as usize {
        for _due in pacer.due().await? {
            number += 1;
            let permit = Arc::clone(&under_way).acquire_owned().await?;
            let (call, traffic, counts) = (call.clone(), Arc::clone(&traffic), Arc::clone(counts));
            let source = Ipv4Addr::new(127, 0, 1, 1 + (number % SOURCES) as u8);
            tokio::spawn(async move {
                let outcome = async {
                    let mut connection = Connection::open_from(source, &call, &traffic).await?;
                    connection.call().await
                };
                let counter = if outcome.await.is_ok() {
                    &counts.answered
                } else {
                    &counts.failed
                };
                counter.fetch_add(1, Ordering::Relaxed);
                drop(permit);
            });
        }
        if started.elapsed() >= every * (samples.len() as u32 + 1) {
            let resident = watched.resident();
            println!(
                "{:5.0} s  {:8} calls  {} failed  caller {:.1} MB  callee {:.1} MB",
                started.elapsed().as_secs_f64(),
                counts.answered.load(Ordering::Relaxed),
                counts.failed.load(Ordering::Relaxed),
                resident.get(&Role::Caller).copied().unwrap_or_default() as f64 / 1e6,
                resident.get(&Role::Callee).copied().unwrap_or_default() as f64 / 1e6,
            );
            samples.push(
                resident
                    .iter()
                    .filter(|(role, _)| role.is_hop())
                    .map(|(_, bytes)| bytes)
                    .sum(),
            );
        }
    }
    Ok(samples)
}

fn verdict(samples: &[u64], counts: &Counts) -> Result<(), Failure> {
    let failed = counts.failed.load(Ordering::Relaxed);
    if failed > 0 {
        return Err(format!("{failed} calls failed").into());
    }
    let growth = growth(samples);
    println!("memory changed by {:+.1} % after the first fifth", growth * 100.0);
    if growth > FLAT {
        return Err(format!("memory grew by more than {:.0} %", FLAT * 100.0).into());
    }
    Ok(())
}

/// Growth between the second fifth and the last, relative to the former; the first fifth is warm-up.
fn growth(samples: &[u64]) -> f64 {
    let fifth = (samples.len() / 5).max(1);
    let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len().max(1) as f64;
    let early = mean(&samples[fifth.min(samples.len())..(2 * fifth).min(samples.len())]);
    let late = mean(&samples[samples.len().saturating_sub(fifth)..]);
    if early > 0.0 { late / early - 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::growth;

    #[test]
    fn ignores_growth_during_warm_up() {
        assert!(growth(&[1, 10, 10, 10, 10]).abs() < 1e-9);
        assert!((growth(&[1, 10, 11, 12, 15]) - 0.5).abs() < 1e-9);
        assert!(growth(&[]).abs() < 1e-9);
    }
}
