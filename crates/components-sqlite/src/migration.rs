use outrigger_component::{Error, Kind, Result};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::pool::failure;

/// Brings tables up to date: `steps` from the number on that `metadata_table` has under `key`.
/// Exclusive, so that sidecars that start together do it once. The bookkeeping is Dapr's.
pub(super) fn migrate(
    connection: &mut Connection,
    metadata_table: &str,
    key: &str,
    steps: &[String],
) -> Result<()> {
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Exclusive)
        .map_err(failure)?;
    transaction
        .execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {metadata_table} (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
        ))
        .map_err(failure)?;
    let level: Option<String> = transaction
        .query_row(
            &format!("SELECT value FROM {metadata_table} WHERE key = ?1"),
            [key],
            |row| row.get(0),
        )
        .optional()
        .map_err(failure)?;
    let done: usize = match level.as_deref() {
        None | Some("") => 0,
        Some(text) => text.parse().map_err(|_| {
            Error::new(
                Kind::Configuration,
                format!("SQLite: table {metadata_table} has {key} = {text:?}, which is not a number"),
            )
        })?,
    };
    // A database of a newer release has more steps than are known here: it is used as it is.
    for (index, step) in steps.iter().enumerate().skip(done) {
        transaction.execute_batch(step).map_err(failure)?;
        transaction
            .execute(
                &format!("REPLACE INTO {metadata_table} (key, value) VALUES (?1, ?2)"),
                [key, &(index + 1).to_string()],
            )
            .map_err(failure)?;
    }
    transaction.commit().map_err(failure)
}
