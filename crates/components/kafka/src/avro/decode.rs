//! Avro to JSON.

use std::io::Write as _;

use serde::Serialize;

use super::{
    schema::{Record, Union},
    *,
};

/// Maximum JSON size in bytes: for some types, a few bytes can encode thousands of items.
const MAX_JSON: usize = 32 * 1024 * 1024;

struct Decoder<'c, 'd> {
    codec: &'c Codec,
    form: Form,
    data: &'d [u8],
    out: Vec<u8>,
}

pub(super) fn decode(codec: &Codec, data: &[u8], form: Form) -> Result<Bytes, ValueError> {
    let mut decoder = Decoder {
        codec,
        form,
        data,
        out: Vec::with_capacity(data.len().saturating_mul(2)),
    };
    decoder.value(codec.root, 0)?;
    if !decoder.data.is_empty() {
        let text = format!(
            "{} bytes follow the value: the data does not match this schema",
            decoder.data.len()
        );
        return Err(ValueError::new(text));
    }
    Ok(decoder.out.into())
}

impl<'d> Decoder<'_, 'd> {
    /// `depth` is the current JSON nesting.
    fn value(&mut self, node: usize, depth: usize) -> Result<(), ValueError> {
        if self.out.len() > MAX_JSON {
            return Err(ValueError::new(format!(
                "its JSON is larger than {MAX_JSON} bytes"
            )));
        }
        if depth > MAX_DEPTH {
            return Err(ValueError::new(format!(
                "it is nested deeper than {MAX_DEPTH} levels"
            )));
        }
        let codec = self.codec;
        match &codec.nodes[node] {
            Node::Null => self.out.extend(b"null"),
            Node::Boolean => match self.take(1)? {
                [0] => self.out.extend(b"false"),
                [1] => self.out.extend(b"true"),
                _ => return Err(ValueError::new("a boolean is neither 0 nor 1")),
            },
            Node::Int => {
                let number = self.long()?;
                let number = i32::try_from(number)
                    .map_err(|_| ValueError::new("a number is out of the range of int"))?;
                self.json(&number);
            }
            Node::Long => {
                let number = self.long()?;
                self.json(&number);
            }
            Node::Float => {
                let mut bytes = [0; 4];
                bytes.copy_from_slice(self.take(4)?);
                let number = f32::from_le_bytes(bytes);
                self.floating(f64::from(number), &number);
            }
            Node::Double => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(self.take(8)?);
                let number = f64::from_le_bytes(bytes);
                self.floating(number, &number);
            }
            Node::Bytes => {
                let bytes = self.bytes()?;
                self.latin_1(bytes);
            }
            Node::Fixed(size) => {
                let bytes = self.take(*size)?;
                self.latin_1(bytes);
            }
            Node::String => {
                let text = self.text()?;
                self.json(text);
            }
            Node::Enum(symbols) => self.symbol(symbols)?,
            Node::Union(union) => self.union(union, depth)?,
            Node::Array(items) => self.array(*items, depth)?,
            Node::Map(values) => self.map(*values, depth)?,
            Node::Record(record) => self.record(record, depth)?,
        }
        Ok(())
    }

    fn symbol(&mut self, symbols: &[String]) -> Result<(), ValueError> {
        let place = usize::try_from(self.long()?).ok();
        let symbol = place.and_then(|place| symbols.get(place));
        let symbol = symbol.ok_or_else(|| ValueError::new("an enum index is out of range"))?;
        self.json(symbol.as_str());
        Ok(())
    }

    fn union(&mut self, union: &Union, depth: usize) -> Result<(), ValueError> {
        let place = usize::try_from(self.long()?).ok();
        let member = place.and_then(|place| union.types.get(place));
        let member = member.ok_or_else(|| ValueError::new("a union index is out of range"))?;
        if self.form == Form::Plain || matches!(self.codec.nodes[member.node], Node::Null) {
            return self.value(member.node, depth);
        }
        self.out.push(b'{');
        self.json(member.tag.as_str());
        self.out.push(b':');
        self.value(member.node, depth + 1)?;
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, items: usize, depth: usize) -> Result<(), ValueError> {
        self.out.push(b'[');
        self.blocks(|decoder, number| {
            let item = decoder.value(items, depth + 1);
            item.map_err(|error| error.of_item(number))
        })?;
        self.out.push(b']');
        Ok(())
    }

    fn map(&mut self, values: usize, depth: usize) -> Result<(), ValueError> {
        self.out.push(b'{');
        self.blocks(|decoder, _| {
            let key = decoder.text()?;
            decoder.json(key);
            decoder.out.push(b':');
            decoder.value(values, depth + 1).map_err(|error| error.of(key))
        })?;
        self.out.push(b'}');
        Ok(())
    }

    fn record(&mut self, record: &Record, depth: usize) -> Result<(), ValueError> {
        for (number, field) in record.fields.iter().enumerate() {
            self.out.push(if number == 0 { b'{' } else { b',' });
            self.json(field.name.as_str());
            self.out.push(b':');
            self.value(field.node, depth + 1)
                .map_err(|error| error.of(&field.name))?;
        }
        self.out.extend(if record.fields.is_empty() {
            &b"{}"[..]
        } else {
            b"}"
        });
        Ok(())
    }

    /// The items of an array or map, separated by commas.
    fn blocks(
        &mut self,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), ValueError>,
    ) -> Result<(), ValueError> {
        let mut number = 0;
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                // Block size in bytes, for readers that skip it.
                let _size = self.long()?;
            }
            for _ in 0..count.unsigned_abs() {
                if number > 0 {
                    self.out.push(b',');
                }
                item(self, number)?;
                number += 1;
            }
        }
    }

    fn take(&mut self, size: usize) -> Result<&'d [u8], ValueError> {
        let (taken, rest) = self
            .data
            .split_at_checked(size)
            .ok_or_else(|| ValueError::new("the data is truncated"))?;
        self.data = rest;
        Ok(taken)
    }

    fn long(&mut self) -> Result<i64, ValueError> {
        let mut number = 0_u64;
        for place in 0..10 {
            let [byte] = self.take(1)? else {
                break;
            };
            let part = u64::from(byte & 0x7f);
            // Only one bit of the tenth byte is valid.
            if place == 9 && part > 1 {
                break;
            }
            number |= part << (7 * place);
            if byte & 0x80 == 0 {
                return Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed());
            }
        }
        Err(ValueError::new("a number is out of the range of long"))
    }

    fn bytes(&mut self) -> Result<&'d [u8], ValueError> {
        let size = usize::try_from(self.long()?).map_err(|_| ValueError::new("a length is negative"))?;
        self.take(size)
    }

    fn text(&mut self) -> Result<&'d str, ValueError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| ValueError::new("a string is not valid UTF-8"))
    }

    fn latin_1(&mut self, bytes: &[u8]) {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        self.json(text.as_str());
    }

    fn floating(&mut self, number: f64, digits: &impl Serialize) {
        if number.is_infinite() {
            let sign = if number < 0.0 { "-" } else { "" };
            // Writing to a Vec cannot fail.
            let _ = write!(self.out, "{sign}1e999");
        } else {
            // NaN becomes null.
            self.json(digits);
        }
    }

    /// Serialising texts and numbers to a Vec cannot fail.
    fn json<T: Serialize + ?Sized>(&mut self, value: &T) {
        let _ = serde_json::to_writer(&mut self.out, value);
    }
}
