//! Reads all jobs of a store, or creates a store from jobs.

use std::fs;

use super::file::{Location, MIGRATING, failure};
use super::pairs::{self, Writing};
use crate::fault;
use crate::migrate::Entry;
use crate::storage::OpenError;
use crate::storage::pair::{counter_key, job_key};

impl Location {
    /// Checks an existing store and passes all jobs by name to `take`, until that returns `false`.
    pub(crate) fn read(&self, mut take: impl FnMut(Entry) -> bool) -> Result<(), OpenError> {
        let connection = self.open()?;
        let read = pairs::load(&connection, |name, _, job, counter| {
            take(Entry { name, job, counter })
        });
        read.map_err(|error| failure(&self.file(), error))
    }

    /// Creates a store from jobs. `None` marks their end; if the iterator ends without it, no store is
    /// created.
    pub(crate) fn make(&self, jobs: impl Iterator<Item = Option<Entry>>) -> Result<(), OpenError> {
        let _lock = self.lock()?;
        let to = self.file();
        if to.exists() {
            return Err(OpenError::Exists(to));
        }
        // Created under a temporary name, so that an interrupted copy leaves no store.
        let part = self.folder.join(MIGRATING);
        let cause = |cause| OpenError::Folder {
            path: self.folder.clone(),
            cause,
        };
        // Left by a killed attempt.
        match fs::remove_dir_all(&part) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(cause(error)),
            _ => {}
        }
        let location = Self {
            folder: part.clone(),
            ..self.clone()
        };
        let made = location.fill(jobs).and_then(|complete| match complete {
            true => fs::rename(location.file(), &to).map_err(cause),
            false => Ok(()),
        });
        fault::point("file in its place");
        // Left-over files are harmless.
        let _ = fs::remove_dir_all(&part);
        made
    }

    /// Whether the end marker came.
    fn fill(&self, jobs: impl Iterator<Item = Option<Entry>>) -> Result<bool, OpenError> {
        let connection = self.open()?;
        fault::point("file made");
        let filling = || -> rusqlite::Result<bool> {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let mut writing = Writing::new(&connection)?;
            let mut complete = false;
            for entry in jobs {
                let Some(entry) = entry else {
                    complete = true;
                    break;
                };
                writing.keep(&job_key(&entry.name), &entry.job)?;
                if let Some(counter) = entry.counter {
                    writing.keep(&counter_key(&entry.name), &counter)?;
                }
                fault::point("job written");
            }
            writing.finish()?;
            fault::point("before it is committed");
            connection
                .execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE")?;
            fault::point("committed");
            Ok(complete)
        };
        filling().map_err(|error| failure(&self.file(), error))
    }
}
