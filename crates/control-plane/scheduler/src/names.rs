//! Names of jobs: how they are composed of namespace, target and the caller's name, and which characters they
//! may contain.

use outrigger_schedule::engine::Target;
use outrigger_wire::scheduler::v1::{JobMetadata, job_target_metadata::Type};

/// Separates the parts of a name.
const SEPARATOR: &str = "||";
/// First part of the name of an app's job.
const APP: &str = "app";
/// First part of the name of an actor's reminder.
const ACTOR: &str = "actorreminder";
/// Maximum length of a full name or a key in bytes.
pub(crate) const MAX_NAME: usize = 512;

/// Why a name is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    /// `metadata.target` is neither `job` nor `actor`.
    #[error("unknown job type: set metadata.target to job or to actor")]
    NoTarget,
    /// The name is empty.
    #[error("job name is empty: set name")]
    Empty,
    /// The name is longer than the key of a store may be.
    #[error(
        "job name of {0} bytes is too long: the maximum is {MAX_NAME} bytes for namespace, app id or actor, and name \
         together"
    )]
    Long(usize),
    /// The name has a forbidden character.
    #[error("job name '{0}' is invalid: it contains {1:?}; / \\ # ? and control characters are not allowed")]
    Character(String, char),
    /// A part of the name would be a relative folder.
    #[error("job name '{0}' is invalid: no part may be . or ..")]
    Dots(String),
}

/// The kind of a job, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Actor,
}

impl Kind {
    /// The kind of the job with this full name.
    pub(crate) fn of(name: &str) -> Self {
        if name.starts_with(ACTOR) {
            Self::Actor
        } else {
            Self::Job
        }
    }
}

/// The prefixes of all jobs of a namespace: actor reminders and app jobs.
pub(crate) fn of_namespace(namespace: &str) -> [String; 2] {
    [ACTOR, APP].map(|kind| format!("{kind}{SEPARATOR}{namespace}{SEPARATOR}"))
}

/// Sorts directly after [`SEPARATOR`].
const AFTER_SEPARATOR: &str = "|}";

/// The key ranges of app jobs and of actor reminders.
pub(crate) fn kinds() -> [[String; 2]; 2] {
    [ACTOR, APP].map(|kind| [SEPARATOR, AFTER_SEPARATOR].map(|end| format!("{kind}{end}")))
}

/// The namespace of a job, and a name that sorts after all jobs of its kind in that namespace.
pub(crate) fn namespace(name: &str) -> Option<(&str, String)> {
    let (kind, rest) = name.split_once(SEPARATOR)?;
    let (namespace, _) = rest.split_once(SEPARATOR)?;
    Some((
        namespace,
        format!("{kind}{SEPARATOR}{namespace}{AFTER_SEPARATOR}"),
    ))
}

/// The full name of a job.
///
/// # Errors
/// [`NameError`].
pub(crate) fn compose(metadata: &JobMetadata, name: &str) -> Result<String, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    let whole = format!("{}{name}", prefix(metadata)?);
    check(&whole)?;
    Ok(whole)
}

/// The prefix of all jobs of a target, the separator included. For an actor without id: of all actors of the
/// type.
///
/// # Errors
/// [`NameError`].
pub(crate) fn prefix(metadata: &JobMetadata) -> Result<String, NameError> {
    Ok(format!("{}{SEPARATOR}", open_prefix(metadata)?))
}

