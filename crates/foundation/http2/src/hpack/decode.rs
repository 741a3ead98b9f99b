//! From blocks to fields: RFC 7541 sections 3 and 6.

use bytes::{Bytes, BytesMut};

use super::table::{Entry, Name, Table};
use super::{Field, HpackError, OVERHEAD, huffman, integer};

/// Bytes of memory that the values of several fields share.
const ARENA: usize = 4096;
/// Values above this have memory of their own, so that the arena is not given up half full.
const LARGE: usize = 1024;
/// Bytes kept for strings in Huffman code from one block to the next.
const SCRATCH: usize = 4096;

/// The receiving side of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// What the capacity of the table may be set to.
    max_table: usize,
    /// Where strings in Huffman code are decoded to.
    scratch: Vec<u8>,
    arena: Arena,
}

/// What a literal asks of the table: RFC 7541 section 6.2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexing {
    Incremental,
    Without,
    Never,
}

impl Decoder {
    /// `max_table` is our `SETTINGS_HEADER_TABLE_SIZE`, in bytes. The table has 4096 of them until the other side says
    /// otherwise, as it may not know our settings yet.
    pub fn new(max_table: usize) -> Self {
        Self {
            table: Table::new(),
            max_table,
            scratch: Vec::new(),
            arena: Arena(BytesMut::new()),
        }
    }

    /// Decodes one whole header block. Returns the size of the list, in bytes: names and values, and 32 for each field
    /// (RFC 9113 section 6.5.2).
    ///
    /// Fields past `limit` are not emitted, so a size above it means that the list is incomplete; the tables stay right.
    /// Nothing that is emitted keeps the block's memory.
    ///
    /// # Errors
    ///
    /// When the block is not what RFC 7541 allows. Fields before the mistake were emitted.
    pub fn decode(
        &mut self,
        block: &[u8],
        limit: usize,
        mut emit: impl FnMut(Field),
    ) -> Result<usize, HpackError> {
        let mut rest = block;
        let mut total = 0usize;
        self.updates(&mut rest)?;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let entry = self.table.entry(integer::read(&mut rest, 7)?)?;
                total = total.saturating_add(entry.size);
                if total <= limit {
                    emit(entry.field.clone());
                }
                continue;
            }
            let (bits, indexing) = match first {
                0x40.. => (6, Indexing::Incremental),
                0x20.. => return Err(HpackError::LateUpdate),
                0x10.. => (4, Indexing::Never),
                _ => (4, Indexing::Without),
            };
            let name = integer::read(&mut rest, bits)?;
            let (size, field) = self.literal(name, indexing, &mut rest, limit.saturating_sub(total))?;
            total = total.saturating_add(size);
            if let Some(field) = field {
                emit(field);
            }
        }
        self.scratch.truncate(SCRATCH);
        self.scratch.shrink_to(SCRATCH);
        Ok(total)
    }

    /// Follows the size updates that a block may begin with: RFC 7541 sections 4.2 and 6.3.
    fn updates(&mut self, rest: &mut &[u8]) -> Result<(), HpackError> {
        while let Some(0x20..0x40) = rest.first() {
            let size = integer::read(rest, 5)?;
            if size > self.max_table {
                return Err(HpackError::TableSize(size));
            }
            self.table.resize(size);
        }
        Ok(())
    }

    /// Reads the strings of a literal: its value, and its name too when the index of that is 0. Returns its size in a
    /// list and, when that is within `limit`, the field.
    fn literal(
        &mut self,
        name: usize,
        indexing: Indexing,
        rest: &mut &[u8],
        limit: usize,
    ) -> Result<(usize, Option<Field>), HpackError> {
        let name = match name {
            0 => Name::read(string(rest, &mut self.scratch)?),
            index => self.table.entry(index)?.name.clone(),
        };
        let value = string(rest, &mut self.scratch)?;
        let size = name.len() + value.len() + OVERHEAD;
        if indexing == Indexing::Incremental && self.table.make_room(size) {
            // The entry may stay for as long as the connection: it has memory of the right size.
            let field = name.clone().field(value, Bytes::copy_from_slice);
            let emitted = (size <= limit).then(|| field.clone());
            self.table.insert(Entry { name, field, size });
            return Ok((size, emitted));
        }
        if size > limit {
            return Ok((size, None));
        }
        let mut field = name.field(value, |value| self.arena.keep(value));
        if let (Indexing::Never, Field::Header(_, value)) = (indexing, &mut field) {
            value.set_sensitive(true);
        }
        Ok((size, Some(field)))
    }
}

#[cfg(test)]
impl Decoder {
    pub(super) fn table(&self) -> &Table {
        &self.table
    }
}

/// Takes the string at the start of `rest`: RFC 7541 section 5.2. It stands in the block, or in `scratch`.
fn string<'s, 'b: 's>(rest: &mut &'b [u8], scratch: &'s mut Vec<u8>) -> Result<&'s [u8], HpackError> {
    let coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer::read(rest, 7)?;
    let Some((string, after)) = rest.split_at_checked(length) else {
        return Err(HpackError::Truncated);
    };
    *rest = after;
    if !coded {
        return Ok(string);
    }
    let length = huffman::decode(string, scratch)?;
    Ok(&scratch[..length])
}

/// Memory for values, given out piece by piece: the fields of a message mostly live as long as each other.
#[derive(Debug)]
struct Arena(BytesMut);

impl Arena {
    fn keep(&mut self, value: &[u8]) -> Bytes {
        if value.is_empty() {
            return Bytes::new();
        }
        if value.len() > LARGE {
            return Bytes::copy_from_slice(value);
        }
        if self.0.capacity() < value.len() {
            // The same memory again when nothing of it is in use any more.
            self.0.reserve(ARENA);
        }
        self.0.extend_from_slice(value);
        self.0.split().freeze()
    }
}
