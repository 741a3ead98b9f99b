//! What is left of a body, and how it lies in what was read (RFC 9112 sections 6 and 7).

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use httparse::Status;

use crate::error::Cut;

/// Bytes of the line with a chunk's size.
const MAX_LINE: usize = 4096;
/// Bytes that the extensions of all chunks of a body may take.
const MAX_EXTENSIONS: usize = 16 * 1024;
/// Bytes of trailers.
const MAX_TRAILERS: usize = 16 * 1024;
/// Trailer fields.
const MAX_FIELDS: usize = 64;
/// The most that a size and its line break can take without an extension.
const PLAIN_LINE: usize = 18;
const END_OF_LINE: &[u8] = b"\r\n";

/// What is left of the body that is being received.
#[derive(Debug)]
pub(crate) enum Rest {
    /// Nothing.
    Nothing,
    /// So many bytes, more than none.
    Bytes(u64),
    /// Chunks.
    Chunks(Chunks),
    /// All that comes until the connection ends.
    All,
    /// Whatever it is, its beginning is lost.
    Lost(Cut),
}

/// A piece of a body.
#[derive(Debug)]
pub(crate) enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl Rest {
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Takes the next piece out of what was read; `None` when more has to be read first.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Option<Part>, Cut> {
        match self {
            Self::Nothing => Ok(Some(Part::End)),
            Self::Bytes(left) => {
                let data = piece(left, read);
                if *left == 0 {
                    *self = Self::Nothing;
                }
                Ok(data)
            }
            Self::Chunks(chunks) => match chunks.take(read) {
                Ok(part) => {
                    if let Some(Part::Trailers(_) | Part::End) = part {
                        *self = Self::Nothing;
                    }
                    Ok(part)
                }
                Err(what) => Err(self.lose(Cut::Malformed(what))),
            },
            Self::All if read.is_empty() => Ok(None),
            Self::All => Ok(Some(Part::Data(read.split().freeze()))),
            Self::Lost(why) => Err(*why),
        }
    }

    pub(crate) fn lose(&mut self, why: Cut) -> Cut {
        *self = Self::Lost(why);
        why
    }
}

/// Up to `left` bytes of what was read.
fn piece(left: &mut u64, read: &mut BytesMut) -> Option<Part> {
    let size = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    if size == 0 {
        return None;
    }
    *left -= size as u64;
    Some(Part::Data(read.split_to(size).freeze()))
}

/// Where in a body of chunks the next byte belongs.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    place: Place,
    /// Bytes of extensions so far.
    extensions: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum Place {
    #[default]
    Size,
    Data(u64),
    /// The line break behind the data.
    Break,
    Trailers,
}

impl Chunks {
    fn take(&mut self, read: &mut BytesMut) -> Result<Option<Part>, &'static str> {
        loop {
            match &mut self.place {
                Place::Size => {
                    let Some(size) = self.size(read)? else {
                        return Ok(None);
                    };
                    self.place = if size == 0 {
                        Place::Trailers
                    } else {
                        Place::Data(size)
                    };
                }
                Place::Data(left) => {
                    let data = piece(left, read);
                    if *left == 0 {
                        self.place = Place::Break;
                    }
                    return Ok(data);
                }
                Place::Break => {
                    if read.len() < END_OF_LINE.len() {
                        return Ok(None);
                    }
                    if !read.starts_with(END_OF_LINE) {
                        return Err("a chunk is longer than its size");
                    }
                    read.advance(END_OF_LINE.len());
                    self.place = Place::Size;
                }
                Place::Trailers => return trailers(read),
            }
        }
    }

    /// Takes the line with a chunk's size.
    fn size(&mut self, read: &mut BytesMut) -> Result<Option<u64>, &'static str> {
        const NO_SIZE: &str = "the size of a chunk is no hexadecimal number";
        let Some(first) = read.first() else {
            return Ok(None);
        };
        if !first.is_ascii_hexdigit() {
            return Err(NO_SIZE);
        }
        match httparse::parse_chunk_size(read).map_err(|_| NO_SIZE)? {
            Status::Complete((line, size)) => {
                // Other readers may take a line feed inside of an extension for the end of the line.
                if read[..line - END_OF_LINE.len()].contains(&b'\n') {
                    return Err("a line feed in the extension of a chunk");
                }
                self.extensions += line.saturating_sub(PLAIN_LINE);
                if line > MAX_LINE || self.extensions > MAX_EXTENSIONS {
                    return Err("too many chunk extensions");
                }
                read.advance(line);
                Ok(Some(size))
            }
            Status::Partial if read.len() > MAX_LINE => Err("too many chunk extensions"),
            Status::Partial => Ok(None),
        }
    }
}

