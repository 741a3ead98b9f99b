//! Keys and values with etcd's revisions, on a connection to SQLite.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::refusal;
use super::sums::{self, sum};
pub(crate) use crate::storage::pair::{Pair, Range};
use crate::storage::pair::{counter_key, job_key, job_name};
use crate::storage::{Advance, COUNTERS, Change, Full, JOBS, LEADERSHIP, StorageError};
use crate::stored;

/// Selects jobs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Names<'n> {
    One(&'n str),
    /// All jobs with this prefix.
    Prefix(&'n str),
}

fn pair(row: &Row<'_>) -> rusqlite::Result<Pair> {
    let pair = Pair {
        key: row.get(0)?,
        created: row.get(1)?,
        modified: row.get(2)?,
        version: row.get(3)?,
        value: row.get(4)?,
    };
    sums::check(&pair.key, pair.modified, &pair.value, row.get(5)?)?;
    Ok(pair)
}

/// The SQL condition for a range, with its bounds as parameters 1 and 2. A single condition with an optional
/// upper bound would scan all following keys, because the index could not use it.
fn within(range: &Range) -> &'static str {
    match range.below {
        Some(_) => "key >= ?1 AND key < ?2",
        None => "key >= ?1 AND ?2 IS NULL",
    }
}

pub(crate) fn get(connection: &Connection, key: &[u8]) -> rusqlite::Result<Option<Pair>> {
    let mut statement = connection
        .prepare_cached("SELECT key, created, modified, version, value, sum FROM pairs WHERE key = ?1")?;
    statement.query_row([key], pair).optional()
}

/// Revision of the last write of a key.
fn modified(connection: &Connection, key: &[u8]) -> rusqlite::Result<Option<u64>> {
    let mut statement = connection.prepare_cached("SELECT modified FROM pairs WHERE key = ?1")?;
    let found = statement
        .query_row([key], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(found.map(i64::unsigned_abs))
}

/// Passes pairs in key order to `take`, until that returns `false`.
pub(crate) fn scan(
    connection: &Connection,
    range: &Range,
    mut take: impl FnMut(Pair) -> bool,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT key, created, modified, version, value, sum FROM pairs WHERE {} ORDER BY key",
        within(range)
    ))?;
    let mut rows = statement.query(params![range.from, range.below])?;
    while let Some(row) = rows.next()? {
        if !take(pair(row)?) {
            break;
        }
    }
    Ok(())
}

/// Number of pairs in the range.
pub(crate) fn count(connection: &Connection, range: &Range) -> rusqlite::Result<i64> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT count(*) FROM pairs WHERE {}", within(range)))?;
    statement.query_row(params![range.from, range.below], |row| row.get(0))
}

/// The current revision of the store.
pub(crate) fn revision(connection: &Connection) -> rusqlite::Result<i64> {
    let mut statement = connection.prepare_cached("SELECT value FROM meta WHERE name = 'revision'")?;
    statement.query_row([], |row| row.get(0))
}

/// A transaction, with the changes that the engine receives after the commit.
pub(crate) struct Writing<'c> {
    connection: &'c Connection,
    pub(crate) revision: i64,
    pub(super) changes: Vec<Change>,
    /// The disk is full, so puts are refused.
    pub(super) is_short: bool,
}

