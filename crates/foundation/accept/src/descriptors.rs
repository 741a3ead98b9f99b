//! How many descriptors the process may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many descriptors as the system allows this process (`ulimit -Hn`). Servers call it once, at their start.
pub fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(target: crate::LOG, "the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// How many descriptors the process may have at this time.
pub fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Whether something failed for the lack of a descriptor: servers make room then, so that it may succeed soon.
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
