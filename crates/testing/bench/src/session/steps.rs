//! The steps of a run. Each visits all systems; one that fails at a step is skipped with a message.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Subject, skip};
use crate::Failure;
use crate::fortio;
use crate::load::{Connection, Load, Pace, Record, Traffic};
use crate::plan::{Driver, Plan};
use crate::procfs::{Role, Watched};
use crate::results::Measurement;

pub(super) struct Session<'a> {
    pub(super) plan: &'a Plan,
    pub(super) subjects: Vec<Subject>,
    pub(super) skipped: &'a mut Vec<String>,
}

impl Session<'_> {
    /// Time from the start of a first hop to its first successful call.
    pub(super) async fn starts(&mut self) {
        for _ in 0..self.plan.starts {
            for subject in &mut self.subjects {
                let outcome = async {
                    let Some(spare) = subject.stack.spare().await? else {
                        return Ok(None);
                    };
                    spare.process.stop().await?;
                    Ok(Some(spare.first_call))
                };
                match outcome.await {
                    Ok(None) => {}
                    Ok(Some(took)) => {
                        let milliseconds = took.as_secs_f64() * 1e3;
                        say(
                            subject,
                            &format!("first call {milliseconds:.1} ms after the start"),
                        );
                        subject.results.first_call.push(milliseconds);
                    }
                    Err(failure) => missed(self.skipped, subject, "start", &failure),
                }
            }
        }
    }

    /// Memory per idle connection of a first hop.
    pub(super) async fn idle_connections(&mut self) {
        let count = self.plan.idle_connections;
        if count == 0 {
            return;
        }
        for subject in &mut self.subjects {
            match per_connection(subject, count).await {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    say(subject, &format!("{:.1} KB for an idle connection", bytes / 1e3));
                    subject.results.memory.per_connection = Some(bytes);
                }
                Err(failure) => missed(self.skipped, subject, "idle connections", &failure),
            }
        }
    }

    /// The fixed rate, in rounds.
    pub(super) async fn rounds(&mut self) {
        let plan = self.plan;
        for subject in &mut self.subjects {
            let requests = (plan.warmup * plan.qps) as u64;
            if requests > 0 {
                let pace = Pace::Open {
                    qps: plan.qps,
                    requests,
                };
                // Errors will surface in the rounds.
                let _warm = run(subject, plan.payload, plan.connections, pace).await;
            }
        }
        for round in 1..=plan.rounds {
            for subject in &mut self.subjects {
                match one_round(subject, plan).await {
                    Ok((measured, record)) => {
                        say(subject, &format!("round {round}: {}", line(&measured)));
                        subject.results.memory.loaded.clone_from(&measured.resident);
                        subject.record.add(&record);
                        subject.results.total.add(&measured);
                        subject.results.rounds.push(measured);
                    }
                    Err(failure) => missed(self.skipped, subject, "rounds", &failure),
                }
            }
        }
        for subject in &mut self.subjects {
            summarise(subject);
        }
    }

    /// Full load, then fractions of its rate.
    pub(super) async fn saturation(&mut self) {
        let plan = self.plan;
        if plan.saturation <= 0.0 {
            return;
        }
        for subject in &mut self.subjects {
            let pace = Pace::Closed {
                seconds: plan.saturation,
            };
            match run(subject, plan.payload, plan.connections, pace).await {
                Ok((measured, _)) => {
                    say(subject, &format!("saturated: {}", line(&measured)));
                    subject.results.memory.saturated.clone_from(&measured.resident);
                    subject.results.saturation = Some(measured);
                }
                Err(failure) => missed(self.skipped, subject, "saturation", &failure),
            }
        }
        if plan.curve_point <= 0.0 {
            return;
        }
        for part in &plan.curve {
            for subject in &mut self.subjects {
                let Some(most) = subject.results.saturation.as_ref().map(Measurement::qps) else {
                    continue;
                };
                let qps = (most * part).max(1.0);
                let requests = ((qps * plan.curve_point) as u64).max(1);
                match run(
                    subject,
                    plan.payload,
                    plan.connections,
                    Pace::Open { qps, requests },
                )
                .await
                {
                    Ok((measured, _)) => {
                        say(
                            subject,
                            &format!("{:.0} % of that: {}", part * 100.0, line(&measured)),
                        );
                        subject.results.curve.push(measured);
                    }
                    Err(failure) => missed(self.skipped, subject, "saturation curve", &failure),
                }
            }
        }
    }

    /// Payload sizes and numbers of connections, at full load.
    pub(super) async fn sweeps(&mut self) {
        let plan = self.plan;
        if plan.sweep_point <= 0.0 || plan.saturation <= 0.0 {
            return;
        }
        let pace = Pace::Closed {
            seconds: plan.sweep_point,
        };
        for &payload in &plan.payloads {
            for subject in &mut self.subjects {
                match run(subject, payload, plan.connections, pace).await {
                    Ok((measured, _)) => {
                        say(subject, &format!("{payload} bytes: {}", line(&measured)));
                        subject.results.payloads.push(measured);
                    }
                    Err(failure) => missed(self.skipped, subject, &format!("{payload} bytes"), &failure),
                }
            }
        }
        for &connections in &plan.connection_counts {
            for subject in &mut self.subjects {
                match run(subject, plan.payload, connections, pace).await {
                    Ok((measured, _)) => {
                        say(
                            subject,
                            &format!("{connections} connections: {}", line(&measured)),
                        );
                        subject.results.connections.push(measured);
                    }
                    Err(failure) => missed(
                        self.skipped,
                        subject,
                        &format!("{connections} connections"),
                        &failure,
                    ),
                }
            }
        }
    }

    /// Memory some time after the load.
    pub(super) async fn settle(&mut self) {
        sleep(Duration::from_secs_f64(self.plan.settle)).await;
        for subject in &mut self.subjects {
            subject.results.memory.settled = subject.stack.watched().resident();
        }
    }
}

