//! Limits a server's answers: oversized values never reach the driver.

use std::io;

use outrigger_component::answer::Filter;

/// Error code that replaces a value.
pub(super) const TOO_LARGE: &str = "TOOLARGE";
/// The driver's memory per list value, bytes.
const VALUE_OVERHEAD: usize = 64;
/// Maximum line length: numbers, short texts, errors.
const MAX_LINE: usize = 64 << 10;
/// Maximum nesting of lists.
const MAX_DEPTH: usize = 128;

/// Follows a server's answers. A value that takes an answer over `limit` bytes is replaced with an error,
/// which fails only its command.
pub(super) struct Answers {
    limit: usize,
    /// Received part of the line that determines what follows.
    line: Vec<u8>,
    /// Remaining bytes of a text, including its line end.
    left: usize,
    /// Open lists, with their numbers of remaining values.
    open: Vec<usize>,
    /// Depth of the list that contains a dropped value.
    hidden: Option<usize>,
    /// Bytes of this answer so far.
    total: usize,
}

/// The value that a line starts.
enum Begun {
    /// A complete value.
    Whole,
    /// A text of this length.
    Text(usize),
    /// A list of this length.
    List(usize),
}

impl Begun {
    fn read(line: &[u8]) -> Self {
        let Some((kind, rest)) = line.split_first() else {
            return Self::Whole;
        };
        let number = str::from_utf8(rest)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        // Negative means null.
        let count = number.and_then(|number: i64| usize::try_from(number).ok());
        match (kind, count) {
            (b'$' | b'!' | b'=', Some(count)) => Self::Text(count),
            (b'*' | b'~' | b'>', Some(count)) => Self::List(count),
            (b'%', Some(count)) => Self::List(count.saturating_mul(2)),
            // Attributes precede the value they describe.
            (b'|', Some(count)) => Self::List(count.saturating_mul(2).saturating_add(1)),
            _ => Self::Whole,
        }
    }
}

