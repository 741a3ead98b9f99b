//! Inspects SQLite's write-ahead log before SQLite opens it. SQLite uses the log up to the first invalid
//! record and ignores the rest silently. Format: <https://www.sqlite.org/fileformat2.html#walformat>.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use super::Location;

const LOG: &str = "dapr.scheduler.storage";
/// Size of the log's header in bytes.
const HEAD: usize = 32;
/// Number of header bytes covered by its checksum.
const SUMMED: usize = 24;
/// Size of a record's header in bytes; its page follows.
const RECORD: usize = 24;
/// End of the salt in a record's header; it begins at byte 8.
const SALTED: usize = 16;
/// Magic number of the header; its last bit is set if the checksums are big-endian.
const MAGIC: u32 = 0x377f_0682;
/// Maximum size of a page in bytes.
const PAGES: u32 = 65_536;

/// The part of the log that SQLite will ignore.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unused {
    file: PathBuf,
    damage: LogDamage,
}

#[derive(Debug, PartialEq, Eq)]
enum LogDamage {
    /// Valid-looking records after an invalid one.
    Changed {
        /// Offset of the invalid record in bytes.
        at: u64,
        /// Number of records after it.
        behind: u64,
    },
    /// The last write is truncated or damaged.
    Last {
        /// Offset of the write in bytes.
        at: u64,
        /// Number of bytes from there to the end.
        bytes: u64,
    },
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.damage {
            LogDamage::Changed { at, behind } => write!(
                f,
                "the log {file} of the store has a damaged record at byte {at} and {behind} records after it; all of \
                 them are discarded. After a loss of power they belong to an unacknowledged write. Otherwise the \
                 disk is damaged and the writes in them are lost: check the disk, and compare the jobs with the \
                 latest requests"
            ),
            LogDamage::Last { at, bytes } => write!(
                f,
                "the last write in the log {file} of the store is incomplete and discarded: {bytes} bytes from byte \
                 {at}. After a kill or a loss of power it is an unacknowledged write. Otherwise the disk is damaged \
                 and the last write is lost: check the disk, and compare the jobs with the latest requests"
            ),
        }
    }
}

/// Logs which part of the write-ahead log SQLite will ignore.
pub(super) fn look(location: &Location) {
    match unused(location) {
        Ok(None) => {}
        Ok(Some(unused)) => tracing::warn!(target: LOG, "{unused}"),
        // Opening the store reports the problem.
        Err(error) => tracing::debug!(target: LOG, "cannot inspect the store's log: {error}"),
    }
}

/// Finds the part of the log that SQLite will ignore. Records of an earlier log, which have another salt, do
/// not count. A last record with a damaged salt looks the same and is not found.
fn unused(location: &Location) -> io::Result<Option<Unused>> {
    let file = location.file().with_extension("db-wal");
    let opened = match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut reader = BufReader::new(opened);
    let mut head = [0; HEAD];
    if read_full(&mut reader, &mut head)? < HEAD {
        return Ok(None);
    }
    let magic = number(&head, 0);
    let page = number(&head, 8);
    if magic & !1 != MAGIC || !page.is_power_of_two() || page > PAGES {
        return Ok(None);
    }
    let mut sum = Sum {
        is_big: magic & 1 == 1,
        of: (0, 0),
    };
    sum.add(&head[..SUMMED]);
    if sum.of != (number(&head, 24), number(&head, 28)) {
        return Ok(None);
    }
    let salt = &head[16..24];
    let mut record = vec![0; RECORD + page as usize];
    let (mut at, mut bad, mut behind) = (HEAD as u64, None, 0);
    // End of the last complete write, and of the last record of this log.
    let (mut written, mut end) = (at, at);
    loop {
        let length = read_full(&mut reader, &mut record)?;
        let is_whole = length == record.len();
        let is_ours = length >= SALTED && &record[8..SALTED] == salt;
        if bad.is_some() {
            behind += u64::from(is_whole && is_ours);
        } else if is_whole {
            sum.add(&record[..8]);
            sum.add(&record[RECORD..]);
            if !is_ours || sum.of != (number(&record, 16), number(&record, 20)) {
                bad = Some(at);
            } else if number(&record, 4) != 0 {
                // The last record of a write has the size of the database in its header.
                written = at + length as u64;
            }
        }
        at += length as u64;
        if is_ours {
            end = at;
        }
        if !is_whole {
            break;
        }
    }
    let damage = match bad {
        Some(at) if behind > 0 => LogDamage::Changed { at, behind },
        _ if end > written => LogDamage::Last {
            at: written,
            bytes: end - written,
        },
        _ => return Ok(None),
    };
    Ok(Some(Unused { file, damage }))
}

/// Reads until `bytes` is full or the file ends; returns the number of bytes.
fn read_full(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read_full = 0;
    while read_full < bytes.len() {
        match reader.read(&mut bytes[read_full..]) {
            Ok(0) => break,
            Ok(read) => read_full += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read_full)
}

/// The big-endian number at this offset; 0 past the end.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// SQLite's checksum, cumulative over all records.
struct Sum {
    is_big: bool,
    of: (u32, u32),
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        for pair in bytes.as_chunks::<8>().0 {
            let [first, second] = [0, 4].map(|at| {
                let number = number(pair, at);
                if self.is_big { number } else { number.swap_bytes() }
            });
            self.of.0 = self.of.0.wrapping_add(first).wrapping_add(self.of.1);
            self.of.1 = self.of.1.wrapping_add(second).wrapping_add(self.of.0);
        }
    }
}