async fn run(
    subject: &mut Subject,
    payload: usize,
    connections: usize,
    pace: Pace,
) -> Result<(Measurement, Record), Failure> {
    subject.stack.fill(payload).await?;
    let load = Load {
        call: subject.stack.call(payload)?,
        connections,
        pace,
    };
    load.run(subject.stack.watched()).await
}

async fn one_round(subject: &mut Subject, plan: &Plan) -> Result<(Measurement, Record), Failure> {
    let pace = Pace::Open {
        qps: plan.qps,
        requests: plan.requests,
    };
    match &plan.driver {
        Driver::Own => run(subject, plan.payload, plan.connections, pace).await,
        Driver::Fortio(path) => {
            let load = Load {
                call: subject.stack.call(plan.payload)?,
                connections: plan.connections,
                pace,
            };
            fortio::run(path, &load, subject.stack.callee_id(), subject.stack.watched()).await
        }
    }
}

/// Percentiles over all rounds come from the merged histogram; averaging percentiles would be wrong.
fn summarise(subject: &mut Subject) {
    let (record, rounds) = (&subject.record, &subject.results.rounds);
    let total = &mut subject.results.total;
    total.latency = record.latencies();
    total.lag = record.lag();
    total.breakdown = record.breakdown();
    total.connect = record.connects();
    if total.driver == "fortio" && total.requests > 0 {
        // The means and extremes of the rounds are exact; those of buckets are not.
        let weighted: f64 = rounds
            .iter()
            .map(|round| round.latency.mean * round.requests as f64)
            .sum();
        total.latency.mean = weighted / total.requests as f64;
        total.latency.min = rounds
            .iter()
            .map(|round| round.latency.min)
            .fold(f64::INFINITY, f64::min);
        total.latency.max = rounds.iter().map(|round| round.latency.max).fold(0.0, f64::max);
    }
    subject.results.histogram = record.buckets();
}

async fn per_connection(subject: &mut Subject, count: usize) -> Result<Option<f64>, Failure> {
    let Some(spare) = subject.stack.spare().await? else {
        return Ok(None);
    };
    let watched = Watched::new(vec![(Role::Caller, spare.process.pid())]);
    let resident = || watched.resident().get(&Role::Caller).copied().unwrap_or_default();
    sleep(Duration::from_millis(500)).await;
    let before = resident();
    let traffic = Arc::new(Traffic::default());
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut connection = Connection::open(&spare.health, &traffic).await?;
        connection.call().await?;
        held.push(connection);
    }
    sleep(Duration::from_millis(500)).await;
    let grown = resident().saturating_sub(before);
    drop(held);
    spare.process.stop().await?;
    Ok(Some(grown as f64 / count as f64))
}

fn say(subject: &Subject, text: &str) {
    println!("{:10} {text}", subject.results.system.title());
}

fn missed(skipped: &mut Vec<String>, subject: &Subject, step: &str, failure: &Failure) {
    let system = subject.results.system.title();
    skip(
        skipped,
        format!("{system}, {}, {step}: {failure}", subject.stack.protocol.title()),
    );
}

fn line(measured: &Measurement) -> String {
    let generator = measured.cpu.get(&Role::Load).map_or_else(String::new, |cpu| {
        format!(
            ", generator {:.0} % of a core",
            cpu.total() / measured.seconds.max(1e-9) * 100.0
        )
    });
    format!(
        "{:.0}/s, mean {:.3} ms, p50 {:.3}, p99 {:.3}, {} failed, {:.0} us of CPU per call in the hops{generator}",
        measured.qps(),
        measured.latency.mean / 1e3,
        measured.latency.p50 / 1e3,
        measured.latency.p99 / 1e3,
        measured.failed(),
        measured.cpu_per_call(Role::is_hop),
    )
}
