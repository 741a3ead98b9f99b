//! The static and dynamic tables: RFC 7541 section 2.3.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::{Field, HpackError, OVERHEAD};

/// Entries of the static table: RFC 7541 appendix A.
pub(super) const STATIC: usize = 61;

/// Default size of the dynamic table in bytes: RFC 9113 section 6.5.2.
pub(super) const INITIAL: usize = 4096;

/// A pseudo-header: RFC 9113 section 8.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pseudo {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
    Status,
}

impl Pseudo {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Method => ":method",
            Self::Scheme => ":scheme",
            Self::Authority => ":authority",
            Self::Path => ":path",
            Self::Protocol => ":protocol",
            Self::Status => ":status",
        }
    }

    fn read(name: &[u8]) -> Option<Self> {
        Some(match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ => return None,
        })
    }

    /// The field with this value; `store` copies the value where needed.
    fn field(self, value: &[u8], store: impl FnOnce(&[u8]) -> Bytes) -> Field {
        let text: fn(Bytes) -> Field = match self {
            Self::Method => return Method::from_bytes(value).map_or(Field::Malformed, Field::Method),
            Self::Status => return StatusCode::from_bytes(value).map_or(Field::Malformed, Field::Status),
            Self::Scheme => Field::Scheme,
            Self::Authority => Field::Authority,
            Self::Path => Field::Path,
            Self::Protocol => Field::Protocol,
        };
        // Spaces are invalid: they separate the parts of an HTTP/1.1 request line.
        if value
            .iter()
            .fold(true, |fine, &byte| fine & (byte > b' ' && byte != 0x7f))
        {
            text(store(value))
        } else {
            Field::Malformed
        }
    }
}

/// The name of a field.
#[derive(Debug, Clone)]
pub(super) enum Name {
    Pseudo(Pseudo),
    Plain(HeaderName),
    /// An illegal name, with its length.
    Illegal(usize),
}

impl Name {
    pub(super) fn read(name: &[u8]) -> Self {
        let read = if name.first() == Some(&b':') {
            Pseudo::read(name).map(Self::Pseudo)
        } else {
            HeaderName::from_lowercase(name).ok().map(Self::Plain)
        };
        read.unwrap_or(Self::Illegal(name.len()))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Pseudo(pseudo) => pseudo.name().len(),
            Self::Plain(name) => name.as_str().len(),
            Self::Illegal(length) => *length,
        }
    }

    /// The field with this value; `store` copies the value where needed.
    #[inline]
    pub(super) fn field(self, value: &[u8], store: impl FnOnce(&[u8]) -> Bytes) -> Field {
        match self {
            Self::Plain(name) => HeaderValue::from_maybe_shared(store(value))
                .map_or(Field::Malformed, |value| Field::Header(name, value)),
            Self::Pseudo(pseudo) => pseudo.field(value, store),
            Self::Illegal(_) => Field::Malformed,
        }
    }
}

/// A table entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Later fields may reuse the name with another value.
    pub(super) name: Name,
    pub(super) field: Field,
    /// Size by RFC 7541 section 4.1.
    pub(super) size: usize,
}

impl Entry {
    const fn pseudo(pseudo: Pseudo, field: Field, value: usize) -> Self {
        Self {
            name: Name::Pseudo(pseudo),
            field,
            size: pseudo.name().len() + value + OVERHEAD,
        }
    }

    const fn status(status: StatusCode) -> Self {
        Self::pseudo(Pseudo::Status, Field::Status(status), 3)
    }

    const fn path(path: &'static str) -> Self {
        Self::pseudo(
            Pseudo::Path,
            Field::Path(Bytes::from_static(path.as_bytes())),
            path.len(),
        )
    }

    const fn scheme(scheme: &'static str) -> Self {
        let field = Field::Scheme(Bytes::from_static(scheme.as_bytes()));
        Self::pseudo(Pseudo::Scheme, field, scheme.len())
    }

    const fn name(name: &'static str) -> Self {
        Self::header(name, "")
    }

    const fn header(name: &'static str, value: &'static str) -> Self {
        Self {
            name: Name::Plain(HeaderName::from_static(name)),
            field: Field::Header(HeaderName::from_static(name), HeaderValue::from_static(value)),
            size: name.len() + value.len() + OVERHEAD,
        }
    }
}

