//! Decoder for field blocks: RFC 7541 sections 3 and 6.

use bytes::{Bytes, BytesMut};

use super::table::{Entry, Name, Table};
use super::{Field, HpackError, OVERHEAD, huffman, integer};

/// Bytes of an allocation shared by several values.
const ARENA: usize = 4096;
/// Values above this size get their own allocation, so that a half-full arena is not discarded.
const LARGE: usize = 1024;
/// Bytes of the Huffman buffer retained between blocks.
const SCRATCH: usize = 4096;

/// The decoder of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Upper bound for table size updates.
    max_table: usize,
    /// Buffer for decoded Huffman strings.
    scratch: Vec<u8>,
    arena: Arena,
}

/// How a literal affects the table: RFC 7541 section 6.2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexing {
    Incremental,
    Without,
    Never,
}

impl Decoder {
    /// `max_table` is our `SETTINGS_HEADER_TABLE_SIZE` in bytes. The table starts with 4096 bytes until the
    /// peer changes it, because it may not know our settings yet.
    pub fn new(max_table: usize) -> Self {
        Self {
            table: Table::new(),
            max_table,
            scratch: Vec::new(),
            arena: Arena(BytesMut::new()),
        }
    }

    /// Decodes one complete field block. Returns the size of the list in bytes: names and values, plus 32
    /// per field (RFC 9113 section 6.5.2).
    ///
    /// Fields beyond `limit` are not emitted, so a larger size means that the list is incomplete. The
    /// tables stay correct. Emitted fields do not reference the block's memory.
    ///
    /// # Errors
    ///
    /// If the block violates RFC 7541. Fields before the error were emitted.
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

    /// Applies the table size updates at the start of a block: RFC 7541 sections 4.2 and 6.3.
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

    /// Reads a literal: its value, and its name if the name index is 0. Returns its size in a list and, if
    /// within `limit`, the field.
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
            // The entry may live as long as the connection, so it gets an exact allocation.
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

/// Takes the string at the start of `rest` (RFC 7541 section 5.2). The result borrows from the block or
/// from `scratch`.
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

/// An arena for values: the fields of a message mostly have the same lifetime.
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
            // Reuses the allocation if nothing references it.
            self.0.reserve(ARENA);
        }
        self.0.extend_from_slice(value);
        self.0.split().freeze()
    }
}
