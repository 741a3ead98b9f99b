//! Checksums of stored pairs. SQLite detects torn pages, but not a changed byte inside a value.

use rusqlite::{Connection, params};

use super::writer::refusal;
use crate::storage::pair::job_name;
use crate::storage::{COUNTERS, StorageError};

/// Pairs per batch when an older file is upgraded.
const BATCH: i64 = 1000;

/// Checksum of key, revision and value.
pub(super) fn sum(key: &[u8], modified: i64, value: &[u8]) -> i64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(&modified.to_le_bytes());
    hasher.update(value);
    // Signed numbers take fewer bytes in the file.
    i64::from(hasher.finalize().cast_signed())
}

/// # Errors
/// [`StorageError::Damaged`] if the pair does not match its checksum.
pub(super) fn check(key: &[u8], modified: i64, value: &[u8], stored: i64) -> rusqlite::Result<()> {
    if sum(key, modified, value) == stored {
        return Ok(());
    }
    let what = match (job_name(key), key.strip_prefix(COUNTERS.as_bytes())) {
        (Some(name), _) => format!("the job {name:?}"),
        (None, Some(name)) => format!("how far the job {:?} is", String::from_utf8_lossy(name)),
        (None, None) => format!("the key {:?}", String::from_utf8_lossy(key)),
    };
    Err(refusal(StorageError::Damaged(format!(
        "{what}: its bytes are not those that were written, by their checksum"
    ))))
}

/// Upgrades a file of format 1, which had no checksums, to `format`.
pub(super) fn add(connection: &Connection, format: i64) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch("ALTER TABLE pairs ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")?;
    let mut last = i64::MIN;
    loop {
        let mut select = transaction.prepare_cached(
            "SELECT rowid, key, modified, value FROM pairs WHERE rowid > ?1 ORDER BY rowid LIMIT ?2",
        )?;
        let sums: Vec<(i64, i64)> = select
            .query_map([last, BATCH], |row| {
                let (key, value): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(3)?);
                Ok((row.get(0)?, sum(&key, row.get(2)?, &value)))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let Some((end, _)) = sums.last() else { break };
        last = *end;
        let mut update = transaction.prepare_cached("UPDATE pairs SET sum = ?2 WHERE rowid = ?1")?;
        for (row, sum) in sums {
            update.execute(params![row, sum])?;
        }
    }
    transaction.pragma_update(None, "user_version", format)?;
    transaction.commit()
}
