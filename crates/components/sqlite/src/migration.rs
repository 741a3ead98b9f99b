use outrigger_component::{Error, Kind, Result};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::pool::failure;

/// Location of a table's migration level.
pub(super) struct Record {
    /// The table with the levels of other tables.
    pub(super) bookkeeping: String,
    /// The common row for tables of this kind, from Dapr's layout. It has the highest level of all tables.
    pub(super) common: &'static str,
    /// The table, whose row has the same name.
    pub(super) table: String,
}

impl Record {
    fn level(&self, connection: &Connection, key: &str) -> Result<Option<usize>> {
        let table = &self.bookkeeping;
        let sql = format!("SELECT value FROM {table} WHERE key = ?1");
        let found = connection.query_row(&sql, [key], |row| row.get(0)).optional();
        let text: Option<String> = found.map_err(failure)?;
        let number = text.filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|_| {
                let what = format!("SQLite: table {table} has {key} = {text:?}, which is not a number");
                Error::new(Kind::Configuration, what)
            })
        });
        number.transpose()
    }

    fn set(&self, connection: &Connection, key: &str, level: usize) -> Result<()> {
        let sql = format!("REPLACE INTO {} (key, value) VALUES (?1, ?2)", self.bookkeeping);
        let set = connection.execute(&sql, [key, &level.to_string()]);
        set.map(drop).map_err(failure)
    }

    fn table_exists(&self, connection: &Connection) -> Result<bool> {
        let sql = "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
        connection
            .query_row(sql, [&self.table], |row| row.get(0))
            .map_err(failure)
    }
}

/// Migrates a table: runs `steps` from its current level on. Exclusive, so that sidecars starting together do
/// it once.
pub(super) fn migrate(connection: &mut Connection, record: &Record, steps: &[String]) -> Result<()> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Exclusive)
        .map_err(failure)?;
    transaction
        .execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {} (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
            record.bookkeeping
        ))
        .map_err(failure)?;
    let key = format!("{}:{}", record.common, record.table);
    let common = record.level(&transaction, record.common)?.unwrap_or(0);
    let own = record.level(&transaction, &key)?;
    let done = match own {
        Some(own) => own,
        // Dapr and earlier releases have only the common row.
        None if record.table_exists(&transaction)? => common,
        None => 0,
    };
    // A database of a newer release has more steps than are known here and is used as is.
    for step in steps.iter().skip(done) {
        transaction.execute_batch(step).map_err(failure)?;
    }
    let done = done.max(steps.len());
    if own != Some(done) {
        record.set(&transaction, &key, done)?;
    }
    if common < done {
        record.set(&transaction, record.common, done)?;
    }
    transaction.commit().map_err(failure)
}
