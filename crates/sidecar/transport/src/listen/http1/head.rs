//! Heads of requests, before hyper parses them.

use std::borrow::Cow;

use memchr::memchr;
use outrigger_http2::target::escape;

/// Where the first head in `bytes` ends, behind its empty line; the first `seen` bytes were looked at before.
#[inline]
pub(super) fn end(bytes: &[u8], seen: usize) -> Option<usize> {
    let start = start(bytes);
    // An empty line is up to three bytes long, with the end of the one before it.
    let mut at = seen.saturating_sub(2).max(start);
    while let Some(found) = memchr(b'\n', &bytes[at..]) {
        at += found + 1;
        match bytes[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// Empty lines before a request mean nothing.
#[inline]
fn start(bytes: &[u8]) -> usize {
    let first = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    first.unwrap_or(bytes.len())
}

/// A head whose target can be carried, if that of `head` cannot.
pub(super) fn escaped(head: &[u8]) -> Option<Vec<u8>> {
    let start = start(head);
    let line = memchr(b'\n', &head[start..])?;
    let from = start + memchr(b' ', &head[start..start + line])? + 1;
    let to = from + memchr(b' ', &head[from..start + line])?;
    match escape(&head[from..to]) {
        Cow::Borrowed(_) => None,
        Cow::Owned(target) => Some([&head[..from], &target, &head[to..]].concat()),
    }
}

/// Whether a head tells the length of the body in two ways; hyper believes one of them and hides the other.
pub(super) fn has_two_framings(head: &[u8]) -> bool {
    let (mut length, mut encoding) = (false, false);
    let mut at = 0;
    while let Some(found) = memchr(b'\n', &head[at..]) {
        at += found + 1;
        match head[at..] {
            [b'c' | b'C', ..] => length |= is_named(&head[at..], b"content-length"),
            [b't' | b'T', ..] => encoding |= is_named(&head[at..], b"transfer-encoding"),
            _ => {}
        }
    }
    length && encoding
}

fn is_named(line: &[u8], name: &[u8]) -> bool {
    line.split_at_checked(name.len())
        .is_some_and(|(start, rest)| start.eq_ignore_ascii_case(name) && rest.first() == Some(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_its_first_empty_line() {
        for (head, rest) in [
            ("GET / HTTP/1.1\r\na: b\r\n\r\n", "GET"),
            ("GET / HTTP/1.1\na: b\n\n", "\n\n"),
            ("GET / HTTP/1.1\r\n\n", "\r\n"),
            ("\r\n\n\r\nGET / HTTP/1.1\n\r\n", "x"),
        ] {
            let bytes = format!("{head}{rest}");
            assert_eq!(end(bytes.as_bytes(), 0), Some(head.len()), "{bytes:?}");
            // However it comes, piece by piece.
            for cut in 0..head.len() {
                assert_eq!(end(&bytes.as_bytes()[..cut], 0), None, "{bytes:?} up to {cut}");
                assert_eq!(
                    end(bytes.as_bytes(), cut),
                    Some(head.len()),
                    "{bytes:?} from {cut}"
                );
            }
        }
    }

    #[test]
    fn only_the_target_is_escaped() {
        let head = b"\r\nG<T /<a>?\"x\" HTTP/1.1\r\na: <\"b\">\r\n\r\n";
        let escaped = escaped(head).unwrap();
        let expected = "\r\nG<T /%3Ca%3E?%22x%22 HTTP/1.1\r\na: <\"b\">\r\n\r\n";
        assert_eq!(std::str::from_utf8(&escaped).unwrap(), expected);
        for same in [
            "GET /a HTTP/1.1\r\na: <b>\r\n\r\n",
            "GET\r\na: <b> c d\r\n\r\n",
            "GET /<\r\n\r\n",
        ] {
            assert_eq!(super::escaped(same.as_bytes()), None, "{same:?}");
        }
    }

    #[test]
    fn two_framings_are_found_by_their_names() {
        let both = "POST / HTTP/1.1\r\nTransfer-encoding: chunked\nCONTENT-LENGTH: 3\r\n\r\n";
        assert!(has_two_framings(both.as_bytes()));
        for one in [
            "POST / HTTP/1.1\r\ncontent-length: 3\r\na: transfer-encoding: x\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encodings: x\r\n\r\n",
        ] {
            assert!(!has_two_framings(one.as_bytes()), "{one:?}");
        }
    }
}
