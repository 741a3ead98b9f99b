//! The tables, shared with Dapr's sidecars on the same file.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::config::Config;
use crate::Address;

/// Key of the migration level in the metadata table.
const MIGRATION_KEY: &str = "nr-migrations";
/// Number of migrations; the only one creates the table of hosts.
const MIGRATION_LEVEL: u32 = 1;
/// How long a start may wait for other processes that migrate.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of instances of one app.
const MAX_HOSTS: u32 = 1024;
/// Rows are swept this long after they became stale, so that a machine that slept finds its rows on waking.
const SWEEP_GRACE: Duration = Duration::from_secs(60);

/// Why the database could not be opened or prepared.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    /// Opening, setup or registration failed.
    #[error("SQLite name resolver: {action} failed for {uri}: {source}")]
    Database {
        /// The failed operation.
        action: &'static str,
        /// URI of the database.
        uri: String,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The level in the metadata table is not a number.
    #[error("SQLite name resolver: invalid migration level found in metadata table: {0}")]
    MigrationLevel(String),
    /// The thread could not be started.
    #[error("SQLite name resolver: cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Outcome of a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The row is ours and fresh.
    Renewed,
    /// The row was missing and has been restored.
    Restored,
    /// Another sidecar registered the same address.
    TakenOver,
}

pub(crate) struct Database {
    connection: Connection,
    config: Config,
    registration_id: String,
}