impl<'c> Writing<'c> {
    pub(super) fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            revision: revision(connection)?,
            changes: Vec::new(),
            is_short: false,
        })
    }

    /// The connection, which sees the writes of this transaction.
    pub(crate) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Writes a value. The engine receives changes of jobs.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> rusqlite::Result<()> {
        // The scheduler's own entry is small, and the same at each start.
        if self.is_short && !key.starts_with(LEADERSHIP.as_bytes()) {
            return Err(refusal(StorageError::Full(Full::Embedded)));
        }
        self.write(key, value)?;
        if let Some(name) = job_name(key) {
            let counter = get(self.connection, &[COUNTERS.as_bytes(), name.as_bytes()].concat())?;
            self.changes.push(Change::Put {
                name: name.into(),
                version: stored::version(self.revision, value),
                job: value.to_vec(),
                counter: counter.map(|pair| pair.value),
            });
        }
        Ok(())
    }

    /// Like [`Writing::put`], without a change for the engine.
    pub(super) fn keep(&mut self, key: &[u8], value: &[u8]) -> rusqlite::Result<()> {
        self.write(key, value)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> rusqlite::Result<()> {
        self.revision += 1;
        let mut statement = self.connection.prepare_cached(
            "INSERT INTO pairs (key, created, modified, version, value, sum) VALUES (?1, ?2, ?2, 1, ?3, ?4)
             ON CONFLICT (key) DO UPDATE SET modified = excluded.modified, version = version + 1,
             value = excluded.value, sum = excluded.sum",
        )?;
        statement.execute(params![key, self.revision, value, sum(key, self.revision, value)])?;
        Ok(())
    }

    /// Deletes keys and returns those that existed. The engine receives changes of jobs.
    pub(crate) fn delete(&mut self, range: &Range) -> rusqlite::Result<Vec<Vec<u8>>> {
        self.revision += 1;
        let mut statement = self.connection.prepare_cached(&format!(
            "DELETE FROM pairs WHERE {} RETURNING key",
            within(range)
        ))?;
        let keys: Vec<Vec<u8>> = statement
            .query_map(params![range.from, range.below], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for name in keys.iter().filter_map(|key| job_name(key)) {
            self.changes.push(Change::Deleted {
                name: name.into(),
                revision: self.revision.unsigned_abs(),
            });
        }
        Ok(keys)
    }

    /// Deletes jobs and their counters.
    pub(crate) fn delete_jobs(&mut self, names: Names<'_>) -> rusqlite::Result<()> {
        for folder in [JOBS, COUNTERS] {
            self.delete(&match names {
                Names::One(name) => Range::one([folder, name].concat()),
                Names::Prefix(prefix) => Range::prefix([folder, prefix].concat()),
            })?;
        }
        Ok(())
    }

    /// Stores the progress of a job unless the job was replaced.
    pub(super) fn advance(&mut self, advance: &Advance) -> rusqlite::Result<()> {
        let Advance {
            name,
            version,
            progress,
            ..
        } = advance;
        // Reads the revision only: a damaged value must not fail the whole transaction.
        let job = modified(self.connection, &job_key(name))?.filter(|at| *at == version.revision);
        match (job, progress) {
            (None, _) => Ok(()),
            (Some(_), Some(progress)) => {
                let counter = stored::counter(progress, version.partition);
                self.write(&[COUNTERS.as_bytes(), name.as_bytes()].concat(), &counter)
            }
            (Some(_), None) => {
                // The engine has dropped the job already.
                let before = self.changes.len();
                self.delete_jobs(Names::One(name))?;
                self.changes.truncate(before);
                Ok(())
            }
        }
    }

    pub(super) fn finish(self) -> rusqlite::Result<Vec<Change>> {
        let mut statement = self
            .connection
            .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'revision'")?;
        statement.execute([self.revision])?;
        Ok(self.changes)
    }

    /// Runs `part` in a savepoint, rolled back on error.
    pub(super) fn attempt<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (changes, revision) = (self.changes.len(), self.revision);
        self.connection.prepare_cached("SAVEPOINT part")?.execute([])?;
        let outcome = part(self);
        if outcome.is_err() {
            // After some errors SQLite has rolled back the whole transaction.
            if self.connection.is_autocommit() {
                return outcome;
            }
            self.changes.truncate(changes);
            self.revision = revision;
            self.connection.prepare_cached("ROLLBACK TO part")?.execute([])?;
        }
        self.connection.prepare_cached("RELEASE part")?.execute([])?;
        outcome
    }
}

/// Passes all jobs with their counters to `take`, until that returns `false`. A damaged job is an error.
pub(super) fn load(
    connection: &Connection,
    mut take: impl FnMut(Arc<str>, i64, Vec<u8>, Option<Vec<u8>>) -> bool,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(
        "SELECT j.key, j.modified, j.value, j.sum, c.modified, c.value, c.sum FROM pairs j
         LEFT JOIN pairs c ON c.key = CAST(?3 || CAST(substr(j.key, ?4) AS TEXT) AS BLOB)
         WHERE j.key >= ?1 AND j.key < ?2 ORDER BY j.key",
    )?;
    let jobs = Range::prefix(JOBS);
    let mut rows = statement.query(params![jobs.from, jobs.below, COUNTERS, JOBS.len() as i64 + 1])?;
    while let Some(row) = rows.next()? {
        let (key, modified): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
        let Some(name) = job_name(&key) else { continue };
        let (job, counter): (Vec<u8>, Option<Vec<u8>>) = (row.get(2)?, row.get(5)?);
        sums::check(&key, modified, &job, row.get(3)?)?;
        if let Some(counter) = &counter {
            sums::check(&counter_key(name), row.get(4)?, counter, row.get(6)?)?;
        }
        if !take(name.into(), modified, job, counter) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    fn connection(jobs: usize) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::file::SCHEMA).unwrap();
        let mut writing = Writing::new(&connection).unwrap();
        for number in 0..jobs {
            writing.put(&job_key(&format!("{number:05}")), b"job").unwrap();
        }
        writing.finish().unwrap();
        connection
    }

    /// Number of steps of SQLite's virtual machine for a statement on a range.
    fn steps(connection: &Connection, what: &str, range: &Range) -> i32 {
        let mut statement = connection
            .prepare(&format!("{what} FROM pairs WHERE {}", within(range)))
            .unwrap();
        let mut rows = statement.query(params![range.from, range.below]).unwrap();
        while rows.next().unwrap().is_some() {}
        drop(rows);
        statement.get_status(StatementStatus::VmStep)
    }

    #[test]
    fn range_cost_is_independent_of_neighbors() {
        let (few, many) = (connection(10), connection(5000));
        // The keys before all jobs, the first job, and a missing job.
        for range in [
            Range::one(COUNTERS),
            Range::one(job_key("00000")),
            Range::prefix(job_key("x")),
        ] {
            for what in ["DELETE", "SELECT *"] {
                assert_eq!(
                    steps(&many, what, &range),
                    steps(&few, what, &range),
                    "{what} {range:?}"
                );
            }
        }
    }

    #[test]
    fn scans_unbounded_range() {
        let connection = connection(10);
        assert_eq!(count(&connection, &Range::prefix("")).unwrap(), 10);
        let from = Range {
            from: job_key("00007"),
            below: None,
        };
        assert_eq!(count(&connection, &from).unwrap(), 3);
    }
}
