//! Encoder for field blocks: RFC 7541 section 6, without Huffman coding.
//!
//! The dynamic table is filled once with fields that tend to repeat, and never evicts an entry for a new
//! one. Calls of a sidecar are alike; a changing table costs both sides more than the bytes it saves.

use bytes::{BufMut as _, BytesMut};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::names::{self, NameEntry, Treatment};
use super::table::{INITIAL, Pseudo, STATIC};
use super::{OVERHEAD, integer};

/// Maximum entries of the dynamic table.
const ENTRIES: usize = 32;
/// Maximum length of a value in the table.
const MAX_VALUE: usize = 512;

/// The prefix of a literal, and the bits of its first byte left for the name index: RFC 7541 section 6.2.
type Pattern = (u8, u32);
const INCREMENTAL: Pattern = (0x40, 6);
const WITHOUT: Pattern = (0x00, 4);
const NEVER: Pattern = (0x10, 4);

/// The encoder of a connection.
#[derive(Debug)]
pub struct Encoder {
    /// Oldest first, in the same order as [`tags`](Self::tags).
    entries: Vec<Entry>,
    /// Tags of name and value, compared before the texts.
    tags: [(u16, u16); ENTRIES],
    /// The entry after the last one used; wraps around.
    next: usize,
    /// Size of all entries in bytes.
    size: usize,
    capacity: usize,
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Entry {
    name: Option<HeaderName>,
    value: Box<[u8]>,
    size: usize,
}

/// A lookup key.
#[derive(Clone, Copy)]
struct Key<'a> {
    known: NameEntry,
    /// `None` for a pseudo-header, which its tag identifies.
    name: Option<&'a HeaderName>,
    text: &'a str,
}

impl Key<'_> {
    /// True if the entry, which has the same tag, has the same name.
    fn names(self, entry: &Entry) -> bool {
        self.known.tag < names::SHARED || entry.name.as_ref() == self.name
    }
}

