//! DNS messages as multicast DNS uses them (RFC 1035 section 4, RFC 6762 section 18).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    name::Name,
    wire::{Reader, Writer},
};

/// Largest multicast DNS message (RFC 6762, 17).
pub(super) const MAX_MESSAGE: usize = 9000;

/// Record type A.
pub(super) const TYPE_A: u16 = 1;
/// Record type PTR.
pub(super) const TYPE_PTR: u16 = 12;
/// Record type TXT.
pub(super) const TYPE_TXT: u16 = 16;
/// Record type AAAA.
pub(super) const TYPE_AAAA: u16 = 28;
/// Record type SRV.
pub(super) const TYPE_SRV: u16 = 33;
/// Query type for all records.
pub(super) const TYPE_ANY: u16 = 255;

const CLASS_IN: u16 = 1;
/// Top bit of the class: requests a unicast reply in questions, and a cache flush in records.
const TOP_BIT: u16 = 0x8000;
const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_AUTHORITATIVE: u16 = 0x0400;
const OPCODE_AND_RCODE: u16 = 0x780f;

/// A message: a query, a probe or a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Message {
    /// Copied to the reply.
    pub(super) id: u16,
    /// True for a response, false for a query.
    pub(super) response: bool,
    /// The sender is authoritative.
    pub(super) authoritative: bool,
    /// Questions.
    pub(super) questions: Vec<Question>,
    /// Answers. In a query, the answers known to the sender.
    pub(super) answers: Vec<Record>,
    /// Records that a probe proposes.
    pub(super) authorities: Vec<Record>,
    /// Additional records that the querier is likely to need.
    pub(super) additionals: Vec<Record>,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// Requested name.
    pub(super) name: Name,
    /// Requested record type.
    pub(super) kind: u16,
    /// Requests the reply by unicast.
    pub(super) unicast: bool,
}

/// A resource record of class IN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Owner of the record.
    pub(super) name: Name,
    /// The record replaces all others of its name and type.
    pub(super) flush: bool,
    /// Lifetime in seconds; 0 withdraws the record.
    pub(super) ttl: u32,
    /// Record data.
    pub(super) data: Data,
}

/// Data of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    /// IPv4 address.
    A(Ipv4Addr),
    /// IPv6 address.
    Aaaa(Ipv6Addr),
    /// Another name.
    Ptr(Name),
    /// Location of a service.
    Srv {
        /// Lower values are tried first.
        priority: u16,
        /// Relative weight among equal priorities.
        weight: u16,
        /// Port.
        port: u16,
        /// Host name.
        target: Name,
    },
    /// Strings of at most 255 bytes.
    Txt(Vec<Vec<u8>>),
    /// Any other type; the data is not retained.
    Other(u16),
}

/// Why a message cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    /// The message is truncated.
    #[error("the message is truncated")]
    Short,
    /// A name is too long, has an invalid label, or a pointer that does not lead back.
    #[error("the message has a malformed name")]
    Name,
    /// The message is longer than [`MAX_MESSAGE`].
    #[error("the message is too long")]
    Long,
    /// An opcode or response code other than 0, which must be ignored (RFC 6762, 18.3 and 18.11).
    #[error("the message is not a standard query or response")]
    Opcode,
}

