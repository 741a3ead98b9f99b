//! The families of one sidecar.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::cell::{Bytes, Counter, Gauge, Histogram, Metric, Millis, Ratio, Unit};
use super::encode::{self, Format};
use super::family::{AnyFamily, Desc, Family, Source};
use super::rules::Rules;
use super::{MetricsConfig, MetricsError};

/// Default bounds in milliseconds: three below a millisecond, and Dapr's.
const LATENCY_MS: [f64; 37] = [
    0.1, 0.25, 0.5, 1., 2., 3., 4., 5., 6., 8., 10., 13., 16., 20., 25., 30., 40., 50., 65., 80., 100., 130.,
    160., 200., 250., 300., 400., 500., 650., 800., 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
];
/// Number of bounds below a millisecond.
const FINE: usize = 3;
/// Bounds in bytes: 1 KiB to 4 GiB.
const SIZE: [u64; 13] = [
    1 << 10,
    2 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
    4 << 30,
];
const RATIO: [f64; 10] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0, 1.5, 2.0];

/// Creates families and renders them. Cheap to clone. Every family has the label `app_id`; those created
/// through [`Registry::namespaced`] also have `namespace`.
#[derive(Clone)]
pub struct Registry {
    shared: Option<Arc<RegistryInner>>,
    namespaced: bool,
}

pub(super) struct RegistryInner {
    app_id: Arc<str>,
    namespace: Arc<str>,
    rules: Rules,
    pub(super) max_series: usize,
    latency: Arc<[u64]>,
    size: Arc<[u64]>,
    ratio: Arc<[u64]>,
    overflow: AtomicU64,
    families: RwLock<BTreeMap<String, Arc<dyn AnyFamily>>>,
}

impl RegistryInner {
    pub(super) fn count_overflow(&self) {
        self.overflow.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("enabled", &self.shared.is_some())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// An empty registry.
    ///
    /// # Errors
    /// On an invalid rewrite rule or bucket list.
    pub fn new(config: &MetricsConfig) -> Result<Self, MetricsError> {
        let buckets = &config.latency_buckets_ms;
        if let Some(pair) = buckets.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(MetricsError::Buckets(pair[0], pair[1]));
        }
        let shared = RegistryInner {
            app_id: config.app_id.as_str().into(),
            namespace: config.namespace.as_str().into(),
            rules: Rules::new(&config.rules)?,
            max_series: config.max_series,
            latency: match buckets.is_empty() {
                true => LATENCY_MS[if config.fine_latency { 0 } else { FINE }..]
                    .iter()
                    .map(|ms| (ms * Millis::SCALE).round() as u64)
                    .collect(),
                false => buckets.iter().map(|ms| ms.saturating_mul(1_000_000)).collect(),
            },
            size: SIZE.into(),
            ratio: RATIO.iter().map(|r| (r * Ratio::SCALE).round() as u64).collect(),
            overflow: AtomicU64::new(0),
            families: RwLock::default(),
        };
        Ok(Self {
            shared: Some(Arc::new(shared)),
            namespaced: false,
        })
    }

    /// Its families record nothing and cost nothing.
    pub fn disabled() -> Self {
        Self {
            shared: None,
            namespaced: false,
        }
    }

    /// The same registry, for families with the label `namespace`.
    #[must_use]
    pub fn namespaced(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            namespaced: true,
        }
    }

    /// A counter. `name` omits the prefix `dapr_`; the same name returns the same family.
    pub fn counter<const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Counter, N> {
        self.family(name, help, labels, |_| Arc::default())
    }

    /// A gauge with `N` labels.
    pub fn gauge<const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Gauge, N> {
        self.family(name, help, labels, |_| Arc::default())
    }

    /// A histogram of durations in milliseconds over the configured buckets.
    pub fn latency<const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Histogram<Millis>, N> {
        self.family(name, help, labels, |shared| shared.latency.clone())
    }

    /// A histogram of sizes in bytes.
    pub fn size<const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Histogram<Bytes>, N> {
        self.family(name, help, labels, |shared| shared.size.clone())
    }

    /// A histogram of ratios around 1.
    pub fn ratio<const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
    ) -> Family<Histogram<Ratio>, N> {
        self.family(name, help, labels, |shared| shared.ratio.clone())
    }

    fn family<M: Metric, const N: usize>(
        &self,
        name: &str,
        help: &'static str,
        labels: [&'static str; N],
        bounds: impl FnOnce(&RegistryInner) -> Arc<[u64]>,
    ) -> Family<M, N> {
        let Some(shared) = &self.shared else {
            return Family::disabled();
        };
        let mut families = shared.families.write().unwrap_or_else(PoisonError::into_inner);
        let full_name = format!("dapr_{name}");
        if let Some(existing) = families.get(&full_name) {
            let same = existing.clone().as_any().downcast::<super::family::Inner<M, N>>();
            debug_assert!(same.is_ok(), "{full_name} is declared with two types");
            return same.map_or_else(|_| Family::disabled(), Family::from);
        }
        let mut sources = vec![("app_id", Source::Constant(shared.app_id.clone()))];
        if self.namespaced {
            sources.push(("namespace", Source::Constant(shared.namespace.clone())));
        }
        sources.extend(
            labels
                .iter()
                .enumerate()
                .map(|(i, label)| (*label, Source::Variable(i))),
        );
        sources.sort_by_key(|(label, _)| *label);
        let labels = sources
            .into_iter()
            .map(|(label, source)| (label, source, shared.rules.of(name, label)))
            .collect();
        let desc = Desc {
            name: full_name.clone(),
            help,
            labels,
            bounds: bounds(shared),
        };
        let family = Family::new(desc, shared.clone());
        if let Some(inner) = family.inner() {
            families.insert(full_name, inner);
        }
        family
    }

    /// Appends the exposition of every observed family, sorted by name.
    pub fn render(&self, format: Format, out: &mut String) {
        let Some(shared) = &self.shared else { return };
        let families: Vec<_> = shared
            .families
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        for family in families {
            family.render(format, out);
        }
        let overflow = shared.overflow.load(Ordering::Relaxed);
        if overflow > 0 {
            let name = "dapr_metrics_series_dropped_total";
            encode::header(
                format,
                out,
                name,
                "Label sets counted under the label value other.",
                "counter",
            );
            let mut labels = String::from("app_id=\"");
            encode::push_escaped(&mut labels, &shared.app_id);
            labels.push('"');
            encode::sample(
                format,
                out,
                name,
                &labels,
                &super::cell::Sample::Number(overflow as f64),
            );
        }
    }
}