impl Database {
    /// Opens, migrates and registers.
    pub(crate) fn open(config: Config) -> Result<Self, SqliteError> {
        let failed = |action| {
            let uri = config.uri.clone();
            move |source| SqliteError::Database { action, uri, source }
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&config.uri, flags).map_err(failed("opening"))?;
        retry(|| set_up(&connection, &config)).map_err(failed("setting up"))?;
        migrate(&connection, &config)?;
        let this = Self {
            connection,
            config,
            registration_id: uuid::Uuid::new_v4().to_string(),
        };
        retry(|| this.register()).map_err(|source| SqliteError::Database {
            action: "registering",
            uri: this.config.uri.clone(),
            source,
        })?;
        this.connection
            .busy_timeout(this.config.busy_timeout)
            .map_err(|source| SqliteError::Database {
                action: "setting up",
                uri: this.config.uri.clone(),
                source,
            })?;
        Ok(this)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Takes over the address: its previous owner can only be a sidecar that is gone.
    fn register(&self) -> rusqlite::Result<()> {
        let sql = format!(
            "REPLACE INTO {} (registration_id, address, app_id, namespace, last_update)
             VALUES (?1, ?2, ?3, '', unixepoch())",
            self.config.table
        );
        let values = params![self.registration_id, self.config.address, self.config.app_id];
        self.connection.execute(&sql, values).map(drop)
    }

    /// Renews the registration; retries as long as the timeout allows.
    pub(crate) fn renew(&self) -> rusqlite::Result<Renewal> {
        let deadline = Instant::now() + self.config.timeout;
        loop {
            match self.renew_once() {
                Err(_) if Instant::now() + RETRY_PAUSE < deadline => sleep(RETRY_PAUSE),
                result => return result,
            }
        }
    }

    fn renew_once(&self) -> rusqlite::Result<Renewal> {
        let table = &self.config.table;
        let own = params![self.registration_id, self.config.address];
        let sql = format!(
            "UPDATE {table} SET last_update = unixepoch() WHERE registration_id = ?1 AND address = ?2"
        );
        if self.connection.execute(&sql, own)? > 0 {
            return Ok(Renewal::Renewed);
        }
        // A row that is only missing was swept: restore it unless the address has a new owner.
        let sql = format!(
            "INSERT INTO {table} (registration_id, address, app_id, namespace, last_update)
             VALUES (?1, ?2, ?3, '', unixepoch()) ON CONFLICT DO NOTHING"
        );
        let values = params![self.registration_id, self.config.address, self.config.app_id];
        Ok(match self.connection.execute(&sql, values)? {
            0 => Renewal::TakenOver,
            _ => Renewal::Restored,
        })
    }

    pub(crate) fn deregister(&self) -> rusqlite::Result<()> {
        let sql = format!(
            "DELETE FROM {} WHERE registration_id = ?1 AND address = ?2",
            self.config.table
        );
        self.connection
            .execute(&sql, params![self.registration_id, self.config.address])
            .map(drop)
    }

    /// Fresh addresses of an app, in a stable order.
    pub(crate) fn hosts(&self, app_id: &str) -> rusqlite::Result<Vec<Address>> {
        let sql = format!(
            "SELECT address FROM {} WHERE app_id = ?1 AND unixepoch() - last_update < ?2
             ORDER BY address LIMIT {MAX_HOSTS}",
            self.config.table
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![app_id, seconds(self.config.update_interval)], |row| {
            row.get::<_, String>(0)
        })?;
        let mut hosts = Vec::new();
        for row in rows {
            let text = row?;
            match text.parse() {
                Ok(address) => hosts.push(address),
                Err(error) => {
                    tracing::warn!(target: "dapr.contrib", %error, "SQLite name resolver: row ignored")
                }
            }
        }
        Ok(hosts)
    }

    /// Removes stale rows, unless another sidecar did so within the interval. Returns the number of rows
    /// removed.
    pub(crate) fn sweep(&self) -> rusqlite::Result<usize> {
        let (table, metadata) = (&self.config.table, &self.config.metadata_table);
        // Dapr's sidecars compare this value: a date, and an interval reduced by 100 ms.
        let claim = format!(
            "INSERT INTO {metadata} (key, value) VALUES ('nr-last-cleanup', CURRENT_TIMESTAMP)
             ON CONFLICT (key) DO UPDATE SET value = CURRENT_TIMESTAMP
             WHERE (unixepoch(CURRENT_TIMESTAMP) - unixepoch(value)) * 1000 > ?1"
        );
        let interval = i64::try_from(self.config.cleanup_interval.as_millis()).unwrap_or(i64::MAX);
        if self.connection.execute(&claim, [interval - 100])? == 0 {
            return Ok(0);
        }
        let age = seconds(self.config.update_interval + SWEEP_GRACE);
        let sql = format!("DELETE FROM {table} WHERE unixepoch() - last_update > ?1");
        self.connection.execute(&sql, [age])
    }
}

fn set_up(connection: &Connection, config: &Config) -> rusqlite::Result<()> {
    connection.busy_timeout(OPEN_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", config.journal)?;
    for pragma in &config.pragmas {
        // Some pragmas return a row, which `execute_batch` accepts.
        connection.execute_batch(pragma)?;
    }
    Ok(())
}

fn migrate(connection: &Connection, config: &Config) -> Result<(), SqliteError> {
    let failed = |source| SqliteError::Database {
        action: "migrating",
        uri: config.uri.clone(),
        source,
    };
    let (table, metadata) = (&config.table, &config.metadata_table);
    let transaction =
        retry(|| rusqlite::Transaction::new_unchecked(connection, rusqlite::TransactionBehavior::Exclusive))
            .map_err(failed)?;
    transaction
        .execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {metadata} (key text NOT NULL PRIMARY KEY, value text NOT NULL)"
        ))
        .map_err(failed)?;
    let level: Option<String> = transaction
        .query_row(
            &format!("SELECT value FROM {metadata} WHERE key = ?1"),
            [MIGRATION_KEY],
            |row| row.get(0),
        )
        .optional()
        .map_err(failed)?;
    let level: u32 = match level {
        None => 0,
        Some(text) => text.parse().map_err(|_| SqliteError::MigrationLevel(text))?,
    };
    // The level may belong to another table of hosts: other components may keep tables in the file.
    let exists: bool = transaction
        .query_row(
            "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
            [table],
            |row| row.get(0),
        )
        .map_err(failed)?;
    if !exists {
        transaction.execute_batch(&hosts_table(table)).map_err(failed)?;
    }
    if level < MIGRATION_LEVEL {
        transaction
            .execute(
                &format!("REPLACE INTO {metadata} (key, value) VALUES (?1, ?2)"),
                [MIGRATION_KEY, &MIGRATION_LEVEL.to_string()],
            )
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

fn hosts_table(table: &str) -> String {
    format!(
        "CREATE TABLE {table} (
             registration_id TEXT NOT NULL PRIMARY KEY,
             address TEXT NOT NULL,
             app_id TEXT NOT NULL,
             namespace TEXT NOT NULL,
             last_update INTEGER NOT NULL
         );
         CREATE UNIQUE INDEX {table}_address_idx ON {table} (address);
         CREATE INDEX {table}_last_update_idx ON {table} (last_update);"
    )
}

/// Several sidecars may start on the same new file. SQLite reports some conflicts immediately despite the
/// busy timeout, for example when changing the journal mode.
fn retry<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < deadline => sleep(RETRY_PAUSE),
            result => return result,
        }
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

#[cfg(test)]
mod tests;
