//! Safe reading of files named by users: configuration, resources, keys, secrets, certificates.
//!
//! A path may lead to a named pipe without a writer, a terminal, an endless device, or a hanging network
//! file system. Therefore only regular files are read (symbolic links are followed, because mounted secrets
//! are links), up to 64 MiB, and no read blocks the caller for longer than [`DEADLINE`].
//!
//! Also creates files that only their owner may read, for payloads and keys.

use std::fs::{DirBuilder, File, FileType, Metadata, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Maximum file size in bytes.
const MAX_SIZE: usize = 64 << 20;

/// Timeout of a read.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Opens a regular file for reading, without blocking on other file types.
///
/// # Errors
/// [`ErrorKind::IsADirectory`] for a directory, [`ErrorKind::InvalidInput`] with the file type for other
/// non-regular files, or the system's error.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device can already have an effect.
    check(&std::fs::metadata(path)?)?;
    // The path may have become a pipe since; O_NONBLOCK avoids waiting for its writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// The contents of a regular file. Blocks for [`DEADLINE`] at most; a hanging file system leaks the reading
/// thread.
///
/// # Errors
/// As [`open`]; [`ErrorKind::FileTooLarge`]; [`ErrorKind::TimedOut`] if the file system does not respond.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let (done, contents) = mpsc::sync_channel(1);
    let path = path.to_owned();
    let reader = thread::Builder::new().name("file".to_owned());
    // The caller may have timed out.
    reader.spawn(move || drop(done.try_send(read_whole(&path, MAX_SIZE))))?;
    contents
        .recv_timeout(DEADLINE)
        .unwrap_or_else(|_| Err(too_slow()))
}

/// Like [`read`], for UTF-8 text.
///
/// # Errors
/// As [`read`], and [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// Like [`read`], without blocking the thread. Needs a tokio runtime.
///
/// # Errors
/// As [`read`].
pub async fn read_async(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    // The pool's thread is free again after the deadline.
    let reading = tokio::task::spawn_blocking(move || read(&path));
    reading.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Like [`read_text`], without blocking the thread.
///
/// # Errors
/// As [`read_text`].
pub async fn read_text_async(path: &Path) -> io::Result<String> {
    text(read_async(path).await?)
}

/// Creates a directory and its missing parents, accessible only to their owner (0700).
///
/// # Errors
/// Of the system; none if the directory exists.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates an empty file that only its owner may read and write (0600).
///
/// # Errors
/// Of the system; none if the file exists.
pub fn create_private(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Restricts an existing file or directory to its owner.
///
/// # Errors
/// Of the system, for example for another user's file.
pub fn make_private(path: &Path) -> io::Result<()> {
    let mode = match std::fs::metadata(path) {
        Ok(found) => found.permissions().mode(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match mode & 0o077 {
        0 => Ok(()),
        _ => std::fs::set_permissions(path, Permissions::from_mode(mode & 0o700)),
    }
}

fn read_whole(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX);
    open(path)?
        .take(most.saturating_add(1))
        .read_to_end(&mut contents)?;
    if contents.len() > limit {
        let text = format!("the file is larger than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(contents)
}

fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let text = format!("it is {}, not a regular file", describe(found.file_type()));
    Err(match found.is_dir() {
        true => io::Error::new(ErrorKind::IsADirectory, text),
        false => io::Error::new(ErrorKind::InvalidInput, text),
    })
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe (FIFO)",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_block_device() => "a block device",
        _ => "something else",
    }
}

fn text(contents: Vec<u8>) -> io::Result<String> {
    String::from_utf8(contents)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "the file is not UTF-8 text"))
}

fn too_slow() -> io::Error {
    let text = format!("nothing was read within {DEADLINE:?}: the file system does not answer");
    io::Error::new(ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        (folder, file)
    }

    fn fifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[tokio::test]
    async fn reads_regular_files_and_links() {
        let (folder, file) = folder();
        let link = folder.path().join("link");
        symlink(&file, &link).unwrap();
        symlink("link", folder.path().join("again")).unwrap();
        for path in [file, link, folder.path().join("again")] {
            assert_eq!(read(&path).unwrap(), b"text");
            assert_eq!(read_text(&path).unwrap(), "text");
            assert_eq!(read_async(&path).await.unwrap(), b"text");
            assert_eq!(read_text_async(&path).await.unwrap(), "text");
        }
    }

    #[tokio::test]
    async fn rejects_other_file_types() {
        let (folder, _) = folder();
        let pipe = folder.path().join("pipe");
        fifo(&pipe);
        let link = folder.path().join("link");
        symlink(&pipe, &link).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (pipe.as_path(), "a named pipe (FIFO)"),
            (&link, "a named pipe (FIFO)"),
            (&socket, "a socket"),
            (Path::new("/dev/zero"), "a character device"),
            (folder.path(), "a directory"),
        ] {
            let wanted = format!("it is {what}, not a regular file");
            assert_eq!(read(path).unwrap_err().to_string(), wanted);
            assert_eq!(read_async(path).await.unwrap_err().to_string(), wanted);
        }
        assert_eq!(read(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn creates_private_files() {
        let (folder, file) = folder();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let inner = folder.path().join("a/b");
        create_private_folder(&inner).unwrap();
        create_private(&inner.join("new")).unwrap();
        assert_eq!(mode(&inner), 0o700);
        assert_eq!(mode(&folder.path().join("a")), 0o700);
        assert_eq!(mode(&inner.join("new")), 0o600);
        // An existing file keeps its contents, and its permissions until they are restricted.
        std::fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
        create_private(&file).unwrap();
        assert_eq!((mode(&file), read(&file).unwrap().len()), (0o664, 4));
        make_private(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        make_private(&file.with_extension("missing")).unwrap();
    }

    #[test]
    fn checks_size_and_encoding() {
        let (_folder, file) = folder();
        assert_eq!(read_whole(&file, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        std::fs::write(&file, b"\xff").unwrap();
        assert_eq!(read_text(&file).unwrap_err().kind(), ErrorKind::InvalidData);
        let missing = file.with_extension("missing");
        assert_eq!(read(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