impl Answers {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            left: 0,
            open: Vec::new(),
            hidden: None,
            total: 0,
        }
    }

    /// Handles a complete line.
    fn begin(&mut self, shown: &mut Vec<u8>) -> io::Result<()> {
        let begun = Begun::read(&self.line);
        let size = match begun {
            Begun::Whole => 0,
            Begun::Text(count) => count,
            Begun::List(count) => count.saturating_mul(VALUE_OVERHEAD),
        };
        let total = self.total.saturating_add(self.line.len()).saturating_add(size);
        if self.hidden.is_none() {
            if total > self.limit {
                self.hidden = Some(self.open.len());
                let limit = self.limit;
                let text = format!(
                    "-{TOO_LARGE} an answer exceeds the limit of {limit} bytes: request less, or raise \
                     --max-body-size\r\n"
                );
                shown.extend(text.as_bytes());
            } else {
                self.total = total;
                shown.extend_from_slice(&self.line);
            }
        }
        self.line.clear();
        match begun {
            Begun::Text(count) => self.left = count.saturating_add(2),
            Begun::List(count) if count > 0 => {
                if self.open.len() >= MAX_DEPTH {
                    return Err(invalid("lists are nested too deeply"));
                }
                self.open.push(count);
            }
            Begun::Whole | Begun::List(_) => self.end(),
        }
        Ok(())
    }

    /// Ends a value, and the lists that it completes.
    fn end(&mut self) {
        loop {
            if self.hidden == Some(self.open.len()) {
                self.hidden = None;
            }
            let Some(more) = self.open.last_mut() else {
                self.total = 0;
                return;
            };
            *more -= 1;
            if *more > 0 {
                return;
            }
            self.open.pop();
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an answer of Redis: {what}"))
}

impl Filter for Answers {
    fn pass(&mut self, count: usize) -> bool {
        let is_inside = self.hidden.is_none() && count < self.left;
        if is_inside {
            self.left -= count;
        }
        is_inside
    }

    fn take(&mut self, mut bytes: &[u8], shown: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (text, rest) = bytes.split_at(bytes.len().min(self.left));
                if self.hidden.is_none() {
                    shown.extend_from_slice(text);
                }
                self.left -= text.len();
                bytes = rest;
                if self.left == 0 {
                    self.end();
                }
                continue;
            }
            let line = bytes
                .split_inclusive(|byte| *byte == b'\n')
                .next()
                .unwrap_or(bytes);
            self.line.extend_from_slice(line);
            bytes = &bytes[line.len()..];
            if self.line.ends_with(b"\n") {
                self.begin(shown)?;
            } else if self.line.len() > MAX_LINE {
                return Err(invalid("a line does not end"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1000;

    /// The output for `sent`, which must not depend on how it is split.
    fn shown(sent: &str) -> String {
        let whole = of_pieces(sent, sent.len());
        for size in 1..sent.len().min(50) {
            assert_eq!(of_pieces(sent, size), whole, "in pieces of {size} bytes");
        }
        whole
    }

    fn of_pieces(sent: &str, size: usize) -> String {
        let (mut answers, mut shown) = (Answers::new(LIMIT), Vec::new());
        for piece in sent.as_bytes().chunks(size) {
            match answers.pass(piece.len()) {
                true => shown.extend_from_slice(piece),
                false => answers.take(piece, &mut shown).unwrap(),
            }
        }
        String::from_utf8(shown).unwrap()
    }

    fn text(bytes: usize) -> String {
        format!("${bytes}\r\n{}\r\n", "x".repeat(bytes))
    }

    #[test]
    fn passes_values_within_limit() {
        let sent = [
            "+OK\r\n-ERR no\r\n:1\r\n$-1\r\n*-1\r\n$0\r\n\r\n*0\r\n_\r\n".to_owned(),
            format!("*2\r\n{}*1\r\n:7\r\n", text(400)),
            format!("%1\r\n+a\r\n{}~1\r\n:1\r\n", text(400)),
            text(900),
            "|1\r\n+a\r\n+b\r\n+c\r\n>1\r\n+d\r\n=5\r\ntxt:a\r\n!3\r\nERR\r\n".to_owned(),
        ];
        // The limit applies to each answer separately.
        let sent = sent.concat().repeat(3);
        assert_eq!(shown(&sent), sent);
    }

    #[test]
    fn replaces_only_oversized_values() {
        let error =
            "-TOOLARGE an answer exceeds the limit of 1000 bytes: request less, or raise --max-body-size\r\n";
        let (large, next) = (text(1001), format!("+next\r\n{}", text(900)));
        for (sent, expected) in [
            (large.clone(), error.to_owned()),
            (
                format!("*2\r\n{large}$1\r\n1\r\n"),
                format!("*2\r\n{error}$1\r\n1\r\n"),
            ),
            // Together they exceed the limit.
            (
                format!("*3\r\n{0}{0}:1\r\n", text(500)),
                format!("*3\r\n{}{error}:1\r\n", text(500)),
            ),
            // A list of small values.
            (format!("*20\r\n{}", ":1\r\n".repeat(20)), error.to_owned()),
            (
                format!("*2\r\n*20\r\n{}:2\r\n", "*1\r\n:1\r\n".repeat(20)),
                format!("*2\r\n{error}:2\r\n"),
            ),
            (format!("%10\r\n{}", "+a\r\n:1\r\n".repeat(10)), error.to_owned()),
        ] {
            let (sent, expected) = (sent + &next, expected + &next);
            assert_eq!(shown(&sent), expected);
        }
    }

    #[test]
    fn rejects_unbounded_lines() {
        let endless = [b'+'].repeat(MAX_LINE + 2);
        let nested = b"*1\r\n".repeat(MAX_DEPTH + 1);
        for sent in [endless, nested] {
            let mut answers = Answers::new(usize::MAX);
            assert!(answers.take(&sent, &mut Vec::new()).is_err());
        }
    }
}
