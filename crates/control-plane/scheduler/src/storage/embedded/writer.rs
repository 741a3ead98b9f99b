//! The writer thread. Queued writes share a transaction, and their callers are answered once that is on disk.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use outrigger_schedule::engine::Name;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::pairs::Writing;
use super::reserve::Reserve;
use crate::fault;
use crate::storage::{Advance, Change, Full, StorageError};

const LOG: &str = "dapr.scheduler.storage";
/// Maximum number of calls per transaction.
const BATCH: usize = 512;
/// Pause before failed progress is retried.
const RETRY: Duration = Duration::from_secs(1);
/// Interval of checks for unused pages.
const COMPACT_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of pages freed in one step, which bounds how long writes wait.
const COMPACT_PAGES: u32 = 1000;
/// Number of unused pages to keep for new jobs.
const KEPT_PAGES: i64 = 2048;

/// Answers the caller with the result of the transaction.
pub(super) type OnStored = Box<dyn FnOnce(Result<(), StorageError>) + Send>;
/// A caller's part of a transaction. Its error rolls back this part alone.
pub(super) type Part = Box<dyn FnOnce(&mut Writing<'_>) -> rusqlite::Result<OnStored> + Send>;

pub(super) enum Write {
    /// A call.
    Part {
        part: Part,
        failed: oneshot::Sender<StorageError>,
    },
    Advance(Advance),
    /// Answered once all earlier writes are stored or given up.
    Close(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) changes: mpsc::Sender<Change>,
    /// Progress that could not be stored yet; the latest of each job.
    pub(super) late: HashMap<Name, Advance>,
    pub(super) reserve: Reserve,
}

impl Writer {
    /// Runs until the queue closes.
    pub(super) fn run(mut self, queue: &Receiver<Write>) {
        let (mut compacted, mut restored) = (Instant::now(), Instant::now());
        let mut waiting = Vec::new();
        loop {
            let wait = if self.late.is_empty() && !self.reserve.is_short() {
                COMPACT_EVERY
            } else {
                RETRY
            };
            match queue.recv_timeout(wait) {
                Ok(write) => waiting.push(write),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while waiting.len() < BATCH
                && let Ok(write) = queue.try_recv()
            {
                waiting.push(write);
            }
            self.store(&mut waiting);
            if self.reserve.is_short() && restored.elapsed() >= RETRY {
                self.restore_reserve();
                restored = Instant::now();
            }
            if compacted.elapsed() >= COMPACT_EVERY {
                compacted = Instant::now();
                if let Err(error) = self.compact() {
                    tracing::debug!(target: LOG, "cannot shrink the store: {error}");
                }
            }
        }
    }

    fn store(&mut self, waiting: &mut Vec<Write>) {
        let (mut parts, mut advances, mut closing) = (Vec::new(), Vec::new(), Vec::new());
        for write in waiting.drain(..) {
            match write {
                Write::Part { part, failed } => parts.push((part, failed)),
                Write::Advance(advance) => advances.push(advance),
                Write::Close(closed) => closing.push(closed),
            }
        }
        let is_behind = !self.late.is_empty();
        if is_behind {
            self.defer(std::mem::take(&mut advances));
            self.store_late();
        }
        let is_any = !parts.is_empty() || !advances.is_empty();
        if is_any
            && self
                .transaction(parts, advances)
                .is_err_and(|error| may_be_full(&error))
        {
            self.make_space();
            if !is_behind {
                self.store_late();
            }
        }
        for closed in closing {
            let _ = closed.send(());
        }
    }

    fn defer(&mut self, advances: Vec<Advance>) {
        for advance in advances {
            self.late.insert(advance.name.clone(), advance);
        }
    }

    /// Stores delayed progress apart from calls. Calls may need more space than there is, while ended jobs
    /// free some.
    fn store_late(&mut self) {
        let late = std::mem::take(&mut self.late).into_values();
        let (over, under_way): (Vec<_>, Vec<_>) = late.partition(|advance| advance.progress.is_none());
        for advances in [over, under_way] {
            if !advances.is_empty() {
                let _ = self.transaction(Vec::new(), advances);
            }
        }
    }

    /// Commits all of it or nothing.
    fn transaction(
        &mut self,
        parts: Vec<(Part, oneshot::Sender<StorageError>)>,
        advances: Vec<Advance>,
    ) -> rusqlite::Result<()> {
        let mut waiting = Vec::with_capacity(parts.len());
        let mut not_begun = parts;
        let is_short = self.reserve.is_short();
        let outcome = write_all(
            &self.connection,
            is_short,
            &mut not_begun,
            &advances,
            &mut waiting,
        );
        let stored = match outcome {
            Ok(changes) => {
                // The engine receives the change before the caller its answer: a trigger may come before the
                // answer, but never after a deletion.
                for change in changes {
                    fault::point("before a change is told");
                    // A missing engine means that the process is shutting down.
                    let _ = self.changes.blocking_send(change);
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(target: LOG, "cannot write to the store: {error}");
                // After some errors SQLite has rolled back already.
                let _ = self.connection.execute_batch("ROLLBACK");
                self.defer(advances);
                Err(error)
            }
        };
        for on_stored in waiting {
            fault::point("before a caller is told");
            on_stored(stored.as_ref().copied().map_err(failure));
        }
        if let Err(error) = &stored {
            for (_, failed) in not_begun {
                let _ = failed.send(failure(error));
            }
        }
        stored
    }

    /// Gives up as much of the reserve as the checkpoint of the log needs.
    fn make_space(&mut self) {
        while self.reserve.shrink() {
            match self.empty_log() {
                Err(error) if may_be_full(&error) => {}
                Err(error) => {
                    tracing::warn!(target: LOG, "cannot checkpoint the store's log: {error}");
                    return;
                }
                Ok(()) => return,
            }
        }
    }

    /// Checkpoints and truncates the log. This frees space if the log has several versions of a page.
    fn empty_log(&self) -> rusqlite::Result<()> {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.connection.query_row(checkpoint, [], |_| Ok(()))
    }

    /// Returns freed pages to the file system, then grows the reserve again.
    fn restore_reserve(&mut self) {
        if let Err(error) = self.vacuum().and_then(|()| self.empty_log()) {
            tracing::debug!(target: LOG, "cannot shrink the store: {error}");
        }
        self.reserve.restore();
    }

    /// Returns unused pages to the file system if there are many.
    fn compact(&self) -> rusqlite::Result<()> {
        let unused: i64 = self
            .connection
            .pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        let pages: i64 = self
            .connection
            .pragma_query_value(None, "page_count", |row| row.get(0))?;
        match unused > KEPT_PAGES && unused * 2 > pages {
            true => self.vacuum(),
            false => Ok(()),
        }
    }

    /// Returns up to [`COMPACT_PAGES`] unused pages to the file system.
    fn vacuum(&self) -> rusqlite::Result<()> {
        let mut statement = self
            .connection
            .prepare(&format!("PRAGMA incremental_vacuum({COMPACT_PAGES})"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }
}

fn write_all(
    connection: &Connection,
    is_short: bool,
    parts: &mut Vec<(Part, oneshot::Sender<StorageError>)>,
    advances: &[Advance],
    waiting: &mut Vec<OnStored>,
) -> rusqlite::Result<Vec<Change>> {
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    fault::point("begun");
    let mut writing = Writing::new(connection)?;
    writing.is_short = is_short;
    for advance in advances {
        writing.advance(advance)?;
        fault::point("progress written");
    }
    parts.reverse();
    while let Some((part, failed)) = parts.pop() {
        match writing.attempt(part) {
            Ok(on_stored) => {
                fault::point("part written");
                waiting.push(on_stored);
            }
            Err(error) => {
                let _ = failed.send(failure(&error));
                // Without space the rest of the transaction would fail too.
                if connection.is_autocommit() || error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
                    return Err(error);
                }
            }
        }
    }
    let changes = writing.finish()?;
    fault::point("before it is committed");
    connection.prepare_cached("COMMIT")?.execute([])?;
    fault::point("committed");
    Ok(changes)
}

/// Whether a full disk may be the cause. SQLite reports an exhausted disk quota as an I/O error.
fn may_be_full(error: &rusqlite::Error) -> bool {
    let code = error
        .sqlite_error()
        .map(|error| (error.code, error.extended_code));
    matches!(
        code,
        Some((ErrorCode::DiskFull, _) | (_, rusqlite::ffi::SQLITE_IOERR_WRITE))
    )
}

/// Wraps an error that is not SQLite's, for a part of a transaction; the part is rolled back.
pub(crate) fn refusal(error: StorageError) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

pub(super) fn failure(error: &rusqlite::Error) -> StorageError {
    if let rusqlite::Error::ToSqlConversionFailure(cause) = error
        && let Some(refused) = cause.downcast_ref::<StorageError>()
    {
        return refused.clone();
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StorageError::Full(Full::Embedded),
        _ => StorageError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backlog::Backlog;
    use crate::storage::embedded::{Location, pairs};
    use crate::storage::pair::{Pair, job_key};

    /// A call that puts a job of this size.
    fn put(name: &'static str, size: usize) -> (Write, oneshot::Receiver<StorageError>) {
        let (failed, failure) = oneshot::channel();
        let part: Part = Box::new(move |writing: &mut Writing<'_>| {
            writing.put(&job_key(name), &vec![7_u8; size])?;
            let on_stored: OnStored = Box::new(|_| {});
            Ok(on_stored)
        });
        (Write::Part { part, failed }, failure)
    }

    fn stored(writer: &Writer, name: &str) -> Option<Pair> {
        pairs::get(&writer.connection, &job_key(name)).unwrap()
    }

    /// Regression: while calls needed more space than there was, no progress or end of a job was stored.
    #[test]
    fn stores_job_ends_without_space() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location {
            folder: folder.path().to_owned(),
            id: "scheduler-0".to_owned(),
            quota: 256 << 10,
        };
        let (changes, _told) = mpsc::channel(16);
        let mut writer = Writer {
            connection: location.open().unwrap(),
            changes,
            late: HashMap::new(),
            reserve: Reserve::none(),
        };
        let backlog = Arc::<Backlog>::default();
        for is_late in [false, true] {
            writer.store(&mut vec![put("over", 10_000).0]);
            let job = stored(&writer, "over").unwrap();
            let over = Advance {
                name: "over".into(),
                version: crate::stored::version(job.modified, &job.value),
                tenure: 0,
                progress: None,
                share: backlog.share(),
            };
            let (big, mut refused) = put("big", 1 << 20);
            let mut waiting = vec![big];
            match is_late {
                true => writer.defer(vec![over]),
                false => waiting.push(Write::Advance(over)),
            }
            writer.store(&mut waiting);
            assert_eq!(refused.try_recv(), Ok(StorageError::Full(Full::Embedded)));
            assert_eq!(stored(&writer, "over"), None, "late: {is_late}");
            assert!(writer.late.is_empty(), "late: {is_late}");
        }
    }
}
