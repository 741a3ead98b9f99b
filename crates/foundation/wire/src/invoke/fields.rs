//! Zero-copy reader for the fields of a protobuf message.

use std::ops::Range;
use std::str;

use bytes::Bytes;

use super::DecodeError;

/// Maximum nesting of skipped groups.
const MAX_GROUP_DEPTH: usize = 32;

/// The fields of one message, in encoded order.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    source: &'a Bytes,
    at: usize,
    end: usize,
    message: &'static str,
}

pub(super) struct Field<'a> {
    pub(super) number: u32,
    value: Value,
    source: &'a Bytes,
}

enum Value {
    Varint(u64),
    Delimited(Range<usize>),
    /// A fixed-size value or a group; no field of this protocol has one.
    Other,
}

impl<'a> Fields<'a> {
    /// The fields of a complete message; `message` is its name in errors.
    pub(super) fn of(source: &'a Bytes, message: &'static str) -> Self {
        Self {
            source,
            at: 0,
            end: source.len(),
            message,
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Field<'a>>, DecodeError> {
        if self.at == self.end {
            return Ok(None);
        }
        let (number, wire_type) = self.key()?;
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            2 => Value::Delimited(self.delimited()?),
            1 | 5 => {
                self.skip(if wire_type == 1 { 8 } else { 4 })?;
                Value::Other
            }
            3 => {
                self.skip_group(number)?;
                Value::Other
            }
            _ => return Err(self.malformed("a group ends that did not begin")),
        };
        Ok(Some(Field {
            number,
            value,
            source: self.source,
        }))
    }

    fn malformed(&self, problem: &'static str) -> DecodeError {
        DecodeError::Malformed {
            message: self.message,
            problem,
        }
    }

    fn key(&mut self) -> Result<(u32, u8), DecodeError> {
        let key = u32::try_from(self.varint()?).map_err(|_| self.malformed("a field number is too large"))?;
        match (key >> 3, (key & 7) as u8) {
            (0, _) => Err(self.malformed("a field has number 0")),
            (_, 6 | 7) => Err(self.malformed("a field has an unknown wire type")),
            known => Ok(known),
        }
    }

    /// Most numbers of a head (keys, lengths of names and values) fit in one byte.
    #[inline]
    fn varint(&mut self) -> Result<u64, DecodeError> {
        if self.at < self.end
            && let Some(&byte) = self.source.get(self.at)
            && byte < 0x80
        {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for (i, &byte) in self.source[self.at..self.end].iter().take(10).enumerate() {
            if i == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(self.malformed(if self.end - self.at < 10 {
            "it ends within a number"
        } else {
            "a number is too large"
        }))
    }

    fn skip(&mut self, len: u64) -> Result<Range<usize>, DecodeError> {
        let start = self.at;
        match usize::try_from(len) {
            Ok(len) if len <= self.end - start => {
                self.at = start + len;
                Ok(start..self.at)
            }
            _ => Err(self.malformed("it ends within a field")),
        }
    }

    fn delimited(&mut self) -> Result<Range<usize>, DecodeError> {
        let len = self.varint()?;
        self.skip(len)
    }

    fn skip_group(&mut self, number: u32) -> Result<(), DecodeError> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let (inner, wire_type) = self.key()?;
            match wire_type {
                0 => {
                    self.varint()?;
                }
                1 | 5 => {
                    self.skip(if wire_type == 1 { 8 } else { 4 })?;
                }
                2 => {
                    self.delimited()?;
                }
                3 if open.len() >= MAX_GROUP_DEPTH => {
                    return Err(self.malformed("groups lie too deep within each other"));
                }
                3 => open.push(inner),
                _ if inner == innermost => {
                    open.pop();
                }
                _ => return Err(self.malformed("a group ends that did not begin")),
            }
        }
        Ok(())
    }
}

impl<'a> Field<'a> {
    fn range(&self, field: &'static str) -> Result<Range<usize>, DecodeError> {
        match &self.value {
            Value::Delimited(range) => Ok(range.clone()),
            _ => Err(DecodeError::Malformed {
                message: field,
                problem: "its wire type is not a length",
            }),
        }
    }

    /// The fields of an embedded message.
    pub(super) fn message(&self, field: &'static str) -> Result<Fields<'a>, DecodeError> {
        let Range { start, end } = self.range(field)?;
        Ok(Fields {
            source: self.source,
            at: start,
            end,
            message: field,
        })
    }

    /// A slice that shares the source's memory.
    pub(super) fn bytes(&self, field: &'static str) -> Result<Bytes, DecodeError> {
        Ok(self.source.slice(self.range(field)?))
    }

    pub(super) fn raw(&self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        Ok(&self.source[self.range(field)?])
    }

    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, DecodeError> {
        str::from_utf8(self.raw(field)?).map_err(|_| DecodeError::Utf8 { field })
    }

    pub(super) fn number(&self, field: &'static str) -> Result<u64, DecodeError> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(DecodeError::Malformed {
                message: field,
                problem: "its wire type is not a number",
            }),
        }
    }
}
