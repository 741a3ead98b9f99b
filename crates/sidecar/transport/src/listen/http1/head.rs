//! Request heads, before hyper parses them.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use outrigger_http2::target::escape;

/// The end of the first head in `bytes`, after its empty line. The first `seen` bytes are known to hold no
/// end.
#[inline]
pub(super) fn end(bytes: &[u8], seen: usize) -> Option<usize> {
    // An empty line takes up to three bytes, including the end of the line before it.
    let mut at = seen.saturating_sub(2).max(start(bytes));
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

/// The start of the request line: empty lines before it are ignored.
#[inline]
fn start(bytes: &[u8]) -> usize {
    let first = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    first.unwrap_or(bytes.len())
}

/// The head with its target escaped, if `http::Uri` would refuse the target.
pub(super) fn escaped(head: &[u8]) -> Option<Vec<u8>> {
    let space = |from: usize| {
        let at = from + memchr2(b' ', b'\n', &head[from..])?;
        (head[at] == b' ').then_some(at)
    };
    let from = space(start(head))? + 1;
    let to = space(from)?;
    match escape(&head[from..to]) {
        Cow::Borrowed(_) => None,
        Cow::Owned(target) => Some([&head[..from], &target, &head[to..]].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_ends_at_empty_line() {
        for (head, rest) in [
            ("GET / HTTP/1.1\r\na: b\r\n\r\n", "GET"),
            ("GET / HTTP/1.1\na: b\n\n", "\n\n"),
            ("GET / HTTP/1.1\r\n\n", "\r\n"),
            ("\r\n\n\r\nGET / HTTP/1.1\n\r\n", "x"),
        ] {
            let bytes = format!("{head}{rest}");
            assert_eq!(end(bytes.as_bytes(), 0), Some(head.len()), "{bytes:?}");
            // For every split into pieces.
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
    fn escapes_only_target() {
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
}
