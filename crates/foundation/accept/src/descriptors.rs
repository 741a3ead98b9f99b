//! File descriptor limits.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to the hard limit (`ulimit -Hn`). Servers call it once at startup.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(target: crate::LOG, "cannot raise the limit of open files from {:?}: {error}", limit.current);
    }
}

/// The current limit on open files.
pub fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Whether an operation failed for lack of descriptors; servers then evict connections.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_to_hard_limit() {
        let lower = Rlimit {
            current: Some(256),
            ..getrlimit(Resource::Nofile)
        };
        setrlimit(Resource::Nofile, lower).unwrap();
        assert_eq!(descriptors(), 256);
        raise_descriptors();
        assert_eq!(
            getrlimit(Resource::Nofile).current,
            getrlimit(Resource::Nofile).maximum
        );
    }
}
