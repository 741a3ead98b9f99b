//! Limits what a server sends: oversized rows never reach the driver.

use std::io;

use outrigger_component::answer::Filter;
use tokio_postgres::error::SqlState;

/// Type and length of a message.
const HEADER: usize = 5;
const DATA_ROW: u8 = b'D';

/// Follows the server's messages and replaces an oversized row with an error.
pub(super) struct Frames {
    limit: usize,
    /// Received part of the next message's header.
    header: Vec<u8>,
    /// Remaining bytes of the message.
    left: usize,
    /// Whether they are dropped.
    hidden: bool,
}

impl Frames {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            header: Vec::with_capacity(HEADER),
            left: 0,
            hidden: false,
        }
    }

    /// Starts a message once its header is complete.
    fn begin(&mut self, shown: &mut Vec<u8>) -> io::Result<()> {
        let Some((kind, length)) = self.header.split_first_chunk::<1>() else {
            return Ok(());
        };
        let Ok(length) = <[u8; 4]>::try_from(length) else {
            return Ok(());
        };
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let body = usize::try_from(i32::from_be_bytes(length)).ok();
        // The length includes itself.
        let Some(body) = body.and_then(|length| length.checked_sub(4)) else {
            return invalid("a message of PostgreSQL has no length".to_owned());
        };
        self.left = body;
        self.hidden = body > self.limit;
        match (self.hidden, kind) {
            (false, _) => shown.extend_from_slice(&self.header),
            (true, &[DATA_ROW]) => shown.extend(too_large(body, self.limit)),
            (true, _) => {
                let limit = self.limit;
                return invalid(format!("a message of {body} bytes exceeds the limit of {limit}"));
            }
        }
        self.header.clear();
        Ok(())
    }
}

/// The error that replaces a row.
fn too_large(bytes: usize, limit: usize) -> Vec<u8> {
    let code = SqlState::PROGRAM_LIMIT_EXCEEDED;
    let message =
        format!("a row of {bytes} bytes exceeds the limit of {limit}: select less, or raise --max-body-size");
    let fields = [
        ('S', "ERROR"),
        ('V', "ERROR"),
        ('C', code.code()),
        ('M', &message),
    ];
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("{name}{value}\0"))
        .collect();
    let length = u32::try_from(4 + fields.len() + 1).unwrap_or(u32::MAX);
    let mut error = vec![b'E'];
    error.extend(length.to_be_bytes());
    error.extend(fields.as_bytes());
    error.push(0);
    error
}

impl Filter for Frames {
    fn pass(&mut self, count: usize) -> bool {
        let is_inside = !self.hidden && count <= self.left;
        if is_inside {
            self.left -= count;
        }
        is_inside
    }

    fn take(&mut self, mut bytes: &[u8], shown: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let (body, rest) = bytes.split_at(bytes.len().min(self.left));
            if !self.hidden {
                shown.extend_from_slice(body);
            }
            self.left -= body.len();
            if rest.is_empty() {
                return Ok(());
            }
            let (header, rest) = rest.split_at(rest.len().min(HEADER - self.header.len()));
            self.header.extend_from_slice(header);
            self.begin(shown)?;
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    #[test]
    fn replaces_oversized_row_with_error() {
        let fits = message(DATA_ROW, &[1; 10]);
        let large = message(DATA_ROW, &[2; 11]);
        let end = message(b'Z', b"I");
        let sent = [&fits[..], &large, &fits, &end].concat();
        let expected = [&fits[..], &too_large(11, 10), &fits, &end].concat();
        for size in 1..sent.len() {
            let (mut frames, mut shown) = (Frames::new(10), Vec::new());
            for piece in sent.chunks(size) {
                match frames.pass(piece.len()) {
                    true => shown.extend_from_slice(piece),
                    false => frames.take(piece, &mut shown).unwrap(),
                }
            }
            assert_eq!(shown, expected, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn other_oversized_message_ends_connection() {
        for wrong in [
            message(b'N', &[0; 11]),
            vec![b'D', 0, 0, 0, 3],
            vec![b'D', 0xff, 0, 0, 0],
        ] {
            assert!(
                Frames::new(10).take(&wrong, &mut Vec::new()).is_err(),
                "{wrong:?}"
            );
        }
    }
}
