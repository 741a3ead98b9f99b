//! Tracks the lines between the chunks of a request body (RFC 9112 section 7.1) to find its end; hyper
//! decodes them.
//!
//! hyper takes a bare line feed after the last chunk as the start of a trailer, and the next request as the
//! rest of that trailer. A proxy that takes the line feed as the end of the body forwards that request
//! separately. The two then disagree on where requests begin (request smuggling), so a bare line feed is
//! refused.

/// The position in a chunked body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    at: Position,
    /// Bytes of the chunk that have not arrived.
    size: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Size,
    Extension,
    SizeEnd,
    Data,
    DataEnd,
    DataEndLf,
    /// A line of the trailers; true at the start of the line.
    Trailer(bool),
    TrailerLf(bool),
    Ended,
}

impl Chunks {
    /// Whether the body has ended.
    #[inline]
    pub(super) fn ended(self) -> bool {
        self.at == Position::Ended
    }

    /// How many of `bytes` belong to the body.
    ///
    /// # Errors
    /// Why the body is malformed.
    #[inline]
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut taken = 0;
        while let Some(&byte) = bytes.get(taken).filter(|_| !self.ended()) {
            if self.at == Position::Data {
                let there = (bytes.len() - taken) as u64;
                let data = self.size.min(there);
                self.size -= data;
                taken += usize::try_from(data).unwrap_or(usize::MAX);
                if self.size == 0 {
                    self.at = Position::DataEnd;
                }
                continue;
            }
            self.at = self.step(byte)?;
            taken += 1;
        }
        Ok(taken)
    }

    #[inline]
    fn step(&mut self, byte: u8) -> Result<Position, &'static str> {
        const LINE: &str = "a line of the chunked body does not end with CR LF";
        Ok(match (self.at, byte) {
            (Position::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = u64::from(char::from(byte).to_digit(16).unwrap_or_default());
                let size = self.size.checked_mul(16).and_then(|size| size.checked_add(digit));
                self.size = size.ok_or("the size of a chunk is too large")?;
                Position::Size
            }
            (Position::Size, b';' | b' ' | b'\t') => Position::Extension,
            (Position::Size | Position::Extension, b'\r') => Position::SizeEnd,
            (Position::Extension, byte) if byte != b'\n' => Position::Extension,
            (Position::SizeEnd, b'\n') if self.size == 0 => Position::Trailer(true),
            (Position::SizeEnd, b'\n') => Position::Data,
            (Position::DataEnd, b'\r') => Position::DataEndLf,
            (Position::DataEndLf, b'\n') => Position::Size,
            (Position::Trailer(empty), b'\r') => Position::TrailerLf(empty),
            (Position::TrailerLf(true), b'\n') => Position::Ended,
            (Position::TrailerLf(false), b'\n') => Position::Trailer(true),
            (Position::Trailer(_), byte) if byte != b'\n' => Position::Trailer(false),
            (Position::Size, byte) if byte != b'\n' => {
                return Err("the size of a chunk is not a hexadecimal number");
            }
            _ => return Err(LINE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(body: &str, step: usize) -> Result<(usize, bool), &'static str> {
        let mut chunks = Chunks::default();
        let mut taken = 0;
        for piece in body.as_bytes().chunks(step) {
            taken += chunks.follow(piece)?;
        }
        Ok((taken, chunks.ended()))
    }

    #[test]
    fn finds_end_for_every_split() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "1;a=b\r\n\n\r\nB \r\n0123456789\n\r\n00;x\r\nA: b\r\nC: d\r\n\r\n",
        ] {
            for step in 1..=body.len() {
                let more = format!("{body}GET / HTTP/1.1\r\n");
                assert_eq!(follow(&more, step), Ok((body.len(), true)), "{body:?} by {step}");
                assert_eq!(follow(&body[..body.len() - 1], step).map(|f| f.1), Ok(false));
            }
        }
    }

    #[test]
    fn requires_crlf() {
        for body in [
            "0\n\r\n",
            "0\r\n\n",
            "0\n\n",
            "0\r\r\n\r\n",
            "0\r\nA: b\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n\rX",
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3;x\nabc\r\n0\r\n\r\n",
            "x\r\n",
            "-1\r\n",
            "fffffffffffffffff\r\n",
        ] {
            for step in 1..=body.len() {
                assert!(follow(body, step).is_err(), "{body:?} by {step}");
            }
        }
    }
}