/// RFC 7541 appendix A.
static ENTRIES: [Entry; STATIC] = [
    Entry::pseudo(Pseudo::Authority, Field::Authority(Bytes::new()), 0),
    Entry::pseudo(Pseudo::Method, Field::Method(Method::GET), 3),
    Entry::pseudo(Pseudo::Method, Field::Method(Method::POST), 4),
    Entry::path("/"),
    Entry::path("/index.html"),
    Entry::scheme("http"),
    Entry::scheme("https"),
    Entry::status(StatusCode::OK),
    Entry::status(StatusCode::NO_CONTENT),
    Entry::status(StatusCode::PARTIAL_CONTENT),
    Entry::status(StatusCode::NOT_MODIFIED),
    Entry::status(StatusCode::BAD_REQUEST),
    Entry::status(StatusCode::NOT_FOUND),
    Entry::status(StatusCode::INTERNAL_SERVER_ERROR),
    Entry::name("accept-charset"),
    Entry::header("accept-encoding", "gzip, deflate"),
    Entry::name("accept-language"),
    Entry::name("accept-ranges"),
    Entry::name("accept"),
    Entry::name("access-control-allow-origin"),
    Entry::name("age"),
    Entry::name("allow"),
    Entry::name("authorization"),
    Entry::name("cache-control"),
    Entry::name("content-disposition"),
    Entry::name("content-encoding"),
    Entry::name("content-language"),
    Entry::name("content-length"),
    Entry::name("content-location"),
    Entry::name("content-range"),
    Entry::name("content-type"),
    Entry::name("cookie"),
    Entry::name("date"),
    Entry::name("etag"),
    Entry::name("expect"),
    Entry::name("expires"),
    Entry::name("from"),
    Entry::name("host"),
    Entry::name("if-match"),
    Entry::name("if-modified-since"),
    Entry::name("if-none-match"),
    Entry::name("if-range"),
    Entry::name("if-unmodified-since"),
    Entry::name("last-modified"),
    Entry::name("link"),
    Entry::name("location"),
    Entry::name("max-forwards"),
    Entry::name("proxy-authenticate"),
    Entry::name("proxy-authorization"),
    Entry::name("range"),
    Entry::name("referer"),
    Entry::name("refresh"),
    Entry::name("retry-after"),
    Entry::name("server"),
    Entry::name("set-cookie"),
    Entry::name("strict-transport-security"),
    Entry::name("transfer-encoding"),
    Entry::name("user-agent"),
    Entry::name("vary"),
    Entry::name("via"),
    Entry::name("www-authenticate"),
];

/// The dynamic table, preceded by the static one in the index space.
#[derive(Debug)]
pub(super) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    /// Size of all entries in bytes.
    size: usize,
    capacity: usize,
}

impl Table {
    /// An empty table of [`INITIAL`] capacity.
    pub(super) const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            capacity: INITIAL,
        }
    }

    /// The entry at an index: RFC 7541 section 2.3.3.
    ///
    /// # Errors
    ///
    /// If the index is out of range.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Result<&Entry, HpackError> {
        // Index 0 wraps around to beyond both tables.
        let at = index.wrapping_sub(1);
        ENTRIES
            .get(at)
            .or_else(|| self.entries.get(at.wrapping_sub(STATIC)))
            .ok_or(HpackError::Index(index))
    }

    /// Evicts entries to fit a new one (RFC 7541 section 4.4). Returns false if the entry is larger than
    /// the whole table; the table is then empty.
    pub(super) fn make_room(&mut self, size: usize) -> bool {
        self.evict(self.capacity.saturating_sub(size));
        size <= self.capacity
    }

    /// Inserts an entry, after [`make_room`](Self::make_room).
    pub(super) fn insert(&mut self, entry: Entry) {
        self.size += entry.size;
        self.entries.push_front(entry);
    }

    /// Sets the capacity: RFC 7541 section 4.3.
    pub(super) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict(capacity);
    }

    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_back() else {
                break;
            };
            self.size -= oldest.size;
        }
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    #[cfg(test)]
    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.entries.iter().map(|entry| &entry.field)
    }
}
