use std::borrow::Cow;

use outrigger_component::{Error, Metadata, Pairs, Result};
use reqwest::{
    Response,
    header::{
        ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
        HeaderValue, TRAILER, TRANSFER_ENCODING,
    },
};

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
/// Trace headers set by the sidecar; they override the caller's.
const TRACE: [&str; 3] = ["traceparent", "tracestate", "baggage"];

pub(super) type Header = (HeaderName, HeaderValue);

/// The header with the component's token.
pub(super) fn token(metadata: &Metadata) -> Result<Option<Header>> {
    const HEADER: &str = "securityTokenHeader";
    let (Some(token), Some(header)) = (metadata.filled(&["securityToken"]), metadata.filled(&[HEADER]))
    else {
        return Ok(None);
    };
    let name = HeaderName::try_from(header)
        .map_err(|_| metadata.wrong(&[HEADER], "the name of an HTTP header is expected"))?;
    let mut value = HeaderValue::try_from(token)
        .map_err(|_| metadata.wrong(&["securityToken"], "the value of an HTTP header is expected"))?;
    value.set_sensitive(true);
    Ok(Some((name, value)))
}

/// Request headers: metadata keys with an initial capital, plus trace headers.
pub(super) fn headers(metadata: &Pairs, token: Option<&Header>, has_body: bool) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    if has_body {
        headers.insert(CONTENT_TYPE, JSON);
    }
    headers.insert(ACCEPT, JSON);
    if let Some((name, value)) = token {
        headers.insert(name, value.clone());
    }
    let wanted = metadata
        .iter()
        .filter(|(key, _)| key.starts_with(|first: char| first.is_ascii_uppercase()));
    for (key, value) in wanted {
        let (name, value) = header(key, value)?;
        // Managed by the HTTP client.
        if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER].contains(&name) {
            headers.insert(name, value);
        }
    }
    for key in TRACE {
        if let Some(text) = metadata.get(key).filter(|text| !text.is_empty()) {
            let (name, value) = header(key, text)?;
            if headers.insert(name, value).is_some() {
                tracing::warn!(
                    target: super::LOG,
                    "Tracing is enabled. A custom {key} request header cannot be specified and is ignored."
                );
            }
        }
    }
    Ok(headers)
}

fn header(key: &str, value: &str) -> Result<Header> {
    let wrong = || Error::invalid_request(format!("the metadata item {key:?} cannot be an HTTP header"));
    let name = HeaderName::try_from(key).map_err(|_| wrong())?;
    let value = HeaderValue::try_from(value).map_err(|_| wrong())?;
    Ok((name, value))
}

/// Status and headers of a response; repeated headers are joined. Hop-by-hop headers are left out, and those
/// that describe the encoding if the body was decompressed.
pub(super) fn answer(response: &Response, packed: bool) -> Pairs {
    let (status, headers) = (response.status(), response.headers());
    let mut answer = Pairs::with_capacity(headers.len() + 2);
    answer.insert("statusCode".to_owned(), status.as_str().to_owned());
    let reason = status.canonical_reason().unwrap_or_default();
    answer.insert("status".to_owned(), format!("{} {reason}", status.as_str()));
    let left_out = |name: &HeaderName| match *name {
        TRANSFER_ENCODING | TRAILER => true,
        CONNECTION => headers.get_all(CONNECTION).iter().any(says_close),
        CONTENT_ENCODING | CONTENT_LENGTH => packed,
        _ => false,
    };
    for name in headers.keys().filter(|name| !left_out(name)) {
        let values: Vec<_> = headers.get_all(name).iter().map(text).collect();
        answer.insert(canonical(name.as_str()), values.join(", "));
    }
    answer
}

/// Whether a `Connection` header closes the connection.
fn says_close(value: &HeaderValue) -> bool {
    let mut options = value.as_bytes().split(|byte| *byte == b',');
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// A header value as UTF-8, or else ISO 8859-1.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    match str::from_utf8(value.as_bytes()) {
        Ok(text) => text.into(),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    }
}

/// Canonical form of a header name, e.g. `Content-Type`, as Dapr's clients expect.
fn canonical(name: &str) -> String {
    let mut upper = true;
    let letters = name.chars().map(|letter| {
        let shown = if upper {
            letter.to_ascii_uppercase()
        } else {
            letter
        };
        upper = letter == '-';
        shown
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Pairs {
        let owned = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    #[test]
    fn capitalised_keys_become_headers() {
        let metadata = pairs(&[
            ("X-One", "1"),
            ("x-two", "2"),
            ("Accept", "text/plain"),
            ("Host", "other"),
            ("Traceparent", "mine"),
            ("traceparent", "ours"),
            ("path", "/x"),
        ]);
        let headers = headers(&metadata, None, false).unwrap();
        assert_eq!(headers["x-one"], "1");
        assert_eq!(headers["accept"], "text/plain");
        assert_eq!(headers["traceparent"], "ours");
        assert_eq!(headers.len(), 3, "{headers:?}");
    }

    #[test]
    fn json_is_default_content_type() {
        assert_eq!(headers(&pairs(&[]), None, true).unwrap()[CONTENT_TYPE], JSON);
        let other = pairs(&[("Content-Type", "text/csv")]);
        assert_eq!(headers(&other, None, true).unwrap()[CONTENT_TYPE], "text/csv");
    }

    #[test]
    fn names_invalid_headers() {
        let error = headers(&pairs(&[("X Y", "1")]), None, false).unwrap_err();
        assert!(error.to_string().contains("X Y"), "{error}");
        let error = headers(&pairs(&[("X", "a\nb")]), None, false).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
    }

    #[test]
    fn hop_by_hop_headers_are_dropped() {
        let mut head = http::Response::new("");
        for (name, value) in [("transfer-encoding", "chunked"), ("trailer", "x"), ("x-own", "1")] {
            head.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        head.headers_mut().insert("content-length", 1.into());
        head.headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("x, Close"));
        let response = Response::from(head);
        let keys = |packed| answer(&response, packed).into_keys().collect::<BTreeSet<_>>();
        assert_eq!(
            keys(false).iter().collect::<Vec<_>>(),
            ["Content-Length", "X-Own", "status", "statusCode"]
        );
        assert_eq!(
            keys(true).iter().collect::<Vec<_>>(),
            ["X-Own", "status", "statusCode"]
        );
    }

    #[test]
    fn decodes_utf8_and_latin1_values() {
        let read = |bytes: &[u8]| text(&HeaderValue::from_bytes(bytes).unwrap()).into_owned();
        assert_eq!(read(b"caf\xe9"), "café");
        assert_eq!(read("café".as_bytes()), "café");
        assert_eq!(read(b"a\tb"), "a\tb");
    }

    #[test]
    fn canonicalises_header_names() {
        assert_eq!(canonical("content-type"), "Content-Type");
        assert_eq!(canonical("x-a-b"), "X-A-B");
    }
}
