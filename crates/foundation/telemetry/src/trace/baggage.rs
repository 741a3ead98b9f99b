//! W3C baggage: validated on receipt, echoed to the caller, forwarded to the app.

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use crate::log::go_quoted;

/// Header and metadata name.
pub const BAGGAGE: &str = "baggage";
const MAX_BYTES: usize = 8192;
const MAX_MEMBER_BYTES: usize = 4096;
const MAX_MEMBERS: usize = 180;

/// Why a `baggage` header is invalid. The text is sent in the reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid baggage header: {0}")]
pub struct BaggageError(String);

/// A valid baggage list in order of first appearance; of equal keys the last value wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baggage {
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    key: String,
    value: String,
    properties: Vec<(String, Option<String>)>,
}

impl Baggage {
    /// The joined text of a request's `baggage` headers, and its parsed form. `None` if there is none, or
    /// only an empty one.
    ///
    /// # Errors
    /// As [`Baggage::parse`].
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<(String, Self)>, BaggageError> {
        let mut text: Option<String> = None;
        for value in headers.get_all(BAGGAGE) {
            // Invalid UTF-8 is invalid baggage: the parser rejects the replacement character.
            let value = String::from_utf8_lossy(value.as_bytes());
            match &mut text {
                Some(text) => *text = format!("{text},{value}"),
                None => text = Some(value.into_owned()),
            }
        }
        text.filter(|text| !text.is_empty())
            .map(|text| Self::parse(&text).map(|baggage| (text, baggage)))
            .transpose()
    }

    /// Parses the header text; several headers are joined with `,` first.
    ///
    /// # Errors
    /// On a malformed list, more than 180 keys, more than 8192 bytes, or a member of more than 4096 bytes.
    pub fn parse(text: &str) -> Result<Self, BaggageError> {
        let mut baggage = Self::default();
        if text.is_empty() {
            return Ok(baggage);
        }
        if text.len() > MAX_BYTES {
            return Err(BaggageError(format!("baggage-string too large: {}", text.len())));
        }
        for member in text.split(',') {
            let member = Member::parse(member)?;
            match baggage.members.iter_mut().find(|m| m.key == member.key) {
                Some(old) => *old = member,
                None => baggage.members.push(member),
            }
        }
        if baggage.members.len() > MAX_MEMBERS {
            return Err(BaggageError("too many list-members in baggage-string".into()));
        }
        Ok(baggage)
    }

    /// True if there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The decoded value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.members
            .iter()
            .find(|m| m.key == key)
            .map(|m| m.value.as_str())
    }

    /// The list encoded again (gRPC replies carry this form; HTTP replies the original text).
    pub fn encode(&self) -> String {
        let mut out = String::new();
        for member in &self.members {
            if !out.is_empty() {
                out.push(',');
            }
            out.push_str(&member.key);
            out.push('=');
            push_escaped(&mut out, &member.value);
            for (key, value) in &member.properties {
                out.push(';');
                out.push_str(key);
                if let Some(value) = value {
                    out.push('=');
                    push_escaped(&mut out, value);
                }
            }
        }
        out
    }
}

impl Member {
    fn parse(text: &str) -> Result<Self, BaggageError> {
        let refuse = |what: &str, part: &str| Err(BaggageError(format!("{what}: {}", go_quoted(part))));
        if text.len() > MAX_MEMBER_BYTES {
            return Err(BaggageError(format!("list-member too large: {}", text.len())));
        }
        let (pair, properties) = match text.split_once(';') {
            Some((pair, rest)) => (pair, Some(rest)),
            None => (text, None),
        };
        let mut props = Vec::new();
        for property in properties
            .into_iter()
            .flat_map(|rest| rest.split(';'))
            .filter(|p| !p.is_empty())
        {
            match parse_property(property) {
                Some(property) => props.push(property),
                None => return refuse("invalid baggage list-member property", property),
            }
        }
        let Some((key, raw)) = pair.split_once('=') else {
            return refuse("invalid baggage list-member", text);
        };
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(key_byte) {
            return refuse("invalid key", key);
        }
        let value = raw.trim();
        if !value.bytes().all(value_byte) {
            return refuse("invalid value", raw);
        }
        match bad_escape(value) {
            Some(escape) => {
                let escape = go_quoted(escape);
                Err(BaggageError(format!(
                    "invalid value: invalid URL escape {escape}"
                )))
            }
            None => Ok(Self {
                key: key.to_owned(),
                value: decode(value),
                properties: props,
            }),
        }
    }
}

