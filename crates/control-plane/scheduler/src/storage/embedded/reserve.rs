//! A reserve of disk space for when the disk is full. SQLite needs space to delete, and to open a store that
//! was not closed.
//!
//! The reserve is a file in the data folder. When a write finds no space, the file shrinks step by step, and
//! new jobs are refused until it has its full size again. The last step is kept for the next start.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::Location;

const LOG: &str = "dapr.scheduler.storage";
/// Name of the file in the data folder.
const FILE: &str = "reserve";
/// Size of the file in bytes: about twice the size at which SQLite checkpoints its log.
const SIZE: u64 = 8 << 20;
/// Step in bytes by which the file shrinks, and the free space to leave next to it.
const STEP: u64 = 1 << 20;
/// Free space needed to create the file.
const SIZE_AND_STEP: u64 = SIZE + STEP;
/// Bytes per write.
const CHUNK: usize = 64 << 10;

/// The reserve and its state.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    /// `None`: the disk never had space for the reserve.
    is_short: Option<bool>,
}

impl Reserve {
    /// Gives up the reserve of the previous run, so that the store can be opened.
    pub(super) fn release(location: &Location) -> Self {
        let path = location.folder.join(FILE);
        let opened = OpenOptions::new().write(true).open(&path);
        let released = opened.and_then(|file| file.set_len(0)).is_ok();
        Self {
            path,
            is_short: released.then_some(true),
        }
    }

    /// No reserve, for stores that are not served.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            path: PathBuf::new(),
            is_short: None,
        }
    }

    /// Whether new jobs are refused, so that the remaining space is left for deletions.
    pub(super) fn is_short(&self) -> bool {
        self.is_short == Some(true)
    }

    /// Grows the file again, as far as there is space.
    pub(super) fn restore(&mut self) {
        let restored = self.open().and_then(|mut file| {
            let before = file.seek(SeekFrom::End(0))?;
            // Leaves a step free for deletions, and for other users of the disk.
            let end = match before.saturating_add(free_space(&file)?) {
                SIZE_AND_STEP.. => SIZE_AND_STEP,
                room => room.saturating_sub(STEP),
            };
            if end <= before {
                return Ok(false);
            }
            let reached = grow(&mut file, before, end)?;
            if reached < end || end == SIZE_AND_STEP {
                file.set_len(reached.saturating_sub(STEP).max(before.min(SIZE)))?;
            }
            Ok(reached == SIZE_AND_STEP)
        });
        let is_whole = matches!(restored, Ok(true));
        match self.is_short {
            None if !is_whole => {
                // A partial file would look like a reserve.
                let _ = std::fs::remove_file(&self.path);
                tracing::warn!(
                    target: LOG,
                    "cannot reserve {SIZE} bytes of disk space in {}: if the disk is full, deletions fail and the \
                     scheduler does not start",
                    self.path.display()
                );
                return;
            }
            Some(true) if is_whole => {
                tracing::info!(target: LOG, "the disk has space again, accepting new jobs");
            }
            _ => {}
        }
        self.is_short = Some(!is_whole);
    }

    /// Shrinks the file if the disk is full; returns whether it did.
    pub(super) fn shrink(&mut self) -> bool {
        if self.is_short.is_none() {
            return false;
        }
        let (given_up, is_short) = self
            .open()
            .and_then(|mut file| {
                let before = file.seek(SeekFrom::End(0))?;
                // If the disk has space, a single call was too large; others are not affected.
                if self.is_short == Some(false) && grow(&mut file, before, SIZE_AND_STEP)? == SIZE_AND_STEP {
                    file.set_len(SIZE)?;
                    return Ok((false, false));
                }
                let given_up = before > STEP;
                file.set_len(if given_up { before - STEP } else { before })?;
                Ok((given_up, true))
            })
            .unwrap_or((false, true));
        if is_short && !self.is_short() {
            tracing::error!(
                target: LOG,
                "the disk is full: jobs are refused until {SIZE} bytes are free for the scheduler; jobs can be \
                 deleted"
            );
        }
        self.is_short = Some(is_short);
        given_up
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(&self.path)
    }
}

/// Free bytes of the file system for this user; disk quotas are not included.
fn free_space(file: &File) -> io::Result<u64> {
    let disk = rustix::fs::fstatvfs(file)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Whether a write failed because the disk or the user's quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Appends to the file until `end` or until the disk is full; returns the new size.
fn grow(file: &mut File, before: u64, end: u64) -> io::Result<u64> {
    // Random bytes, because some file systems compress zeros.
    let mut noise = vec![0; CHUNK];
    rand::fill(&mut noise[..]);
    let mut reached = before;
    while reached < end {
        let more = CHUNK.min(usize::try_from(end - reached).unwrap_or(CHUNK));
        match file.write(&noise[..more]) {
            Ok(written @ 1..) => reached += written as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if !is_full(&error) => return Err(error),
            _ => break,
        }
    }
    Ok(reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_restores_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location {
            folder: folder.path().to_owned(),
            id: "scheduler-0".to_owned(),
            quota: i64::MAX,
        };
        let size = || std::fs::metadata(folder.path().join(FILE)).map_or(0, |file| file.len());
        for _ in 0..2 {
            let mut reserve = Reserve::release(&location);
            assert_eq!(size(), 0);
            reserve.restore();
            assert_eq!((size(), reserve.is_short()), (SIZE, false));
            assert!(!reserve.shrink(), "the disk is not full");
            assert_eq!((size(), reserve.is_short()), (SIZE, false));
        }
    }

    #[test]
    fn treats_exhausted_quota_as_full() {
        // EDQUOT and ENOSPC on Linux.
        for (code, expected) in [(122, true), (28, true), (5, false)] {
            assert_eq!(is_full(&io::Error::from_raw_os_error(code)), expected, "{code}");
        }
    }
}
