use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

use outrigger_component::{Error, Kind, Result};

/// Folders where reading and writing is refused: kernel, boot loader, pod credentials.
const REFUSED: [&str; 5] = ["/proc", "/sys", "/boot", "/var/run/secrets", "/run/secrets"];
/// Maximum symbolic links followed for one name.
const MAX_LINKS: usize = 255;

/// A folder that acts as the root for names.
pub(super) struct Root(PathBuf);

impl Root {
    /// Opens the folder, creating it if needed. Links in its path are resolved once, here.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("the folder cannot be used: {error}");
        let path = std::path::absolute(path).map_err(wrong)?;
        // Existing parts are checked for links before anything is created.
        let mut present = path.as_path();
        while let Err(error) = fs::symlink_metadata(present) {
            match present.parent() {
                Some(parent) if error.kind() == io::ErrorKind::NotFound => present = parent,
                _ => return Err(wrong(error)),
            }
        }
        let mut resolved = present.canonicalize().map_err(wrong)?;
        let rest = path.strip_prefix(present).unwrap_or_else(|_| Path::new(""));
        if rest.components().any(|part| part == Component::ParentDir) {
            return Err("a folder that does not exist yet cannot be named with ..".to_owned());
        }
        resolved.extend(rest.components());
        if refused(&resolved) {
            return Err("it points to a disallowed location".to_owned());
        }
        fs::create_dir_all(&resolved).map_err(wrong)?;
        Ok(Self(resolved))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Resolves `name`: `..` stops at the root, and absolute links are relative to the root.
    ///
    /// # Errors
    /// Too many links, an invalid name, or a refused folder.
    pub(super) fn inside(&self, name: &str) -> Result<PathBuf> {
        if name.contains('\0') {
            return Err(Error::invalid_request("a file name cannot contain a zero byte"));
        }
        let mut left: VecDeque<Step> = steps(Path::new(name)).collect();
        let mut inside = PathBuf::new();
        let mut links = 0;
        while let Some(step) = left.pop_front() {
            let part = match step {
                Step::Root => {
                    inside = PathBuf::new();
                    continue;
                }
                Step::Up => {
                    inside.pop();
                    continue;
                }
                Step::Down(part) => part,
            };
            inside.push(part);
            let Ok(target) = fs::read_link(self.0.join(&inside)) else {
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::invalid_request(format!("{name}: too many links")));
            }
            inside.pop();
            for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(step);
            }
        }
        let path = if inside.as_os_str().is_empty() {
            self.0.clone()
        } else {
            self.0.join(inside)
        };
        if refused(&path) {
            let text = format!("{name} points to a disallowed location");
            return Err(Error::new(Kind::Denied, text));
        }
        Ok(path)
    }
}

enum Step {
    Root,
    Up,
    Down(OsString),
}

fn steps(path: &Path) -> impl Iterator<Item = Step> + '_ {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(part) => Some(Step::Down(part.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

fn refused(path: &Path) -> bool {
    REFUSED.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("root")).unwrap();
        (folder, root)
    }

    #[test]
    fn names_stay_inside_root() {
        let (_folder, root) = root();
        for (name, expected) in [
            ("a/b", "a/b"),
            ("/a", "a"),
            ("../../../etc/passwd", "etc/passwd"),
            ("a/../../../b", "b"),
            ("./a//b/.", "a/b"),
            ("..", ""),
            ("", ""),
        ] {
            let path = root.inside(name).unwrap();
            let inside = path.strip_prefix(root.path()).unwrap();
            assert_eq!(inside, Path::new(expected), "{name}");
        }
        assert!(root.inside("a\0b").is_err());
    }

    #[test]
    fn follows_links_inside_root_only() {
        let (folder, root) = root();
        fs::write(folder.path().join("secret"), "x").unwrap();
        fs::create_dir_all(root.path().join("real")).unwrap();
        symlink(folder.path().join("secret"), root.path().join("absolute")).unwrap();
        symlink("../secret", root.path().join("relative")).unwrap();
        symlink("real", root.path().join("good")).unwrap();
        symlink("loop", root.path().join("loop")).unwrap();
        for name in ["absolute", "relative"] {
            let path = root.inside(name).unwrap();
            assert!(path.starts_with(root.path()) && !path.exists(), "{path:?}");
        }
        assert_eq!(root.inside("good/file").unwrap(), root.path().join("real/file"));
        assert!(root.inside("loop").is_err());
    }

    #[test]
    fn rejects_protected_roots() {
        for path in [
            "/proc/self",
            "/sys",
            "/boot/x",
            "/var/run/secrets/y",
            "/tmp/../proc/x",
        ] {
            assert!(Root::open(Path::new(path)).is_err(), "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/proc", &link).unwrap();
        assert!(Root::open(&link.join("self")).is_err());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Root::open(&file).is_err());
    }

    #[test]
    fn parent_root_does_not_expose_protected_folders() {
        let root = Root(PathBuf::from("/"));
        let error = root.inside("proc/self/environ").unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
    }
}
