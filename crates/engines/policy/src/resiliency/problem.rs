//! Errors in documents, and their effects.

use std::fmt::{self, Display, Formatter};

use outrigger_resources::meta::Source;
use outrigger_resources::resiliency as spec;

use super::builtin::Builtin;
use super::named::{Named, PolicyKind};
use super::undefined::policies_of;

/// Maximum number of targets listed in an effect.
const SHOWN: usize = 5;

/// An error in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether to log an error instead of a warning.
    pub error: bool,
    /// The cause.
    pub text: String,
    /// The effect on the document; empty if the text states it.
    pub effect: String,
    /// The location of the wrong value; without a file for a document from the operator.
    pub place: Source,
}

impl Problem {
    pub(super) fn warning(doc: &spec::Resiliency, key: &str, text: String) -> Self {
        Self {
            error: false,
            text,
            effect: String::new(),
            place: doc.source.of(key),
        }
    }

    /// The cause with its location, without the effect.
    pub fn reason(&self) -> String {
        match self.place.file.as_os_str().is_empty() {
            true => self.text.clone(),
            false => format!("{}: {}", self.place, self.text),
        }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())?;
        match self.effect.as_str() {
            "" => Ok(()),
            effect => write!(f, "; {effect}"),
        }
    }
}

/// Errors of the documents so far. Effects are known once all documents are merged.
#[derive(Default)]
pub(super) struct Problems<'d>(Vec<(Problem, Option<Part<'d>>)>);

/// The part of a document with the wrong value.
enum Part<'d> {
    Policy(PolicyKind, &'d str),
    /// Another key.
    Other(String),
}

impl<'d> Problems<'d> {
    pub(super) fn warn(&mut self, problem: Problem) {
        self.0.push((problem, None));
    }

    /// Adds an error in a policy, at a key of the document.
    pub(super) fn policy(
        &mut self,
        doc: &'d spec::Resiliency,
        kind: PolicyKind,
        name: &'d str,
        place: Source,
        what: &str,
    ) {
        self.error(doc, Part::Policy(kind, name), place, what);
    }

    /// Adds an error in a target; `effect` states what is missing there.
    pub(super) fn target(&mut self, doc: &'d spec::Resiliency, key: &str, what: &str, effect: String) {
        self.error(doc, Part::Other(effect), doc.source.of(key), what);
    }

    /// Adds the values that could not be decoded.
    pub(super) fn mistakes(&mut self, doc: &'d spec::Resiliency) {
        for mistake in &doc.mistakes {
            let part = PolicyKind::ALL
                .iter()
                .find_map(|kind| {
                    let mut names = kind.names(&doc.policies);
                    let name = names.find(|name| mistake.is_in(kind.section(), name))?;
                    Some(Part::Policy(*kind, name))
                })
                .unwrap_or_else(|| Part::Other(format!("nothing that {} says applies", mistake.key)));
            let place = Source::new(&doc.source.file, mistake.line);
            self.error(doc, part, place, &mistake.what);
        }
    }

    fn error(&mut self, doc: &spec::Resiliency, part: Part<'d>, place: Source, what: &str) {
        let problem = Problem {
            error: true,
            text: format!("Could not read resiliency policy {}: {what}", doc.name),
            effect: String::new(),
            place,
        };
        self.0.push((problem, Some(part)));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is an error after the first `first` entries.
    pub(super) fn has_error_after(&self, first: usize) -> bool {
        self.0.iter().skip(first).any(|(problem, _)| problem.error)
    }

    /// All errors, with their effects on the merged documents.
    pub(super) fn finish(self, named: &Named, targets: &spec::Targets) -> Vec<Problem> {
        let finished = self.0.into_iter().map(|(problem, part)| {
            let effect = match part {
                None => String::new(),
                Some(Part::Other(effect)) => effect,
                Some(Part::Policy(kind, name)) => effect_of_policy(kind, name, named, targets),
            };
            Problem { effect, ..problem }
        });
        finished.collect()
    }
}

fn effect_of_policy(kind: PolicyKind, name: &str, named: &Named, targets: &spec::Targets) -> String {
    let what = kind.what();
    if named.has(kind, name) {
        return match Builtin::ALL.iter().any(|builtin| builtin.name() == name) {
            true => format!("the built-in {what} applies"),
            false => format!("the {what} {name:?} of another document applies"),
        };
    }
    let users: Vec<String> = policies_of(targets)
        .into_iter()
        .filter(|(_, names)| names[kind as usize].as_str() == name)
        .map(|(target, _)| target)
        .collect();
    if name.starts_with("Default") && name.ends_with("Policy") {
        return format!("the {what} {name:?} does not apply to targets without an entry");
    }
    if users.is_empty() {
        return format!("the {what} {name:?} does not apply; no target names it");
    }
    let shown = users.iter().take(SHOWN).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match users.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("the {what} {name:?} does not apply to {shown}{more}")
}
