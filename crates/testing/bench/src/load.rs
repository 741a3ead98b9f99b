//! The load generator: connections that carry one call at a time, at a fixed rate or at full load.
//!
//! At a fixed rate the schedule does not wait for responses (open loop). Call *n* is due at *start + n /
//! rate* and is sent on the connection that has been idle longest. Its latency counts from its due time, so
//! a stall of the callee affects every call that it delayed, not only the one in flight (no coordinated
//! omission).

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout};

use crate::Failure;
use crate::procfs::Watched;
use crate::results::Measurement;

mod call;
mod connection;
mod driver;
mod grpc;
mod http1;
mod pacer;
mod queue;
mod record;
mod wire;

pub(crate) use call::{Call, ON_INVOKE, STORE, Wire};
pub(crate) use connection::Connection;
pub(crate) use pacer::Pacer;
pub(crate) use record::{Latencies, Record};
pub(crate) use wire::Traffic;

use call::Direction;
use queue::Queue;

/// Time after the planned end before missing calls count as failed.
const GRACE: Duration = Duration::from_secs(20);

/// Timing of calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// `requests` calls at a rate per second.
    Open { qps: f64, requests: u64 },
    /// The next call after each response, for this time.
    Closed { seconds: f64 },
}

/// A repeated call.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) call: Call,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
}

impl Load {
    /// Runs the load, and measures it together with the watched processes.
    ///
    /// Opens the connections first, with one uncounted call on each.
    ///
    /// # Errors
    ///
    /// If a connection cannot be opened, or its first call fails.
    pub(crate) async fn run(&self, watched: &Watched) -> Result<(Measurement, Record), Failure> {
        let traffic = Arc::new(Traffic::default());
        let mut record = Record::new();
        let mut connections = Vec::with_capacity(self.connections);
        for number in 0..self.connections {
            let call = self.call.of_connection(number);
            let started = Instant::now();
            connections.push(Connection::open(call, &traffic).await?);
            record.connected(started.elapsed());
        }
        // Concurrently, so that proxies open all their connections.
        let first = join_all(connections.iter_mut().map(Connection::call)).await;
        for outcome in first {
            outcome.map_err(|error| format!("the first call to {} failed: {error}", self.call.name()))?;
        }
        traffic.reset();
        let watched = watched.with_load(std::process::id());
        let before = watched.cpu();
        let started = Instant::now();
        let record = match self.pace {
            Pace::Open { qps, requests } => open(connections, record, qps, requests).await?,
            Pace::Closed { seconds } => closed(connections, record, seconds).await,
        };
        // Measured before memory, which takes time to read for a server with many processes.
        let (elapsed, cpu) = (started.elapsed(), watched.cpu_since(&before));
        let measurement = Measurement {
            cpu,
            resident: watched.resident(),
            sent: traffic.sent(),
            received: traffic.received(),
            ..self.measurement(&record, elapsed)
        };
        Ok((measurement, record))
    }

    fn measurement(&self, record: &Record, elapsed: Duration) -> Measurement {
        let (requested_qps, planned, requested_seconds) = match self.pace {
            Pace::Open { qps, requests } => (Some(qps), requests, requests as f64 / qps),
            Pace::Closed { seconds } => (None, record.answered() + record.failed(), seconds),
        };
        let carried = |direction| match self.call.direction {
            Direction::Both => record.payload(),
            only if only == direction => record.payload(),
            _ => 0,
        };
        Measurement {
            driver: "own".to_owned(),
            requested_qps,
            connections: self.connections,
            payload: self.call.payload,
            planned,
            requests: record.answered(),
            errors: record.errors().clone(),
            requested_seconds,
            seconds: elapsed.as_secs_f64(),
            latency: record.latencies(),
            lag: record.lag(),
            breakdown: record.breakdown(),
            connect: record.connects(),
            payload_sent: carried(Direction::ToServer),
            payload_received: carried(Direction::ToClient),
            ..Measurement::default()
        }
    }
}

async fn open(
    connections: Vec<Connection>,
    record: Record,
    qps: f64,
    requests: u64,
) -> Result<Record, Failure> {
    let queue = Arc::new(Queue::new(record));
    let workers: Vec<_> = connections
        .into_iter()
        .map(|connection| tokio::spawn(follow(Arc::clone(&queue), connection)))
        .collect();
    let mut pacer = Pacer::start(qps)?;
    let mut due = 0;
    while due < requests {
        for scheduled in pacer.due().await? {
            if due < requests {
                queue.push(scheduled);
                due += 1;
            }
        }
    }
    queue.close();
    let finished = timeout(GRACE, async {
        for worker in workers {
            // A worker ends early only by a panic, which the runtime has reported.
            let _ended = worker.await;
        }
    });
    // Calls still in flight afterwards have failed.
    let _in_time = finished.await;
    let mut record = queue.take_record();
    let missing = requests.saturating_sub(record.answered() + record.failed());
    record.fail("no answer in time", missing);
    Ok(record)
}

/// Makes calls as they become due.
async fn follow(queue: Arc<Queue>, mut connection: Connection) {
    while let Some(due) = queue.next().await {
        let sent = Instant::now();
        let outcome = connection.call().await;
        let broken = outcome.is_err();
        queue.record(|record| record.outcome(due, sent, &outcome));
        if broken && !renew(&queue, &mut connection).await {
            return;
        }
    }
}

async fn closed(connections: Vec<Connection>, record: Record, seconds: f64) -> Record {
    let queue = Arc::new(Queue::new(record));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let workers: Vec<_> = connections
        .into_iter()
        .map(|connection| tokio::spawn(chase(Arc::clone(&queue), connection, end)))
        .collect();
    let finished = timeout(Duration::from_secs_f64(seconds) + GRACE, async {
        for worker in workers {
            let _ended = worker.await;
        }
    });
    if finished.await.is_err() {
        queue.record(|record| record.fail("no answer in time", 1));
    }
    queue.take_record()
}

/// Makes calls back to back until the end.
async fn chase(queue: Arc<Queue>, mut connection: Connection, end: Instant) {
    loop {
        let sent = Instant::now();
        if sent >= end {
            return;
        }
        let outcome = connection.call().await;
        let broken = outcome.is_err();
        queue.record(|record| record.outcome(sent, sent, &outcome));
        if broken && !renew(&queue, &mut connection).await {
            return;
        }
    }
}

/// A failed call may leave the connection in any state, so the next one uses a new connection.
async fn renew(queue: &Queue, connection: &mut Connection) -> bool {
    match connection.reopen().await {
        Ok(()) => true,
        Err(error) => {
            queue.record(|record| record.fail(&error.to_string(), 1));
            false
        }
    }
}

#[cfg(test)]
mod tests;
