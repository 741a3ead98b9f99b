//! Follows what a server sends, for the one thing that hyper takes too lightly: the lines of a chunked body.
//!
//! hyper takes a line feed alone behind the last chunk for the beginning of a trailer and waits for more, where others
//! see the end of the body. Heads are looked at for their end and for `Transfer-Encoding` only, bodies of another framing
//! not at all.

use memchr::memchr;

use crate::chunks::Chunks;

/// Where in an answer the reader is.
#[derive(Debug)]
pub(super) struct Answer {
    at: Position,
    /// The part of a line of the head that has come, where a read ended in it.
    line: Vec<u8>,
    /// Of the head.
    interim: bool,
    encoded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the status line.
    Start,
    /// Among the fields.
    Fields,
    /// In a body that is chunked, if it is one.
    Chunks(Chunks),
    /// In anything else.
    Other,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            at: Position::Start,
            line: Vec::new(),
            interim: false,
            encoded: false,
        }
    }
}

impl Answer {
    /// Takes note of what has come.
    ///
    /// # Errors
    /// What is wrong with the body, provided that hyper takes it for a chunked one. It is told once.
    #[inline]
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        match self.at {
            Position::Other => Ok(()),
            Position::Chunks(chunks) => self.body(chunks, bytes),
            Position::Start | Position::Fields => self.head(bytes),
        }
    }

    fn head(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.line.is_empty() {
                self.head_line(line);
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.head_line(&whole);
            }
            match self.at {
                Position::Chunks(chunks) => return self.body(chunks, bytes),
                Position::Other => return Ok(()),
                Position::Start | Position::Fields => {}
            }
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn head_line(&mut self, line: &[u8]) {
        const ENCODING: &[u8] = b"transfer-encoding";
        let empty = matches!(line, b"\n" | b"\r\n");
        match self.at {
            // Empty lines before an answer mean nothing.
            Position::Start if empty => {}
            Position::Start => {
                self.at = Position::Fields;
                self.interim = is_interim(line);
                self.encoded = false;
            }
            Position::Fields if empty => {
                self.at = match (self.interim, self.encoded) {
                    (true, _) => Position::Start,
                    (false, true) => Position::Chunks(Chunks::default()),
                    (false, false) => Position::Other,
                };
            }
            _ => {
                self.encoded |= line
                    .split_at_checked(ENCODING.len())
                    .is_some_and(|(name, _)| name.eq_ignore_ascii_case(ENCODING));
            }
        }
    }

    fn body(&mut self, mut chunks: Chunks, bytes: &[u8]) -> Result<(), &'static str> {
        let followed = chunks.follow(bytes);
        self.at = match followed {
            Ok(_) if !chunks.ended() => Position::Chunks(chunks),
            _ => Position::Other,
        };
        followed.map(drop)
    }
}

/// Whether another head follows the one with this status line: `HTTP/1.1 1xx`, other than 101.
fn is_interim(line: &[u8]) -> bool {
    let status = line.get(b"HTTP/1.1 ".len()..).unwrap_or_default();
    status.starts_with(b"1") && !status.starts_with(b"101")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\na: b\r\nTransfer-ENCODING: chunked\r\n\r\n";
    const EARLY: &str = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";

    fn follow(answer: &str, step: usize) -> Result<(), &'static str> {
        let mut follower = Answer::default();
        answer
            .as_bytes()
            .chunks(step)
            .try_for_each(|piece| follower.follow(piece))
    }

    #[test]
    fn a_malformed_end_is_found_wherever_the_answer_is_cut() {
        let bare = CHUNKED.replace("\r\n", "\n");
        for head in [
            CHUNKED,
            &bare,
            &format!("\r\n{CHUNKED}"),
            &format!("HTTP/1.1 100 Continue\r\n\r\n{EARLY}{CHUNKED}"),
        ] {
            for body in ["0\r\n\n", "2\r\nok\r\n0\r\n\n", "0\r\na: b\n\r\n"] {
                let answer = format!("{head}{body}");
                for step in 1..=answer.len() {
                    assert!(follow(&answer, step).is_err(), "{answer:?} by {step}");
                }
            }
            for body in [
                "0\r\n\r\n",
                "2\r\n\n\n\r\n0\r\na: b\r\n\r\nsurplus\n\n",
                "2\r\nok",
            ] {
                let answer = format!("{head}{body}");
                for step in 1..=answer.len() {
                    assert_eq!(follow(&answer, step), Ok(()), "{answer:?} by {step}");
                }
            }
        }
    }

    #[test]
    fn bodies_of_another_framing_are_not_looked_at() {
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx: transfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        ] {
            let answer = format!("{head}0\r\n\n{CHUNKED}0\r\n\n");
            for step in 1..=answer.len() {
                assert_eq!(follow(&answer, step), Ok(()), "{answer:?} by {step}");
            }
        }
    }
}
