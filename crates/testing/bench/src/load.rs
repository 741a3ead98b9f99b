//! The load generator: connections that carry one call at a time, at a fixed rate or as fast as answers come.
//!
//! At a fixed rate the schedule does not wait for answers (an open loop): call *n* is due at *start + n / rate*,
//! goes out on the connection that has been idle longest, and its latency counts from when it was due. A stall of
//! the callee therefore shows in every call it delayed, not only in the one that met it.

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

/// How long after its planned end a load may go on before what is missing counts as failed.
const GRACE: Duration = Duration::from_secs(20);

/// When calls go out.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// At a rate per second, so many of them.
    Open { qps: f64, requests: u64 },
    /// The next as soon as one is answered, for so long.
    Closed { seconds: f64 },
}

/// A load: a call, repeated.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) call: Call,
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
}

impl Load {
    /// Runs it, and measures it together with the processes that are watched.
    ///
    /// Connections are opened first and carry one call each that is not counted.
    ///
    /// # Errors
    ///
    /// When a connection cannot be opened, or its first call fails.
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
        // All at once, so that proxies open as many connections of their own as they will need.
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
        // Before memory is read, which takes its time with a server of many processes.
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
            // A worker only ends early by a panic, which the runtime has reported.
            let _ended = worker.await;
        }
    });
    // What is still out then stays unanswered.
    let _in_time = finished.await;
    let mut record = queue.take_record();
    let missing = requests.saturating_sub(record.answered() + record.failed());
    record.fail("no answer in time", missing);
    Ok(record)
}

/// Carries calls as they become due, until there are no more.
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

/// Carries one call after the other until the end.
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

/// A failed call may have left the connection in any state: the next one goes out on a new one.
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
