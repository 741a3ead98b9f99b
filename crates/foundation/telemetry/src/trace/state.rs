//! W3C `tracestate`.

use http::{HeaderMap, HeaderValue};

use super::TRACESTATE;

/// Maximum bytes of a forwarded `tracestate`.
pub const MAX_TRACESTATE: usize = 512;
const MAX_MEMBERS: usize = 32;

/// A valid `tracestate`. Cloning is a reference count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceState(HeaderValue);

impl TraceState {
    /// `None` if the text is empty, malformed or longer than [`MAX_TRACESTATE`]; it is then not forwarded.
    pub fn parse(text: &str) -> Option<Self> {
        well_formed(text).then(|| HeaderValue::from_str(text).ok().map(Self))?
    }

    /// Like [`TraceState::parse`], from request headers; several are joined (W3C Trace Context section
    /// 3.3.1).
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACESTATE).iter();
        let first = all.next()?;
        let Some(second) = all.next() else {
            return well_formed(first.to_str().ok()?).then(|| Self(first.clone()));
        };
        let mut joined = first.to_str().ok()?.to_owned();
        for value in std::iter::once(second).chain(all) {
            joined.push(',');
            joined.push_str(value.to_str().ok()?);
            if joined.len() > MAX_TRACESTATE {
                return None;
            }
        }
        Self::parse(&joined)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// As a header value.
    pub fn to_header(&self) -> HeaderValue {
        self.0.clone()
    }
}

fn well_formed(text: &str) -> bool {
    if text.is_empty() || text.len() > MAX_TRACESTATE {
        return false;
    }
    let mut keys: [&str; MAX_MEMBERS] = [""; MAX_MEMBERS];
    let mut count = 0;
    for member in text.split(',') {
        let member = member.trim_matches([' ', '\t']);
        if member.is_empty() {
            continue;
        }
        let Some((key, value)) = member.split_once('=') else {
            return false;
        };
        if count == MAX_MEMBERS || !key_ok(key) || !value_ok(value) || keys[..count].contains(&key) {
            return false;
        }
        keys[count] = key;
        count += 1;
    }
    count > 0
}

/// `key` or `tenant@system` of lower-case letters, digits and `_-*/`.
fn key_ok(key: &str) -> bool {
    let part = |text: &str, max: usize, digit_first: bool| {
        let first = text.bytes().next();
        first.is_some_and(|b| b.is_ascii_lowercase() || (digit_first && b.is_ascii_digit()))
            && text.len() <= max
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/".contains(&b))
    };
    match key.split_once('@') {
        Some((tenant, system)) => part(tenant, 241, true) && part(system, 14, false),
        None => part(key, 256, true),
    }
}

fn value_ok(value: &str) -> bool {
    !value.is_empty()
        && value.len() <= 256
        && !value.ends_with(' ')
        && value
            .bytes()
            .all(|b| (0x20..=0x7e).contains(&b) && b != b',' && b != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_several_headers() {
        let state = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACESTATE, HeaderValue::from_static(value));
            }
            TraceState::from_headers(&headers).map(|state| state.as_str().to_owned())
        };
        assert_eq!(state(&[]), None);
        assert_eq!(state(&["a=1"]).as_deref(), Some("a=1"));
        assert_eq!(state(&["a=1", "b=2,c=3"]).as_deref(), Some("a=1,b=2,c=3"));
        assert_eq!(state(&["a=1", "a=2"]), None);
        assert_eq!(state(&["a=1", "broken"]), None);
    }

    #[test]
    fn validates_tracestate() {
        for (text, ok) in [
            ("congo=t61rcWkgMzE", true),
            ("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", true),
            ("fw529a3039@dt=FfAAIMPXGqM", true),
            ("", false),
            ("noequals", false),
            ("Upper=1", false),
            ("a=1,a=2", false),
            ("a=b=c", false),
            ("a=", false),
        ] {
            assert_eq!(TraceState::parse(text).is_some(), ok, "{text}");
        }
        assert!(TraceState::parse(&format!("a={}", "x".repeat(200))).is_some());
        let long = (0..3)
            .map(|i| format!("k{i}={}", "x".repeat(250)))
            .collect::<Vec<_>>()
            .join(",");
        assert!(TraceState::parse(&long).is_none());
        let many = (0..33).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
        assert!(TraceState::parse(&many).is_none());
    }
}
