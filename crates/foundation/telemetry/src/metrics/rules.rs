//! Rewriting of label values.

use std::borrow::Cow;
use std::sync::Arc;

use regex::Regex;

use super::{MetricsError, RewriteRule};

/// The error in a regular expression, if any.
pub fn wrong_regex(pattern: &str) -> Option<String> {
    let error = Regex::new(pattern).err()?.to_string();
    // The earlier lines show the position.
    let reason = error.lines().last().unwrap_or_default();
    Some(reason.trim_start_matches("error: ").to_owned())
}

/// All rules, looked up by metric and label when a family is created.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<(String, String, LabelRules)>,
}

/// The rewrites of one label, in order. Usually none.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelRules(Option<Arc<[(Regex, String)]>>);

impl Rules {
    pub(super) fn new(rules: &[RewriteRule]) -> Result<Self, MetricsError> {
        let mut out = Vec::new();
        for rule in rules {
            let metric = rule
                .name
                .strip_prefix("dapr_")
                .unwrap_or(&rule.name)
                .replace('/', "_");
            for label in &rule.labels {
                let mut pairs = Vec::with_capacity(label.regex.len());
                for (replacement, pattern) in &label.regex {
                    let regex = Regex::new(pattern).map_err(|source| MetricsError::Regex {
                        metric: rule.name.clone(),
                        label: label.name.clone(),
                        replacement: replacement.clone(),
                        source: Box::new(source),
                    })?;
                    pairs.push((regex, replacement.clone()));
                }
                out.push((metric.clone(), label.name.clone(), LabelRules(Some(pairs.into()))));
            }
        }
        Ok(Self { rules: out })
    }

    /// The rules of a label; the last of several rules wins.
    pub(super) fn of(&self, metric: &str, label: &str) -> LabelRules {
        let found = self
            .rules
            .iter()
            .rev()
            .find(|(m, l, _)| m == metric && l == label);
        found.map(|(_, _, rules)| rules.clone()).unwrap_or_default()
    }
}

impl LabelRules {
    /// Replaces every match of every pattern. Empty values stay empty.
    pub(super) fn apply<'a>(&self, value: &'a str) -> Cow<'a, str> {
        let mut value = Cow::Borrowed(value);
        for (regex, replacement) in self.0.iter().flat_map(|rules| rules.iter()) {
            if value.is_empty() {
                break;
            }
            if let Cow::Owned(new) = regex.replace_all(&value, replacement.as_str()) {
                value = Cow::Owned(new);
            }
        }
        value
    }
}
