//! Request targets as clients send them.

use std::borrow::Cow;

/// Percent-escapes the characters of `target` (path and query) that [`http::Uri`] rejects: curl and
/// browsers send some of them raw. Everything else is unchanged, including characters that are invalid in
/// any request.
pub fn escape(target: &[u8]) -> Cow<'_, [u8]> {
    escape_and(target, |_| false)
}

/// Like [`escape`] for a target from another protocol: never rejects one.
pub fn escape_all(target: &str) -> Cow<'_, str> {
    let control = |byte: u8| byte <= b' ' || byte == 0x7f;
    match escape_and(target.as_bytes(), control) {
        Cow::Borrowed(_) => Cow::Borrowed(target),
        // ASCII was replaced by ASCII only.
        Cow::Owned(escaped) => String::from_utf8_lossy(&escaped).into_owned().into(),
    }
}

fn escape_and(target: &[u8], more: impl Fn(u8) -> bool) -> Cow<'_, [u8]> {
    let text = std::str::from_utf8(target).is_ok();
    let refused = |byte: u8, query: bool| is_refused(byte, query, text) || more(byte);
    let mut query = false;
    let first = target.iter().position(|byte| {
        query |= *byte == b'?';
        refused(*byte, query)
    });
    let Some(first) = first else {
        return Cow::Borrowed(target);
    };
    let mut escaped = Vec::with_capacity(target.len() + 16);
    escaped.extend_from_slice(&target[..first]);
    for byte in &target[first..] {
        query |= *byte == b'?';
        if refused(*byte, query) {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            escaped.extend_from_slice(&[b'%', DIGITS[high], DIGITS[low]]);
        } else {
            escaped.push(*byte);
        }
    }
    Cow::Owned(escaped)
}

/// Bytes that `http::Uri` rejects, or takes for the start of a fragment, which requests do not have.
fn is_refused(byte: u8, query: bool, text: bool) -> bool {
    match byte {
        b'<' | b'>' | b'#' => true,
        b'`' => !query,
        b'"' => query,
        0x80.. => !text,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;

    fn escaped(target: &[u8]) -> String {
        String::from_utf8(escape(target).into_owned()).unwrap()
    }

    #[test]
    fn escapes_only_rejected_bytes() {
        let same = "/a{b}|^[c]\\\"é?x={'a':1}`|^\\?é&%22";
        assert_eq!(escaped(same.as_bytes()), same);
        let raw = br#"/<a>`b`#c?filter={"a":1}&<>`#?"#;
        assert_eq!(escaped(raw), "/%3Ca%3E%60b%60%23c?filter={%22a%22:1}&%3C%3E`%23?");
        assert_eq!(escaped(b"/\xff?\xc3\xa9"), "/%FF?%C3%A9");
    }

    #[test]
    fn escapes_arbitrary_strings() {
        assert_eq!(escape_all("/a?b c\n\u{7f}<é>"), "/a?b%20c%0A%7F%3Cé%3E");
        assert!(matches!(escape_all("/a?b=é"), Cow::Borrowed(_)));
        assert_eq!(escape(b"/a\tb?c\r"), &b"/a\tb?c\r"[..]);
    }

    #[test]
    fn accepts_all_but_control_characters() {
        for byte in (b'!'..=b'~').chain(0x80..=0xff) {
            for target in [&[b'/', byte, b'a'][..], &[b'/', b'?', byte, b'a']] {
                let escaped = escaped(target);
                let carried = PathAndQuery::try_from(&*escaped).unwrap();
                assert_eq!(carried.as_str(), escaped, "{byte:#x}");
            }
        }
    }
}