fn trailers(read: &mut BytesMut) -> Result<Option<Part>, &'static str> {
    if read.starts_with(END_OF_LINE) {
        read.advance(END_OF_LINE.len());
        return Ok(Some(Part::End));
    }
    let mut space = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let malformed = |_| "the trailers are no header fields";
    let (length, fields) = match httparse::parse_headers(read, &mut space).map_err(malformed)? {
        Status::Complete((length, _)) if length > MAX_TRAILERS => return Err("the trailers are too large"),
        Status::Complete(found) => found,
        Status::Partial if read.len() > MAX_TRAILERS => return Err("the trailers are too large"),
        Status::Partial => return Ok(None),
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "a trailer has no name")?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| "a trailer has no value")?;
        if may_trail(&name) {
            trailers.append(name, value);
        }
    }
    read.advance(length);
    Ok(Some(if trailers.is_empty() {
        Part::End
    } else {
        Part::Trailers(trailers)
    }))
}

/// Whether a field may come behind a body: not what says where the body ends, or where it goes
/// (RFC 9110 section 6.5.1).
pub(crate) fn may_trail(name: &HeaderName) -> bool {
    ![CONTENT_LENGTH, TRANSFER_ENCODING, HOST, TE, TRAILER].contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces of a body that arrives in steps of `step` bytes, and what is behind it.
    fn read_in_steps(text: &str, step: usize) -> Result<(String, HeaderMap, String), Cut> {
        let mut rest = Rest::Chunks(Chunks::default());
        let (mut read, mut data, mut trailers) = (BytesMut::new(), Vec::new(), HeaderMap::new());
        let mut steps = text.as_bytes().chunks(step);
        while !rest.is_nothing() {
            match rest.take(&mut read)? {
                Some(Part::Data(piece)) => data.extend_from_slice(&piece),
                Some(Part::Trailers(found)) => trailers = found,
                Some(Part::End) => {}
                None => read.extend_from_slice(steps.next().ok_or(Cut::Connection)?),
            }
        }
        let mut behind = read.to_vec();
        behind.extend(steps.flatten());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ok((text(data), trailers, text(behind)))
    }

    #[test]
    fn chunks_are_put_together_however_they_arrive() {
        let text = "3\r\nabc\r\nA ; x=\"y\"\r\n0123456789\r\n0\r\nx-a: 1\r\nhost: b\r\n\r\nGET";
        for step in 1..text.len() {
            let (data, trailers, behind) = read_in_steps(text, step).unwrap();
            assert_eq!((data.as_str(), behind.as_str()), ("abc0123456789", "GET"));
            assert_eq!(trailers.len(), 1);
            assert_eq!(trailers["x-a"], "1");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for text in [
            "\r\n",
            "-1\r\n",
            "+3\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3;a\nb\r\nabc\r\n0\r\n\r\n",
            "11111111111111111\r\n",
            "0\r\nno field\r\n\r\n",
            "0\r\n folded: x\r\n\r\n",
        ] {
            for step in [1, 2, text.len()] {
                let error = read_in_steps(text, step).unwrap_err();
                assert!(matches!(error, Cut::Malformed(_)), "{text:?}: {error}");
            }
        }
    }

    #[test]
    fn what_is_beside_the_data_is_bounded() {
        let line = format!("1;{}\r\n", "x".repeat(MAX_LINE));
        let lines = format!("1;{}\r\na\r\n", "x".repeat(1000)).repeat(20);
        let trailers = format!("0\r\nx: {}\r\n\r\n", "x".repeat(MAX_TRAILERS));
        for text in [line, lines, trailers] {
            let error = read_in_steps(&text, 999).unwrap_err();
            assert!(error.to_string().contains("too"), "{error}");
        }
    }
}
