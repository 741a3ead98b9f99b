//! Problems of resources, as logged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrigger_policy::resiliency;
use outrigger_resources::{Kind, Loaded, Problem};

/// Maximum number of findings per part.
const MAX_FINDINGS: usize = 500;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gravity {
    /// Something does not run because of it.
    Error,
    /// Something is unusual.
    Warning,
    /// The resource belongs to other apps.
    Info,
}

impl Gravity {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }

    const fn of(error: bool) -> Self {
        match error {
            true => Self::Error,
            false => Self::Warning,
        }
    }
}

/// A finding about a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub gravity: Gravity,
    /// File and line; empty if the resource came from no file.
    pub place: String,
    /// The message.
    pub text: String,
}

impl Finding {
    fn of(problem: &Problem, gravity: Gravity) -> Self {
        Self {
            gravity,
            place: problem.place(),
            text: format!("{} ({})", problem.what, problem.remedy),
        }
    }
}

impl From<&Problem> for Finding {
    fn from(problem: &Problem) -> Self {
        Self::of(problem, Gravity::of(problem.error))
    }
}

impl From<&resiliency::Problem> for Finding {
    fn from(problem: &resiliency::Problem) -> Self {
        let text = match problem.effect.as_str() {
            "" => problem.text.clone(),
            effect => format!("{}; {effect}", problem.text),
        };
        Self {
            gravity: Gravity::of(problem.error),
            place: problem.place.to_string(),
            text,
        }
    }
}

/// The findings of a sidecar: written at start and at each reload, read only for the status page.
#[derive(Debug, Default)]
pub struct Findings(Mutex<BTreeMap<(&'static str, String), Vec<Finding>>>);

impl Findings {
    /// Replaces the findings for `name` of a part.
    pub fn set(&self, part: &'static str, name: &str, found: impl IntoIterator<Item = Finding>) {
        let found: Vec<_> = found.into_iter().take(MAX_FINDINGS).collect();
        let key = (part, name.to_owned());
        let mut all = self.locked();
        match found.is_empty() {
            true => all.remove(&key),
            false => all.insert(key, found),
        };
    }

    /// Records what a source reported about all resources, or about one kind.
    pub fn listed(&self, of: Option<Kind>, loaded: &Loaded) {
        const PART: &str = "resources";
        let others = |finding: &Finding| of.is_some_and(|kind| !finding.text.starts_with(kind.name()));
        let known = self.locked().remove(&(PART, String::new()));
        let known = known.into_iter().flatten().filter(others);
        let warnings = loaded.warnings.iter().map(Finding::from);
        let left_out = loaded.left_out.iter();
        let left_out = left_out.map(|problem| Finding::of(problem, Gravity::Info));
        self.set(PART, "", known.chain(warnings).chain(left_out));
    }

    /// All findings.
    pub fn all(&self) -> Vec<Finding> {
        self.locked().values().flatten().cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Vec<Finding>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