impl Message {
    /// Decodes a message; every length and pointer is checked.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(MessageError::Long);
        }
        let mut reader = Reader::new(bytes);
        let id = reader.u16()?;
        let flags = reader.u16()?;
        if flags & OPCODE_AND_RCODE != 0 {
            return Err(MessageError::Opcode);
        }
        let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
        let mut questions = Vec::new();
        for _ in 0..counts[0] {
            questions.push(read_question(&mut reader)?);
        }
        Ok(Self {
            id,
            response: flags & FLAG_RESPONSE != 0,
            authoritative: flags & FLAG_AUTHORITATIVE != 0,
            questions,
            answers: read_records(&mut reader, counts[1])?,
            authorities: read_records(&mut reader, counts[2])?,
            additionals: read_records(&mut reader, counts[3])?,
        })
    }

    /// Encodes the message with name compression.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let mut flags = 0;
        if self.response {
            flags |= FLAG_RESPONSE;
        }
        if self.authoritative {
            flags |= FLAG_AUTHORITATIVE;
        }
        writer.u16(self.id);
        writer.u16(flags);
        for count in [
            self.questions.len(),
            self.answers.len(),
            self.authorities.len(),
            self.additionals.len(),
        ] {
            writer.u16(count as u16);
        }
        for question in &self.questions {
            writer.name(&question.name);
            writer.u16(question.kind);
            writer.u16(CLASS_IN | if question.unicast { TOP_BIT } else { 0 });
        }
        for record in self.records() {
            write_record(&mut writer, record);
        }
        writer.finish()
    }

    /// All records of all sections.
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.answers
            .iter()
            .chain(&self.authorities)
            .chain(&self.additionals)
    }
}

fn read_question(reader: &mut Reader<'_>) -> Result<Question, MessageError> {
    let name = reader.name()?;
    let kind = reader.u16()?;
    let class = reader.u16()?;
    Ok(Question {
        name,
        kind,
        unicast: class & TOP_BIT != 0,
    })
}

fn read_records(reader: &mut Reader<'_>, count: u16) -> Result<Vec<Record>, MessageError> {
    let mut records = Vec::new();
    for _ in 0..count {
        let name = reader.name()?;
        let kind = reader.u16()?;
        let class = reader.u16()?;
        let ttl = reader.u32()?;
        let length = reader.u16()?;
        let data = reader.limited(usize::from(length), |inner| read_data(inner, kind))?;
        records.push(Record {
            name,
            flush: class & TOP_BIT != 0,
            ttl,
            data: if class & !TOP_BIT == CLASS_IN {
                data
            } else {
                Data::Other(kind)
            },
        });
    }
    Ok(records)
}

fn read_data(reader: &mut Reader<'_>, kind: u16) -> Result<Data, MessageError> {
    Ok(match kind {
        TYPE_A => Data::A(Ipv4Addr::from(reader.array::<4>()?)),
        TYPE_AAAA => Data::Aaaa(Ipv6Addr::from(reader.array::<16>()?)),
        TYPE_PTR => Data::Ptr(reader.name()?),
        TYPE_SRV => Data::Srv {
            priority: reader.u16()?,
            weight: reader.u16()?,
            port: reader.u16()?,
            target: reader.name()?,
        },
        TYPE_TXT => {
            let mut strings = Vec::new();
            while !reader.at_end() {
                strings.push(reader.string()?.to_vec());
            }
            Data::Txt(strings)
        }
        other => Data::Other(other),
    })
}

fn write_record(writer: &mut Writer, record: &Record) {
    writer.name(&record.name);
    writer.u16(record.data.kind());
    writer.u16(CLASS_IN | if record.flush { TOP_BIT } else { 0 });
    writer.u32(record.ttl);
    writer.sized(|writer| match &record.data {
        Data::A(ip) => writer.bytes(&ip.octets()),
        Data::Aaaa(ip) => writer.bytes(&ip.octets()),
        Data::Ptr(name) => writer.name(name),
        Data::Srv {
            priority,
            weight,
            port,
            target,
        } => {
            writer.u16(*priority);
            writer.u16(*weight);
            writer.u16(*port);
            // Not compressed: some readers do not expand names in SRV (RFC 2782).
            writer.bytes(target.wire());
        }
        Data::Txt(strings) => strings.iter().for_each(|text| writer.string(text)),
        Data::Other(_) => {}
    });
}

impl Data {
    /// The record type number.
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::A(_) => TYPE_A,
            Self::Aaaa(_) => TYPE_AAAA,
            Self::Ptr(_) => TYPE_PTR,
            Self::Srv { .. } => TYPE_SRV,
            Self::Txt(_) => TYPE_TXT,
            Self::Other(kind) => *kind,
        }
    }
}