fn parse_property(text: &str) -> Option<(String, Option<String>)> {
    let blank = [' ', '\t'];
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.trim_matches(blank))),
        None => (text, None),
    };
    let key = key.trim_matches(blank);
    if key.is_empty() || !key.bytes().all(key_byte) {
        return None;
    }
    match value {
        None => Some((key.to_owned(), None)),
        Some(value) if value.bytes().all(value_byte) && bad_escape(value).is_none() => {
            Some((key.to_owned(), Some(decode(value))))
        }
        Some(_) => None,
    }
}

/// RFC 7230 token characters.
fn key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Printable ASCII without space, quote, comma, semicolon and backslash.
fn value_byte(b: u8) -> bool {
    matches!(b, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e)
}

/// The first `%` that is not followed by two hex digits, with up to two characters after it.
fn bad_escape(value: &str) -> Option<&str> {
    let bytes = value.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            at += 1;
            continue;
        }
        match bytes.get(at + 1..at + 3) {
            Some(pair) if pair.iter().all(u8::is_ascii_hexdigit) => at += 3,
            // Only ASCII values reach this point, so any byte offset is a character boundary.
            _ => return value.get(at..bytes.len().min(at + 3)),
        }
    }
    None
}

fn decode(value: &str) -> String {
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

fn push_escaped(out: &mut String, value: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for b in value.bytes() {
        if b != b'%' && value_byte(b) {
            out.push(char::from(b));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(b >> 4)]));
            out.push(char::from(DIGITS[usize::from(b & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        Baggage::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn parses_valid_lists() {
        let baggage = Baggage::parse("key1=value1, key2 = a%20b ;p1;p2=x%2C,key1=last").unwrap();
        assert_eq!(baggage.get("key1"), Some("last"));
        assert_eq!(baggage.get("key2"), Some("a b"));
        assert_eq!(baggage.encode(), "key1=last,key2=a%20b;p1;p2=x%2C");
        assert!(Baggage::parse("").unwrap().is_empty());
        assert_eq!(Baggage::parse("k=a=b").unwrap().get("k"), Some("a=b"));
    }

    #[test]
    fn joins_several_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(Baggage::from_headers(&headers), Ok(None));
        headers.append(BAGGAGE, "".parse().unwrap());
        assert_eq!(Baggage::from_headers(&headers), Ok(None));
        headers.insert(BAGGAGE, "a=1".parse().unwrap());
        headers.append(BAGGAGE, "b=2%20".parse().unwrap());
        let (text, baggage) = Baggage::from_headers(&headers).unwrap().unwrap();
        assert_eq!((text.as_str(), baggage.get("b")), ("a=1,b=2%20", Some("2 ")));
        headers.append(BAGGAGE, http::HeaderValue::from_bytes(b"c=\xff").unwrap());
        assert!(Baggage::from_headers(&headers).is_err());
    }

    #[test]
    fn error_names_invalid_part() {
        assert_eq!(
            error("invalid-baggage"),
            "invalid baggage header: invalid baggage list-member: \"invalid-baggage\""
        );
        assert_eq!(
            error("k=v,"),
            "invalid baggage header: invalid baggage list-member: \"\""
        );
        assert_eq!(error("=v"), "invalid baggage header: invalid key: \"\"");
        assert_eq!(error("k=a b"), "invalid baggage header: invalid value: \"a b\"");
        assert_eq!(
            error("k=%zz1"),
            "invalid baggage header: invalid value: invalid URL escape \"%zz\""
        );
        assert_eq!(
            error("k=v;a b"),
            "invalid baggage header: invalid baggage list-member property: \"a b\""
        );
        assert_eq!(
            error(&format!("k={}", "v".repeat(5000))),
            "invalid baggage header: list-member too large: 5002"
        );
        let many = (0..200).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(
            error(&many),
            "invalid baggage header: too many list-members in baggage-string"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_reencodes(text in "[ -~é,;=%\\t]{0,60}") {
            if let Ok(baggage) = Baggage::parse(&text) {
                prop_assert_eq!(Baggage::parse(&baggage.encode()).unwrap(), baggage);
            }
        }
    }
}