/// As [`prefix`], without the last separator, so that it also matches longer ids.
///
/// # Errors
/// [`NameError`].
pub(crate) fn open_prefix(metadata: &JobMetadata) -> Result<String, NameError> {
    let namespace = &metadata.namespace;
    let of = metadata.target.as_ref().and_then(|target| target.r#type.as_ref());
    let prefix = match of.ok_or(NameError::NoTarget)? {
        Type::Job(_) => [APP, namespace, &metadata.app_id].join(SEPARATOR),
        Type::Actor(actor) if actor.id.is_empty() => [ACTOR, namespace, &actor.r#type].join(SEPARATOR),
        Type::Actor(actor) => [ACTOR, namespace, &actor.r#type, &actor.id].join(SEPARATOR),
    };
    if prefix.len() > MAX_NAME {
        return Err(NameError::Long(prefix.len()));
    }
    Ok(prefix)
}

/// The caller's name for the job with this full name. `metadata` belongs to the job; it is needed because
/// actor ids and names may contain the separator.
pub(crate) fn own<'n>(name: &'n str, metadata: &JobMetadata) -> &'n str {
    let prefix = prefix(metadata).unwrap_or_default();
    name.strip_prefix(&prefix).unwrap_or(name)
}

/// The target of a job's triggers; `None` if the metadata names none.
pub(crate) fn target(metadata: &JobMetadata) -> Option<Target> {
    let namespace = metadata.namespace.as_str().into();
    Some(match metadata.target.as_ref()?.r#type.as_ref()? {
        Type::Job(_) => Target::App {
            namespace,
            id: metadata.app_id.as_str().into(),
        },
        Type::Actor(actor) => Target::ActorType {
            namespace,
            name: actor.r#type.as_str().into(),
        },
    })
}

/// The key by which limits count the triggers of a job. A key longer than a name may be is ignored: no limit
/// has such a key.
pub(crate) fn key(metadata: JobMetadata) -> Option<String> {
    metadata.concurrency_key.filter(|key| key.len() <= MAX_NAME)
}

fn check(whole: &str) -> Result<(), NameError> {
    if whole.len() > MAX_NAME {
        return Err(NameError::Long(whole.len()));
    }
    let is_bad = |c: &char| matches!(c, '/' | '\\' | '#' | '?') || c.is_control();
    if let Some(bad) = whole.chars().find(is_bad) {
        return Err(NameError::Character(whole.to_owned(), bad));
    }
    if whole.split(SEPARATOR).any(|part| part == "." || part == "..") {
        return Err(NameError::Dots(whole.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_wire::scheduler::v1::{JobTargetMetadata, TargetActorReminder, TargetJob};

    use super::*;

    fn metadata(of: Option<Type>) -> JobMetadata {
        JobMetadata {
            app_id: "app1".into(),
            namespace: "ns".into(),
            target: Some(JobTargetMetadata { r#type: of }),
            concurrency_key: None,
        }
    }

    fn actor(id: &str) -> JobMetadata {
        metadata(Some(Type::Actor(TargetActorReminder {
            id: id.into(),
            r#type: "type".into(),
        })))
    }

    #[test]
    fn composes_names_with_target() {
        let job = metadata(Some(Type::Job(TargetJob {})));
        assert_eq!(compose(&job, "n").unwrap(), "app||ns||app1||n");
        assert_eq!(open_prefix(&job).unwrap(), "app||ns||app1");
        assert_eq!(
            compose(&actor("7"), "n").unwrap(),
            "actorreminder||ns||type||7||n"
        );
        assert_eq!(prefix(&actor("")).unwrap(), "actorreminder||ns||type||");
        assert_eq!(Kind::of("actorreminder||ns||type||7||n"), Kind::Actor);
    }

    #[test]
    fn accepts_separators_in_names() {
        let job = metadata(Some(Type::Job(TargetJob {})));
        for metadata in [job, actor("7"), actor("7||8"), actor("||")] {
            for name in ["n", "a|b", "a||b", "||a", "a||", "|", "a@b c%"] {
                let whole = compose(&metadata, name).unwrap();
                assert_eq!(own(&whole, &metadata), name, "{whole}");
            }
        }
    }

    #[test]
    fn refuses_unsafe_names() {
        let job = metadata(Some(Type::Job(TargetJob {})));
        for good in ["a", "A b", "a@b|c", "a||b", "...", "ü", "a..b", "a%b"] {
            assert!(compose(&job, good).is_ok(), "{good}");
        }
        for bad in [
            "", "a/b", "a\\b", "a#", "?", "a\0", "a\n", "\u{7f}", ".", "..", "a||..||b",
        ] {
            assert!(compose(&job, bad).is_err(), "{bad:?}");
        }
        assert_eq!(compose(&job, &"x".repeat(600)), Err(NameError::Long(615)));
        assert_eq!(compose(&metadata(None), "a"), Err(NameError::NoTarget));
        assert!(compose(&actor(".."), "a").is_err());
    }
}
