//! The file of the embedded store: folder, format, checks and copies.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::{pairs, sums, writer};
use crate::storage::{OpenError, StorageError};
use crate::stored;

/// The database in the data folder.
const FILE: &str = "jobs.db";
/// Lock file, held by the process that uses the store.
const LOCK: &str = "lock";
/// Folders in the data folder for incomplete stores.
pub(super) const MIGRATING: &str = "migrating";
const RESTORING: &str = "restoring";
/// Version of the file format. Format 1 had no checksums.
const FORMAT: i64 = 2;
/// SQLite's `application_id`: "OutJ".
const APPLICATION: i64 = 0x4f75_744a;
/// Timeout for a lock of another connection of this process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of a page in bytes.
const PAGE: i64 = 4096;

pub(super) const SCHEMA: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE pairs (
        key BLOB PRIMARY KEY,
        created INTEGER NOT NULL,
        modified INTEGER NOT NULL,
        version INTEGER NOT NULL,
        value BLOB NOT NULL,
        sum INTEGER NOT NULL
    );
    INSERT INTO meta VALUES ('revision', 1);
";

/// Folder, owner and quota of a store.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    /// Data folder of this scheduler.
    pub(crate) folder: PathBuf,
    /// Id of the scheduler.
    pub(crate) id: String,
    /// Maximum size of the file in bytes.
    pub(crate) quota: i64,
}

/// The lock of a data folder, released on drop. It is unlocked explicitly, because a child process between
/// fork and exec may hold a copy of the descriptor.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the descriptor follows anyway.
        let _ = self.0.unlock();
    }
}

impl Location {
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Opens the store for writing, creates it if missing, and checks all of it.
    pub(crate) fn open(&self) -> Result<Connection, OpenError> {
        let cause = |cause| OpenError::Folder {
            path: self.folder.clone(),
            cause,
        };
        self.keep_private().map_err(cause)?;
        // Dapr's etcd folder next to it, or etcd's own folder.
        let folders = [self.folder.join("dapr-0.1"), self.folder.clone()];
        if let Some(path) = folders.into_iter().find(|path| path.join("member").is_dir()) {
            return Err(OpenError::Etcd { path });
        }
        let path = self.file();
        outrigger_files::create_private(&path).map_err(cause)?;
        let connection = Connection::open(&path).map_err(|error| failure(&path, error))?;
        self.prepare(&connection).map_err(|error| match error {
            Prepare::Open(error) => error,
            Prepare::Sqlite(error) => failure(&path, error),
        })?;
        Ok(connection)
    }

    /// Restricts the folder and its files to the owner, because jobs have payloads. SQLite gives the log and
    /// its index the permissions of the database. Files of earlier releases were world-readable.
    fn keep_private(&self) -> io::Result<()> {
        outrigger_files::create_private_folder(&self.folder)?;
        // A folder of another user, such as the root of a volume, is not changed.
        let _ = outrigger_files::make_private(&self.folder);
        for end in ["", "-wal", "-shm"] {
            let path = self.folder.join(format!("{FILE}{end}"));
            if let Err(error) = outrigger_files::make_private(&path) {
                tracing::warn!(
                    "other users may read {}: {error}; restrict it to its owner",
                    path.display()
                );
            }
        }
        Ok(())
    }

