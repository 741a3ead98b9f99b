//! A named metric and its series, one per set of label values.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::cell::Metric;
use super::encode::{self, Format};
use super::registry::RegistryInner;
use super::rules::LabelRules;

/// Value of all labels once a family has its maximum number of series.
const OTHER: &str = "other";
/// Maximum bytes of a label value: callers choose methods and paths.
const MAX_LABEL: usize = 256;
/// Suffix of a truncated value.
const CUT: &str = "...";

/// A metric with `N` variable labels. [`Family::with`] resolves a handle; cache it as long as the target
/// lives.
pub struct Family<M, const N: usize> {
    inner: Option<Arc<Inner<M, N>>>,
}

impl<M, const N: usize> Clone for Family<M, N> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<M, const N: usize> fmt::Debug for Family<M, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family")
            .field(&self.inner.as_ref().map(|i| &i.desc.name))
            .finish()
    }
}

/// Source of a label's value.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Constant(Arc<str>),
    Variable(usize),
}

/// The description of a family, without its series.
#[derive(Debug)]
pub(super) struct Desc {
    /// With the `dapr_` prefix.
    pub(super) name: String,
    pub(super) help: &'static str,
    /// Sorted by name, like Dapr's exposition.
    pub(super) labels: Vec<(&'static str, Source, LabelRules)>,
    pub(super) bounds: Arc<[u64]>,
}

pub(super) struct Inner<M, const N: usize> {
    desc: Desc,
    registry: Arc<RegistryInner>,
    /// Keyed by the rendered labels.
    series: RwLock<HashMap<Box<str>, M>>,
}

impl<M: Metric, const N: usize> Family<M, N> {
    pub(super) fn disabled() -> Self {
        Self { inner: None }
    }

    pub(super) fn new(desc: Desc, registry: Arc<RegistryInner>) -> Self {
        Self {
            inner: Some(Arc::new(Inner {
                desc,
                registry,
                series: RwLock::default(),
            })),
        }
    }

    pub(super) fn inner(&self) -> Option<Arc<Inner<M, N>>> {
        self.inner.clone()
    }

    /// Whether observations are recorded.
    pub fn is_enabled(&self) -> bool {
        self.inner.is_some()
    }

    /// The handle for these label values, in the family's order. Takes a lock: resolve once per target, not
    /// per request.
    pub fn with(&self, values: [&str; N]) -> M {
        let Some(inner) = &self.inner else {
            return M::default();
        };
        let labels = inner.desc.render_labels(&values);
        if let Some(metric) = inner.read().get(labels.as_str()) {
            return metric.clone();
        }
        let mut series = inner.series.write().unwrap_or_else(PoisonError::into_inner);
        let labels = if series.len() < inner.registry.max_series || series.contains_key(labels.as_str()) {
            labels
        } else {
            inner.registry.count_overflow();
            inner.desc.render_labels(&[OTHER; N])
        };
        series
            .entry(labels.into_boxed_str())
            .or_insert_with(|| M::recording(&inner.desc.bounds))
            .clone()
    }
}

impl Desc {
    /// `name="value",...` with values rewritten, truncated and escaped.
    fn render_labels(&self, values: &[&str]) -> String {
        let mut out = String::with_capacity(96);
        for (i, (name, source, rules)) in self.labels.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            let value: &str = match source {
                Source::Constant(value) => value,
                Source::Variable(index) => values[*index],
            };
            out.push_str(name);
            out.push_str("=\"");
            let value = rules.apply(value);
            if value.len() <= MAX_LABEL {
                encode::push_escaped(&mut out, &value);
            } else {
                encode::push_escaped(&mut out, &value[..value.floor_char_boundary(MAX_LABEL)]);
                out.push_str(CUT);
            }
            out.push('"');
        }
        out
    }
}

impl<M, const N: usize> Inner<M, N> {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Box<str>, M>> {
        self.series.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A type-erased family for the registry.
pub(super) trait AnyFamily: Send + Sync {
    fn render(&self, format: Format, out: &mut String);
    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
}

impl<M: Metric, const N: usize> AnyFamily for Inner<M, N> {
    fn render(&self, format: Format, out: &mut String) {
        // Handles are cloned, so that a scrape does not block the resolution of new ones.
        let mut series: Vec<(Box<str>, M)> =
            self.read().iter().map(|(k, m)| (k.clone(), m.clone())).collect();
        series.sort_by(|a, b| a.0.cmp(&b.0));
        let mut samples = series
            .iter()
            .filter_map(|(labels, metric)| Some((labels, metric.sample()?)))
            .peekable();
        if samples.peek().is_none() {
            return;
        }
        encode::header(format, out, &self.desc.name, self.desc.help, M::KIND);
        for (labels, sample) in samples {
            encode::sample(format, out, &self.desc.name, labels, &sample);
        }
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

impl<M: Metric, const N: usize> From<Arc<Inner<M, N>>> for Family<M, N> {
    fn from(inner: Arc<Inner<M, N>>) -> Self {
        Self { inner: Some(inner) }
    }
}
