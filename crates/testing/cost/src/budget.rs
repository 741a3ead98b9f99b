//! The budget file: a section per kind of call with its allowed instructions and allocations.

use std::collections::BTreeMap;
use std::fmt;

use crate::call_path::Kind;

/// Maximum ratio of measured to allowed cost.
pub(crate) const TOLERANCE: f64 = 1.02;

/// The cost of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Budget(BTreeMap<String, Cost>);

#[derive(Debug, thiserror::Error)]
#[error(
    "line {line}: expected a [section], a comment, or instructions or allocations = NUMBER, not {text:?}"
)]
pub(crate) struct BudgetError {
    line: usize,
    text: String,
}

impl Budget {
    pub(crate) fn of(measured: &[(Kind, Cost)]) -> Self {
        let named = measured
            .iter()
            .map(|(kind, cost)| (kind.name().to_owned(), *cost));
        Self(named.collect())
    }

    /// Parses sections of `name = number`; comments start with `#`.
    pub(crate) fn parse(text: &str) -> Result<Self, BudgetError> {
        let mut budget = Self::default();
        let mut section = None;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            let wrong = || BudgetError {
                line: at + 1,
                text: line.to_owned(),
            };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = Some(budget.0.entry(name.to_owned()).or_default());
                continue;
            }
            let cost = section.as_mut().ok_or_else(wrong)?;
            let (name, value) = line.split_once('=').ok_or_else(wrong)?;
            let value = value.trim().replace('_', "").parse().map_err(|_| wrong())?;
            match name.trim() {
                "instructions" => cost.instructions = value,
                "allocations" => cost.allocations = value,
                _ => return Err(wrong()),
            }
        }
        Ok(budget)
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> Option<Cost> {
        self.0.get(kind.name()).copied()
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Allowed cost of one call through client, sidecars and app; see `make cost`."
        )?;
        for (name, cost) in &self.0 {
            writeln!(f, "\n[{name}]")?;
            writeln!(f, "instructions = {:.0}", cost.instructions)?;
            writeln!(f, "allocations = {:.1}", cost.allocations)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Cost};
    use crate::call_path::Kind;

    #[test]
    fn budget_round_trips() {
        let cost = Cost {
            instructions: 123_456.0,
            allocations: 78.5,
        };
        let budget = Budget::of(&[(Kind::HttpToHttp, cost)]);
        let again = Budget::parse(&budget.to_string()).unwrap();
        assert_eq!(again, budget);
        assert_eq!(again.of_kind(Kind::HttpToHttp), Some(cost));
        assert_eq!(again.of_kind(Kind::Proxy), None);
    }

    #[test]
    fn errors_name_line() {
        for (text, line) in [
            ("instructions = 1", 1),
            ("[proxy]\ninstructions = many", 2),
            ("[proxy]\n\ncycles = 1", 3),
        ] {
            assert_eq!(Budget::parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
