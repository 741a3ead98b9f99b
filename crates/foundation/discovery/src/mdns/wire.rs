//! Bounds-checked encoding and decoding of the DNS wire format.

use std::collections::HashMap;

use super::{message::MessageError, name::Name};

/// Two top bits set: the rest is the offset of an earlier name.
const POINTER: u8 = 0xc0;
/// Largest offset that fits a pointer.
const MAX_POINTER: usize = 0x3fff;

/// Reads a message sequentially; names may point back.
pub(super) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self {
            message,
            at: 0,
            end: message.len(),
        }
    }

    pub(super) fn at_end(&self) -> bool {
        self.at >= self.end
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let stop = self.at.checked_add(count).filter(|stop| *stop <= self.end);
        let taken = stop.and_then(|stop| self.message.get(self.at..stop));
        let taken = taken.ok_or(MessageError::Short)?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        self.take(N)?.try_into().map_err(|_| MessageError::Short)
    }

    pub(super) fn u16(&mut self) -> Result<u16, MessageError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A string preceded by its length in one byte.
    pub(super) fn string(&mut self) -> Result<&'a [u8], MessageError> {
        let [length] = self.array()?;
        self.take(usize::from(length))
    }

    /// Limits `read` to the next `length` bytes, and continues after them in any case.
    pub(super) fn limited<T>(
        &mut self,
        length: usize,
        read: impl FnOnce(&mut Self) -> Result<T, MessageError>,
    ) -> Result<T, MessageError> {
        let start = self.at;
        self.take(length)?;
        let mut inner = Reader {
            message: self.message,
            at: start,
            end: self.at,
        };
        read(&mut inner)
    }

    /// A name, compressed or not. Each pointer must lead to before the start of the current part, so
    /// decoding terminates.
    pub(super) fn name(&mut self) -> Result<Name, MessageError> {
        let mut name = Name::builder();
        let mut start = self.at;
        let mut resume = None;
        loop {
            let [length] = self.array()?;
            match length & POINTER {
                0 if length == 0 => break,
                0 => {
                    let label = self.take(usize::from(length))?;
                    if !name.push(label) {
                        return Err(MessageError::Name);
                    }
                }
                POINTER => {
                    let [low] = self.array()?;
                    let target = usize::from(u16::from_be_bytes([length & !POINTER, low]));
                    if target >= start {
                        return Err(MessageError::Name);
                    }
                    resume.get_or_insert((self.at, self.end));
                    start = target;
                    self.at = target;
                    self.end = self.message.len();
                }
                _ => return Err(MessageError::Name),
            }
        }
        if let Some((at, end)) = resume {
            self.at = at;
            self.end = end;
        }
        Ok(name.finish())
    }
}

/// Appends to a message and records the offsets of names.
pub(super) struct Writer {
    message: Vec<u8>,
    /// Offset of each written name suffix, by its lower-case wire form.
    suffixes: HashMap<Vec<u8>, u16>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            message: Vec::with_capacity(256),
            suffixes: HashMap::new(),
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.message
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.message.extend_from_slice(bytes);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// A string preceded by its length; truncated at 255 bytes.
    pub(super) fn string(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(255)];
        self.message.push(text.len() as u8);
        self.bytes(text);
    }

    /// A part preceded by its length in two bytes.
    pub(super) fn sized(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.message.len();
        self.u16(0);
        write(self);
        let length = (self.message.len() - at - 2) as u16;
        self.message[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// A name; its longest known suffix becomes a pointer.
    pub(super) fn name(&mut self, name: &Name) {
        let wire = name.wire();
        let mut at = 0;
        while wire[at] != 0 {
            let suffix = wire[at..].to_ascii_lowercase();
            if let Some(offset) = self.suffixes.get(&suffix) {
                let pointer = offset | u16::from(POINTER) << 8;
                return self.u16(pointer);
            }
            if self.message.len() <= MAX_POINTER {
                self.suffixes.insert(suffix, self.message.len() as u16);
            }
            let next = at + 1 + usize::from(wire[at]);
            self.bytes(&wire[at..next]);
            at = next;
        }
        self.message.push(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::{Data, Message, Question, Record};
    use super::*;

    fn names() -> impl Strategy<Value = Name> {
        proptest::collection::vec("[a-zA-Z0-9:_-]{1,12}", 1..6)
            .prop_map(|labels| Name::parse(&labels.join(".")).unwrap())
    }

    fn data() -> impl Strategy<Value = Data> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(|ip| Data::A(ip.into())),
            any::<[u8; 16]>().prop_map(|ip| Data::Aaaa(ip.into())),
            names().prop_map(Data::Ptr),
            (any::<u16>(), any::<u16>(), any::<u16>(), names()).prop_map(
                |(priority, weight, port, target)| Data::Srv {
                    priority,
                    weight,
                    port,
                    target
                }
            ),
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..4)
                .prop_map(Data::Txt),
        ]
    }

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let record =
            (names(), any::<bool>(), any::<u32>(), data()).prop_map(|(name, flush, ttl, data)| Record {
                name,
                flush,
                ttl,
                data,
            });
        proptest::collection::vec(record, 0..5)
    }

    fn messages() -> impl Strategy<Value = Message> {
        let question = (names(), any::<u16>(), any::<bool>()).prop_map(|(name, kind, unicast)| Question {
            name,
            kind,
            unicast,
        });
        (
            any::<(u16, bool, bool)>(),
            proptest::collection::vec(question, 0..4),
            records(),
            records(),
            records(),
        )
            .prop_map(
                |((id, response, authoritative), questions, answers, authorities, additionals)| Message {
                    id,
                    response,
                    authoritative,
                    questions,
                    answers,
                    authorities,
                    additionals,
                },
            )
    }

    proptest! {
        #[test]
        fn messages_round_trip(message in messages()) {
            prop_assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(message) = Message::decode(&bytes) {
                message.encode();
            }
        }

        #[test]
        fn damaged_messages_do_not_panic(message in messages(), damage in any::<Vec<(prop::sample::Index, u8)>>()) {
            let mut bytes = message.encode();
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let _ = Message::decode(&bytes);
        }

        #[test]
        fn rejects_truncation_anywhere(message in messages(), cut in any::<prop::sample::Index>()) {
            let bytes = message.encode();
            let cut = cut.index(bytes.len());
            prop_assert!(Message::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn compresses_names() {
        let name = Name::parse("host:1.orders.local").unwrap();
        let mut writer = Writer::new();
        writer.name(&name);
        let first = writer.message.len();
        writer.name(&name);
        writer.name(&Name::parse("ORDERS.local").unwrap());
        assert_eq!(writer.message.len(), first + 4);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.name().unwrap(), name);
        assert_eq!(reader.name().unwrap(), name);
        assert_eq!(reader.name().unwrap().to_string(), "orders.local.");
        assert!(reader.at_end());
    }

    #[test]
    fn rejects_forward_pointers() {
        // To itself, forward, and two that point at each other.
        for bytes in [&[0xc0, 0][..], &[0xc0, 2, 0], &[1, b'a', 0xc0, 0]] {
            assert_eq!(Reader::new(bytes).name().unwrap_err(), MessageError::Name);
        }
        let mut second = Reader::new(&[0xc0, 2, 0xc0, 0]);
        second.at = 2;
        assert_eq!(second.name().unwrap_err(), MessageError::Name);
    }
}