    /// Locks the folder until the result is dropped.
    pub(crate) fn lock(&self) -> Result<FolderLock, OpenError> {
        let cause = |cause| OpenError::Folder {
            path: self.folder.clone(),
            cause,
        };
        outrigger_files::create_private_folder(&self.folder).map_err(cause)?;
        let path = self.folder.join(LOCK);
        outrigger_files::create_private(&path).map_err(cause)?;
        let file = File::create(path).map_err(cause)?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock(file)),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: self.file() }),
            Err(TryLockError::Error(error)) => Err(cause(error)),
        }
    }

    /// Removes what killed copies left. The caller holds the lock.
    pub(super) fn clean(&self) {
        for part in [MIGRATING, RESTORING] {
            // Left-over files are harmless.
            let _ = fs::remove_dir_all(self.folder.join(part));
        }
    }

    /// Opens a read-only connection to the open store.
    pub(crate) fn reader(&self) -> Result<Connection, OpenError> {
        let path = self.file();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(|error| failure(&path, error))?;
        connection
            .busy_timeout(BUSY_TIMEOUT)
            .map_err(|error| failure(&path, error))?;
        Ok(connection)
    }

    fn prepare(&self, connection: &Connection) -> Result<(), Prepare> {
        let path = self.file();
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(32);
        let (format, application): (i64, i64) = (
            pragma(connection, "user_version")?,
            pragma(connection, "application_id")?,
        );
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if format > FORMAT {
            return Err(Prepare::Open(OpenError::Newer {
                path,
                found: format,
                known: FORMAT,
            }));
        }
        if tables > 0 && application != APPLICATION {
            return Err(Prepare::Open(OpenError::Damaged {
                path,
                what: "it is a database of another program".to_owned(),
            }));
        }
        // Must be set before the first table is created. Lets SQLite return free pages to the file system.
        connection.execute_batch(&format!(
            "PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864; PRAGMA temp_store = MEMORY;"
        ))?;
        if tables == 0 {
            connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT;"
            ))?;
        } else {
            let report: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if report != "ok" {
                return Err(Prepare::Open(OpenError::Damaged { path, what: report }));
            }
        }
        self.claim(connection)?;
        if tables > 0 && format < FORMAT {
            sums::add(connection, FORMAT)?;
        }
        // Set last, so that a full file of format 1 can still get checksums.
        let pages = (self.quota / PAGE).clamp(16, 4_294_967_294);
        connection.pragma_update(None, "max_page_count", pages)?;
        Ok(())
    }

    /// Checks that every job matches its checksum and can be read. A broken job would never be triggered,
    /// without any notice.
    pub(super) fn check(&self, connection: &Connection) -> Result<(), OpenError> {
        let (mut broken, mut reader) = (None, stored::Reader::default());
        let scanned = pairs::load(connection, |name, _, job, counter| {
            if let Err(error) = reader.read(&job, counter.as_deref()) {
                broken = Some(format!("the job {name:?}: {error}"));
            }
            broken.is_none()
        });
        scanned.map_err(|error| failure(&self.file(), error))?;
        match broken {
            Some(what) => Err(OpenError::Damaged {
                path: self.file(),
                what,
            }),
            None => Ok(()),
        }
    }

    /// Records this scheduler as the owner at the first start.
    fn claim(&self, connection: &Connection) -> Result<(), Prepare> {
        let found: Option<String> = connection
            .query_row("SELECT value FROM meta WHERE name = 'id'", [], |row| row.get(0))
            .optional()?;
        match found {
            Some(found) if found != self.id => Err(Prepare::Open(OpenError::Id {
                path: self.file(),
                found,
                wanted: self.id.clone(),
            })),
            Some(_) => Ok(()),
            None => {
                connection.execute("INSERT INTO meta VALUES ('id', ?1)", [&self.id])?;
                Ok(())
            }
        }
    }

    /// Copies a snapshot of the store, also while a scheduler uses it. Fails if a job is damaged.
    pub(crate) fn snapshot(&self, to: &Path) -> Result<(), OpenError> {
        if to.exists() {
            return Err(OpenError::Exists(to.to_owned()));
        }
        let connection = self.reader()?;
        let name = to.to_string_lossy();
        // SQLite treats an empty file as a new database.
        outrigger_files::create_private(to).map_err(|cause| OpenError::Folder {
            path: to.to_owned(),
            cause,
        })?;
        let copied = connection.execute("VACUUM INTO ?1", [name.as_ref()]);
        let checked = copied
            .map_err(|error| failure(&self.file(), error))
            .and_then(|_| self.check_copy(to));
        if checked.is_err() {
            // An incomplete file would look like a snapshot.
            let _ = fs::remove_file(to);
        }
        checked
    }

    /// Checks a copy; one of format 1 has no checksums.
    fn check_copy(&self, copy: &Path) -> Result<(), OpenError> {
        let open = || -> rusqlite::Result<_> {
            let connection = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            let format = pragma(&connection, "user_version")?;
            Ok((connection, format))
        };
        match open().map_err(|error| failure(copy, error))? {
            (connection, FORMAT) => self.check(&connection),
            _ => Ok(()),
        }
    }

    /// Checks a snapshot and installs it where no store exists.
    pub(crate) fn restore(&self, from: &Path) -> Result<(), OpenError> {
        let _lock = self.lock()?;
        let to = self.file();
        if to.exists() {
            return Err(OpenError::Exists(to));
        }
        let cause = |cause| OpenError::Folder {
            path: self.folder.clone(),
            cause,
        };
        // Checked under a temporary name, so that an interrupted restore leaves no store.
        let part = self.folder.join(RESTORING);
        outrigger_files::create_private_folder(&part).map_err(cause)?;
        let location = Self {
            folder: part.clone(),
            ..self.clone()
        };
        fs::copy(from, location.file()).map_err(|cause| OpenError::Folder {
            path: from.to_owned(),
            cause,
        })?;
        let checked = location.open().and_then(|connection| location.check(&connection));
        let moved = checked.and_then(|()| fs::rename(location.file(), &to).map_err(cause));
        // Left-over files are harmless.
        let _ = fs::remove_dir_all(&part);
        moved
    }
}

enum Prepare {
    Open(OpenError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Prepare {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

pub(super) fn failure(path: &Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    if let StorageError::Damaged(what) = writer::failure(&error) {
        return OpenError::Damaged { path, what };
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::InUse { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => OpenError::Damaged {
            path,
            what: error.to_string(),
        },
        _ => OpenError::Sqlite { path, cause: error },
    }
}