/// A table size to announce to the peer.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The smallest size since the last block.
    least: usize,
    last: usize,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Starts with a table of 4096 bytes, the protocol's default.
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            tags: [(0, 0); ENTRIES],
            next: 0,
            size: 0,
            capacity: INITIAL,
            pending: None,
        }
    }

    /// Applies the peer's `SETTINGS_HEADER_TABLE_SIZE` in bytes; at most 4096 are used. The next block
    /// announces the change: RFC 7541 section 4.2.
    pub fn set_max_table(&mut self, size: usize) {
        let last = size.min(INITIAL);
        if self.pending.is_some() || last != self.capacity {
            let least = self.pending.map_or(last, |pending| pending.least.min(last));
            self.pending = Some(Pending { least, last });
        }
    }

    /// Begins a block in `out`. Must be called before the fields of each block.
    pub fn begin(&mut self, out: &mut BytesMut) {
        let Some(Pending { least, last }) = self.pending.take() else {
            return;
        };
        if least < last {
            self.resize(least, out);
        }
        self.resize(last, out);
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: StatusCode, out: &mut BytesMut) {
        let index = match status.as_u16() {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => return literal(WITHOUT, 8, "", status.as_str().as_bytes(), out),
        };
        indexed(index, out);
    }

    /// Writes `:method`.
    pub fn method(&mut self, method: &Method, out: &mut BytesMut) {
        match *method {
            Method::GET => indexed(2, out),
            Method::POST => indexed(3, out),
            _ => literal(WITHOUT, 2, "", method.as_str().as_bytes(), out),
        }
    }

    /// Writes `:scheme`.
    pub fn scheme(&mut self, scheme: &str, out: &mut BytesMut) {
        match scheme {
            "http" => indexed(6, out),
            "https" => indexed(7, out),
            _ => literal(WITHOUT, 6, "", scheme.as_bytes(), out),
        }
    }

    /// Writes `:authority`.
    pub fn authority(&mut self, authority: &[u8], out: &mut BytesMut) {
        self.text(names::AUTHORITY, Pseudo::Authority, authority, out);
    }

    /// Writes `:path`, with the query.
    pub fn path(&mut self, path: &[u8], out: &mut BytesMut) {
        match path {
            b"/" => indexed(4, out),
            _ => self.text(names::PATH, Pseudo::Path, path, out),
        }
    }

    /// Writes a regular field. Sensitive values, and values of names that carry credentials, are written as
    /// never indexed.
    pub fn field(&mut self, name: &HeaderName, value: &HeaderValue, out: &mut BytesMut) {
        let named = |entry: &Entry, _| entry.name.as_ref() == Some(name);
        if self.follows(value.as_bytes(), named) && !value.is_sensitive() {
            return self.repeat(self.next, out);
        }
        let mut known = names::known(name);
        if value.is_sensitive() {
            known.treatment = Treatment::Secret;
        }
        let key = Key {
            known,
            name: Some(name),
            text: name.as_str(),
        };
        self.any(key, value.as_bytes(), out);
    }

    fn text(&mut self, known: NameEntry, pseudo: Pseudo, value: &[u8], out: &mut BytesMut) {
        if self.follows(value, |_, tag| tag == known.tag) {
            return self.repeat(self.next, out);
        }
        let key = Key {
            known,
            name: None,
            text: pseudo.name(),
        };
        self.any(key, value, out);
    }

    fn any(&mut self, key: Key<'_>, value: &[u8], out: &mut BytesMut) {
        let NameEntry {
            index,
            treatment,
            tag: name,
        } = key.known;
        let most = match treatment {
            Treatment::Secret => return literal(NEVER, index.into(), key.text, value, out),
            Treatment::Indexed(0) => return literal(WITHOUT, index.into(), key.text, value, out),
            Treatment::Indexed(most) => usize::from(most),
        };
        let tags = (name, tag(value));
        if let Some(at) = self.find(tags, key, value) {
            return self.repeat(at, out);
        }
        let (values, at) = self.named(key);
        let index = match (index, at) {
            (0, Some(at)) => self.index(at),
            (index, _) => index.into(),
        };
        let size = key.text.len() + value.len() + OVERHEAD;
        if values < most && value.len() <= MAX_VALUE && self.fits(size) {
            literal(INCREMENTAL, index, key.text, value, out);
            let (name, value) = (key.name.cloned(), value.into());
            self.insert(Entry { name, value, size }, tags);
        } else {
            literal(WITHOUT, index, key.text, value, out);
        }
    }

    /// Writes an indexed field.
    fn repeat(&mut self, at: usize, out: &mut BytesMut) {
        self.next = if at + 1 < self.entries.len() { at + 1 } else { 0 };
        indexed(self.index(at), out);
    }

    /// True if the field is the one that followed last time: similar calls then need no lookup.
    fn follows(&self, value: &[u8], named: impl FnOnce(&Entry, u16) -> bool) -> bool {
        self.entries
            .get(self.next)
            .is_some_and(|entry| *entry.value == *value && named(entry, self.tags[self.next].0))
    }

    /// Finds the entry with this name and value.
    fn find(&self, tags: (u16, u16), key: Key<'_>, value: &[u8]) -> Option<usize> {
        self.entries
            .iter()
            .zip(&self.tags)
            .position(|(entry, other)| *other == tags && *entry.value == *value && key.names(entry))
    }

    /// Number of entries with this name, and the position of one of them.
    fn named(&self, key: Key<'_>) -> (usize, Option<usize>) {
        let named = |(entry, tags): (&Entry, &(u16, u16))| tags.0 == key.known.tag && key.names(entry);
        let mut entries = self.entries.iter().zip(&self.tags);
        let Some(first) = entries.position(named) else {
            return (0, None);
        };
        (1 + entries.filter(|pair| named(*pair)).count(), Some(first))
    }

    /// The index of an entry on the wire: newest first, after the static table.
    fn index(&self, at: usize) -> usize {
        STATIC + self.entries.len() - at
    }

    fn fits(&self, size: usize) -> bool {
        self.entries.len() < ENTRIES && self.size + size <= self.capacity
    }

    fn insert(&mut self, entry: Entry, tags: (u16, u16)) {
        self.size += entry.size;
        self.tags[self.entries.len()] = tags;
        self.entries.push(entry);
    }

    /// Announces a table size, and evicts entries that do not fit, as the peer will.
    fn resize(&mut self, capacity: usize, out: &mut BytesMut) {
        integer::write(capacity, 0x20, 5, out);
        self.capacity = capacity;
        let mut gone = 0;
        for entry in &self.entries {
            if self.size <= capacity {
                break;
            }
            self.size -= entry.size;
            gone += 1;
        }
        self.entries.drain(..gone);
        self.tags.rotate_left(gone);
    }
}

fn indexed(index: usize, out: &mut BytesMut) {
    integer::write(index, 0x80, 7, out);
}

/// Writes a literal. The name is written only if it has no index.
fn literal((pattern, bits): Pattern, index: usize, name: &str, value: &[u8], out: &mut BytesMut) {
    integer::write(index, pattern, bits, out);
    if index == 0 {
        integer::write(name.len(), 0, 7, out);
        out.put_slice(name.as_bytes());
    }
    integer::write(value.len(), 0, 7, out);
    out.put_slice(value);
}

/// A short hash that distinguishes most strings.
pub(super) fn tag(text: &[u8]) -> u16 {
    let word = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29),
        _ => text.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    // An odd constant spreads every bit upwards.
    let mixed = (word ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [high, low, ..] = mixed.to_be_bytes();
    u16::from_be_bytes([high, low])
}
