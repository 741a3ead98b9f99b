//! Limits on the number of fields in a gRPC message, counted in the wire format as it arrives. An empty
//! element takes two bytes there but hundreds once decoded, so the size of a message says little about its
//! memory use.

/// Maximum fields of a message, including messages in it that [`Nested`] lists.
pub const MAX_FIELDS: usize = 128 << 10;

/// Bytes below which a message cannot exceed the limit: a field has a tag and at least one more byte.
const MIN_COUNTED: usize = 2 * MAX_FIELDS;

/// Nested messages whose fields are also counted, by field number.
#[derive(Debug)]
pub struct Nested {
    inside: &'static [(u64, &'static Nested)],
    /// Whether its own fields are counted.
    counts: bool,
}

impl Nested {
    /// Counts the message's own fields, and those of nested messages.
    pub const fn of(inside: &'static [(u64, &'static Self)]) -> Self {
        Self { inside, counts: true }
    }

    /// Counts the message as one field of its parent; only the fields of nested messages are counted.
    pub const fn around(inside: &'static [(u64, &'static Self)]) -> Self {
        Self {
            inside,
            counts: false,
        }
    }
}

/// A message without nested messages to count.
pub static FLAT: Nested = Nested::of(&[]);
/// `google.protobuf.Value`.
pub static VALUE: Nested = Nested::of(&[(5, &STRUCT), (6, &LIST)]);
/// `google.protobuf.Struct`.
pub static STRUCT: Nested = Nested::of(&[(1, &MEMBER)]);
static MEMBER: Nested = Nested::of(&[(2, &VALUE)]);
static LIST: Nested = Nested::of(&[(1, &VALUE)]);

/// A message has more than [`MAX_FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has more than {MAX_FIELDS} fields: send it in parts")]
pub struct TooManyFields;

/// Counts the fields of a complete message.
///
/// # Errors
/// [`TooManyFields`].
#[inline]
pub fn check(message: &[u8], nested: &'static Nested) -> Result<(), TooManyFields> {
    match Counter::of(message.len(), nested) {
        None => Ok(()),
        Some(mut counter) => counter.pass(message),
    }
}

/// Counts the fields of a message that arrives in pieces.
#[derive(Debug)]
pub(crate) struct Counter {
    top: &'static Nested,
    fields: usize,
    /// Bytes processed.
    at: u64,
    /// Open nested messages, and where each ends.
    open: Vec<(u64, &'static Nested)>,
    next: Next,
}

/// The next element of the wire format.
#[derive(Clone, Copy, Debug)]
enum Next {
    Tag(Varint),
    /// The value of a numeric field.
    Number,
    /// The length of the field with this number.
    Length(u64, Varint),
    /// Bytes to skip.
    Skipped(u64),
    /// Invalid; the decoder will report the error.
    Unreadable,
}

#[derive(Clone, Copy, Debug, Default)]
struct Varint {
    value: u64,
    shift: u32,
}

impl Varint {
    /// Returns the number once its last byte was pushed.
    fn push(&mut self, byte: u8) -> Option<u64> {
        self.value |= u64::from(byte & 0x7f).checked_shl(self.shift).unwrap_or(0);
        self.shift += 7;
        (byte & 0x80 == 0).then_some(self.value)
    }

    fn is_too_long(self) -> bool {
        self.shift >= u64::BITS + 6
    }
}

impl Counter {
    /// For a message of this length; `None` if it cannot exceed the limit.
    pub(crate) fn of(length: usize, nested: &'static Nested) -> Option<Self> {
        (length > MIN_COUNTED).then(|| Self {
            top: nested,
            fields: 0,
            at: 0,
            open: Vec::new(),
            next: Next::Tag(Varint::default()),
        })
    }

    pub(crate) fn pass(&mut self, mut data: &[u8]) -> Result<(), TooManyFields> {
        while let [byte, rest @ ..] = data {
            if let Next::Unreadable = self.next {
                return Ok(());
            }
            if let Next::Skipped(left) = &mut self.next {
                let step = usize::try_from(*left).unwrap_or(usize::MAX).min(data.len());
                *left -= step as u64;
                self.at += step as u64;
                data = &data[step..];
                if *left == 0 {
                    self.next = Next::Tag(Varint::default());
                }
                continue;
            }
            self.at += 1;
            self.byte(*byte)?;
            data = rest;
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), TooManyFields> {
        match &mut self.next {
            Next::Tag(varint) => match varint.push(byte) {
                Some(tag) => {
                    self.fields += usize::from(self.around().counts);
                    if self.fields > MAX_FIELDS {
                        return Err(TooManyFields);
                    }
                    self.next = match tag & 7 {
                        0 => Next::Number,
                        1 => Next::Skipped(8),
                        2 => Next::Length(tag >> 3, Varint::default()),
                        // Groups: their fields count like those of their parent.
                        3 | 4 => Next::Tag(Varint::default()),
                        5 => Next::Skipped(4),
                        _ => Next::Unreadable,
                    };
                }
                None if varint.is_too_long() => self.next = Next::Unreadable,
                None => {}
            },
            Next::Number if byte & 0x80 == 0 => self.next = Next::Tag(Varint::default()),
            Next::Number | Next::Skipped(_) | Next::Unreadable => {}
            Next::Length(field, varint) => match varint.push(byte) {
                Some(length) => {
                    let field = *field;
                    self.next = self.inside(field, length);
                }
                None if varint.is_too_long() => self.next = Next::Unreadable,
                None => {}
            },
        }
        Ok(())
    }

    /// The message that contains the byte just processed.
    fn around(&mut self) -> &'static Nested {
        while self.open.last().is_some_and(|(end, _)| *end < self.at) {
            self.open.pop();
        }
        self.open.last().map_or(self.top, |(_, nested)| nested)
    }

