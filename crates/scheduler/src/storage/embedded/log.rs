//! The log beside the file, looked at before SQLite reads it: that takes what is in it up to the first record that is not
//! as it was written, and says nothing of what lies behind. The format: <https://www.sqlite.org/fileformat2.html#walformat>.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use super::Location;

const LOG: &str = "dapr.scheduler.storage";
/// Bytes of its head.
const HEAD: usize = 32;
/// Of these, how many its checksum is of.
const SUMMED: usize = 24;
/// Bytes of the head of a record, before its page.
const RECORD: usize = 24;
/// What it begins with; the last bit is set where the sums are of big-endian numbers.
const MAGIC: u32 = 0x377f_0682;
/// The pages of SQLite end here, in bytes.
const PAGES: u32 = 65_536;

/// Records that are not used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unused {
    file: PathBuf,
    /// Where the record begins that is not as it was written, in bytes.
    at: u64,
    /// How many there are behind it.
    behind: u64,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, at, behind } = self;
        write!(
            f,
            "The log {} of the store has a record at byte {at} that is not as it was written, and {behind} behind it: none of \
             them is used. They are of a write that a loss of power cut off, which no caller was told of, or the disk has \
             changed them: then jobs are as they were before those writes. Where no power was lost, check the disk, and \
             compare the jobs with what was scheduled last",
            file.display()
        )
    }
}

/// Says in the log of this process what will not be used of the store's.
pub(super) fn look(location: &Location) {
    match unused(location) {
        Ok(None) => {}
        Ok(Some(unused)) => tracing::warn!(target: LOG, "{unused}"),
        // Opening the store names what is wrong with it.
        Err(error) => tracing::debug!(target: LOG, "Cannot look at the log of the store: {error}"),
    }
}

/// What of the log is not used; `None` too where the record that is not as it was written is the last one: a write that was
/// cut off looks the same.
fn unused(location: &Location) -> io::Result<Option<Unused>> {
    let file = location.file().with_extension("db-wal");
    let opened = match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut reader = BufReader::new(opened);
    let mut head = [0; HEAD];
    if !whole(&mut reader, &mut head)? {
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
    while whole(&mut reader, &mut record)? {
        // Those of the time before the log was begun anew have another salt.
        let is_ours = &record[8..16] == salt;
        if bad.is_some() {
            behind += u64::from(is_ours);
        } else {
            sum.add(&record[..8]);
            sum.add(&record[RECORD..]);
            if !is_ours || sum.of != (number(&record, 16), number(&record, 20)) {
                bad = Some(at);
            }
        }
        at += record.len() as u64;
    }
    Ok(bad.filter(|_| behind > 0).map(|at| Unused { file, at, behind }))
}

/// Whether there was enough to fill `bytes`.
fn whole(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

/// The number at that byte; 0 where there is none.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// SQLite's checksum, which goes on from record to record.
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
