//! Counters, gauges and histograms as handles on shared atomics.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A monotonic counter.
#[derive(Clone, Debug, Default)]
pub struct Counter(Option<Arc<AtomicU64>>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        if let Some(value) = &self.0 {
            value.fetch_add(n, Relaxed);
        }
    }

    /// The current value; 0 if metrics are disabled.
    pub fn get(&self) -> u64 {
        self.0.as_ref().map_or(0, |value| value.load(Relaxed))
    }
}

/// A value that can go up and down.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Option<Arc<GaugeCell>>);

#[derive(Debug, Default)]
struct GaugeCell {
    value: AtomicI64,
    observed: AtomicBool,
}

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: i64) {
        if let Some(cell) = &self.0 {
            cell.value.store(value, Relaxed);
            cell.observed.store(true, Relaxed);
        }
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        if let Some(cell) = &self.0 {
            cell.value.fetch_add(n, Relaxed);
            cell.observed.store(true, Relaxed);
        }
    }

    /// The current value; 0 if metrics are disabled.
    pub fn get(&self) -> i64 {
        self.0.as_ref().map_or(0, |cell| cell.value.load(Relaxed))
    }
}

/// The unit of a histogram. Observations are integers of `1 / SCALE` exposed units.
pub trait Unit: Send + Sync + 'static {
    /// Integer steps per exposed unit.
    const SCALE: f64;
}

/// Milliseconds, stored as nanoseconds.
#[derive(Debug)]
pub enum Millis {}
/// Bytes.
#[derive(Debug)]
pub enum Bytes {}
/// A ratio, stored as billionths.
#[derive(Debug)]
pub enum Ratio {}

impl Unit for Millis {
    const SCALE: f64 = 1e6;
}
impl Unit for Bytes {
    const SCALE: f64 = 1.0;
}
impl Unit for Ratio {
    const SCALE: f64 = 1e9;
}

/// A distribution over fixed buckets.
#[derive(Debug)]
pub struct Histogram<U> {
    cell: Option<Arc<HistogramCell>>,
    unit: PhantomData<fn() -> U>,
}

// Derived implementations would require the same of the unit.
impl<U> Clone for Histogram<U> {
    fn clone(&self) -> Self {
        Self {
            cell: self.cell.clone(),
            unit: PhantomData,
        }
    }
}

impl<U> Default for Histogram<U> {
    fn default() -> Self {
        Self {
            cell: None,
            unit: PhantomData,
        }
    }
}

#[derive(Debug)]
struct HistogramCell {
    /// Inclusive upper bounds; there is one more count than bounds.
    bounds: Arc<[u64]>,
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl<U> Histogram<U> {
    fn record(&self, value: u64) {
        if let Some(cell) = &self.cell {
            let bucket = cell.bounds.partition_point(|bound| *bound < value);
            cell.counts[bucket].fetch_add(1, Relaxed);
            cell.sum.fetch_add(value, Relaxed);
        }
    }

    /// Number of observations; 0 if metrics are disabled.
    pub fn count(&self) -> u64 {
        self.cell
            .as_ref()
            .map_or(0, |cell| cell.counts.iter().map(|c| c.load(Relaxed)).sum())
    }
}

impl Histogram<Millis> {
    /// Records a duration with nanosecond precision.
    pub fn observe(&self, elapsed: Duration) {
        self.record(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl Histogram<Bytes> {
    /// Records a size in bytes.
    pub fn observe(&self, bytes: u64) {
        self.record(bytes);
    }
}

impl Histogram<Ratio> {
    /// Records a ratio.
    pub fn observe(&self, ratio: f64) {
        // The cast saturates: negative ratios and NaN become 0.
        self.record((ratio * Ratio::SCALE).round() as u64);
    }
}

/// A value at the time of a scrape.
pub(super) enum Sample<'a> {
    Number(f64),
    Histogram {
        bounds: &'a [u64],
        scale: f64,
        counts: Vec<u64>,
        sum: f64,
    },
}

/// A metric that a [`super::Family`] can hold. A default handle records nothing.
pub trait Metric: Clone + Default + Send + Sync + 'static {
    /// `TYPE` of the exposition.
    const KIND: &'static str;

    /// A recording handle. `bounds` is empty unless the metric is a histogram.
    #[doc(hidden)]
    fn recording(bounds: &Arc<[u64]>) -> Self;

    /// The value, or `None` before the first observation.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn sample(&self) -> Option<Sample<'_>>;
}

#[allow(private_interfaces)]
impl Metric for Counter {
    const KIND: &'static str = "counter";

    fn recording(_: &Arc<[u64]>) -> Self {
        Self(Some(Arc::default()))
    }

    fn sample(&self) -> Option<Sample<'_>> {
        let value = self.get();
        (value > 0).then_some(Sample::Number(value as f64))
    }
}

#[allow(private_interfaces)]
impl Metric for Gauge {
    const KIND: &'static str = "gauge";

    fn recording(_: &Arc<[u64]>) -> Self {
        Self(Some(Arc::default()))
    }

    fn sample(&self) -> Option<Sample<'_>> {
        let cell = self.0.as_ref()?;
        cell.observed
            .load(Relaxed)
            .then(|| Sample::Number(cell.value.load(Relaxed) as f64))
    }
}

#[allow(private_interfaces)]
impl<U: Unit> Metric for Histogram<U> {
    const KIND: &'static str = "histogram";

    fn recording(bounds: &Arc<[u64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        let cell = HistogramCell {
            bounds: bounds.clone(),
            counts,
            sum: AtomicU64::new(0),
        };
        Self {
            cell: Some(Arc::new(cell)),
            unit: PhantomData,
        }
    }

    fn sample(&self) -> Option<Sample<'_>> {
        let cell = self.cell.as_ref()?;
        let counts: Vec<u64> = cell.counts.iter().map(|c| c.load(Relaxed)).collect();
        if counts.iter().all(|c| *c == 0) {
            return None;
        }
        let sum = cell.sum.load(Relaxed) as f64 / U::SCALE;
        Some(Sample::Histogram {
            bounds: &cell.bounds,
            scale: U::SCALE,
            counts,
            sum,
        })
    }
}