    /// Handles the length of a field.
    fn inside(&mut self, field: u64, length: u64) -> Next {
        let nested = self.around().inside.iter().find(|(number, _)| *number == field);
        match nested {
            Some((_, nested)) => {
                self.open.push((self.at.saturating_add(length), nested));
                Next::Tag(Varint::default())
            }
            None if length == 0 => Next::Tag(Varint::default()),
            None => Next::Skipped(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![(number << 3) | 2];
        let mut length = bytes.len();
        while length > 0x7f {
            out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend_from_slice(bytes);
        out
    }

    /// Empty fields.
    fn empty(number: u8, count: usize) -> Vec<u8> {
        [(number << 3) | 2, 0].repeat(count)
    }

    fn outcome(message: &[u8], nested: &'static Nested) -> Result<(), TooManyFields> {
        let whole = check(message, nested);
        for size in [1, 7, 16 << 10] {
            let mut counter = Counter::of(MIN_COUNTED + 1, nested).unwrap();
            let pieces = message.chunks(size).try_for_each(|piece| counter.pass(piece));
            assert_eq!(pieces, whole, "in pieces of {size}");
        }
        whole
    }

    #[test]
    fn bounds_fields_of_message() {
        let data = field(1, &empty(2, 2 * MAX_FIELDS));
        assert_eq!(outcome(&data, &FLAT), Ok(()), "it is data");
        let rest = empty(2, MAX_FIELDS - 1);
        assert_eq!(outcome(&[data.clone(), rest].concat(), &FLAT), Ok(()));
        let rest = empty(2, MAX_FIELDS);
        assert_eq!(outcome(&[data, rest].concat(), &FLAT), Err(TooManyFields));
        for number in [
            &[0x08, 1][..],
            &[0x08, 0xff, 1],
            &[0x0d, 8, 8, 8, 8],
            &[0x0b, 0x0c],
        ] {
            let many = number.repeat(MAX_FIELDS + 1);
            assert_eq!(outcome(&many, &FLAT), Err(TooManyFields), "{number:?}");
        }
        let wide = [0x09, 8, 8, 8, 8, 8, 8, 8, 8].repeat(MAX_FIELDS);
        assert_eq!(outcome(&wide, &FLAT), Ok(()));
    }

    #[test]
    fn counts_listed_nested_messages() {
        static NAMED: Nested = Nested::of(&[(3, &Nested::of(&[(1, &FLAT)]))]);
        let half = empty(1, MAX_FIELDS / 2);
        let deep = |number, bytes: &[u8]| [field(number, bytes), field(number, bytes)].concat();
        assert_eq!(outcome(&deep(3, &half), &NAMED), Err(TooManyFields));
        assert_eq!(outcome(&deep(2, &half), &NAMED), Ok(()), "it has no name");
        let inner = [field(1, &half), field(1, &half)].concat();
        assert_eq!(outcome(&field(3, &inner), &NAMED), Err(TooManyFields));
        let after = [field(3, b""), field(1, &inner), field(3, &field(2, &inner))].concat();
        assert_eq!(outcome(&after, &NAMED), Ok(()), "elsewhere they are data");
    }

    #[test]
    fn counts_values_at_every_depth() {
        let mut value = field(6, &empty(1, MAX_FIELDS));
        for _ in 0..20 {
            value = field(6, &field(1, &value));
        }
        assert_eq!(outcome(&value, &VALUE), Err(TooManyFields));
        assert_eq!(outcome(&value, &STRUCT), Ok(()));
        let members = field(5, &empty(1, MAX_FIELDS));
        assert_eq!(outcome(&members, &VALUE), Err(TooManyFields));
    }

    #[test]
    fn leaves_invalid_messages_to_decoder() {
        for start in [
            &[0x0f][..],
            &[0xff; 12],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            let garbage = [start, &empty(1, 2 * MAX_FIELDS)].concat();
            assert_eq!(outcome(&garbage, &FLAT), Ok(()), "{start:?}");
        }
    }
}
