//! Record of the calls of a load: histograms, sums, counts.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::connection::{CallError, ResponseTiming};
use crate::results::{Breakdown, Spread};

/// Ten minutes in nanoseconds, longer than any timeout.
const MAX_NANOSECONDS: u64 = 600_000_000_000;
/// Significant digits of latencies.
const DIGITS: u8 = 3;
/// Maximum number of distinct failures.
const KINDS: usize = 16;

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latencies {
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p75: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// The calls of one or several loads.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    connect: Histogram<u64>,
    /// Sums over answered calls.
    total: Sums,
    failures: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    calls: u64,
    latency: Duration,
    waited: Duration,
    head: Duration,
    body: Duration,
    payload: u64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(),
            lag: histogram(),
            connect: histogram(),
            total: Sums::default(),
            failures: BTreeMap::new(),
        }
    }

    pub(super) fn connected(&mut self, took: Duration) {
        self.connect.saturating_record(nanoseconds(took));
    }

    pub(super) fn outcome(
        &mut self,
        due: Instant,
        sent: Instant,
        outcome: &Result<ResponseTiming, CallError>,
    ) {
        self.lag.saturating_record(nanoseconds(sent - due));
        match outcome {
            Ok(answer) => {
                let latency = answer.end - due;
                self.latency.saturating_record(nanoseconds(latency));
                self.total.calls += 1;
                self.total.latency += latency;
                self.total.waited += sent - due;
                self.total.head += answer.head - sent;
                self.total.body += answer.end - answer.head;
                self.total.payload += answer.payload as u64;
            }
            Err(error) => self.fail(&error.to_string(), 1),
        }
    }

    /// Adds successful calls with only their latency, for other load generators.
    pub(crate) fn answered_in(&mut self, latency: Duration, count: u64) {
        self.latency.saturating_record_n(nanoseconds(latency), count);
        self.total.calls += count;
        self.total.latency += Duration::from_secs_f64(latency.as_secs_f64() * count as f64);
    }

    pub(crate) fn fail(&mut self, kind: &str, count: u64) {
        if count == 0 {
            return;
        }
        let kind = if self.failures.len() < KINDS || self.failures.contains_key(kind) {
            kind
        } else {
            "other"
        };
        *self.failures.entry(kind.to_owned()).or_default() += count;
    }

    /// Adds the calls of another load.
    pub(crate) fn add(&mut self, other: &Self) {
        // All histograms have the same bounds, so this cannot fail.
        let _fits = self.latency.add(&other.latency);
        let _fits = self.lag.add(&other.lag);
        let _fits = self.connect.add(&other.connect);
        self.total.calls += other.total.calls;
        self.total.latency += other.total.latency;
        self.total.waited += other.total.waited;
        self.total.head += other.total.head;
        self.total.body += other.total.body;
        self.total.payload += other.total.payload;
        for (kind, count) in &other.failures {
            self.fail(kind, *count);
        }
    }

    pub(crate) fn answered(&self) -> u64 {
        self.total.calls
    }

    pub(crate) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub(crate) fn errors(&self) -> &BTreeMap<String, u64> {
        &self.failures
    }

    pub(crate) fn latencies(&self) -> Latencies {
        let mut latencies = latencies_of(&self.latency);
        latencies.mean = self.mean(self.total.latency);
        latencies
    }

    /// Delay of calls before sending, caused by a lack of idle connections or by the generator.
    pub(crate) fn lag(&self) -> Latencies {
        latencies_of(&self.lag)
    }

    pub(crate) fn breakdown(&self) -> Breakdown {
        Breakdown {
            waited: self.mean(self.total.waited),
            head: self.mean(self.total.head),
            body: self.mean(self.total.body),
        }
    }

    pub(crate) fn connects(&self) -> Spread {
        let micros = |value: u64| value as f64 / 1e3;
        if self.connect.is_empty() {
            return Spread::default();
        }
        Spread {
            count: self.connect.len(),
            min: micros(self.connect.min()),
            mean: self.connect.mean() / 1e3,
            max: micros(self.connect.max()),
        }
    }

    /// Bytes of the app's data in all successful calls, in a direction that carries it.
    pub(crate) fn payload(&self) -> u64 {
        self.total.payload
    }

    /// Microseconds, and the number of calls per bucket; ascending, without empty buckets.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        self.latency
            .iter_recorded()
            .map(|value| (value.value_iterated_to() as f64 / 1e3, value.count_at_value()))
            .collect()
    }

    fn mean(&self, total: Duration) -> f64 {
        if self.total.calls == 0 {
            return 0.0;
        }
        total.as_secs_f64() * 1e6 / self.total.calls as f64
    }
}

fn latencies_of(histogram: &Histogram<u64>) -> Latencies {
    if histogram.is_empty() {
        return Latencies::default();
    }
    let micros = |value: u64| value as f64 / 1e3;
    let at = |quantile: f64| micros(histogram.value_at_quantile(quantile));
    Latencies {
        mean: histogram.mean() / 1e3,
        min: micros(histogram.min()),
        p50: at(0.50),
        p75: at(0.75),
        p90: at(0.90),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        max: micros(histogram.max()),
    }
}

#[expect(
    clippy::expect_used,
    reason = "the bounds are constants that the library accepts"
)]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, MAX_NANOSECONDS, DIGITS).expect("constant bounds")
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
