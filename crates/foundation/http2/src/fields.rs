//! Heads of messages: validation of header fields (RFC 9113 section 8).

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};

use crate::hpack::Field;
use crate::limits::{FIELD_MEMORY, FIELDS as MAX_FIELDS};
use crate::target::escape;

/// URIs cached per connection: an app calls few of them.
const CACHED_URIS: usize = 8;
/// Length of a path or an authority above which it is not cached.
const CACHED_LENGTH: usize = 1024;
/// Overhead of a field in the size of a list, besides its name and value (RFC 9113 section 6.5.2).
const OVERHEAD: usize = 32;
/// Initial capacity: enough fields for most heads.
const INITIAL_CAPACITY: usize = 12;
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// A message with invalid fields: its stream is reset, the connection stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields of a block, collected as they are decoded.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    method: Option<Method>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    status: Option<StatusCode>,
    headers: HeaderMap,
    /// A regular field was seen: pseudo-headers must not follow it.
    regular: bool,
    malformed: bool,
    /// A `content-length` was seen.
    sized: bool,
    /// Number of fields received, including those that were dropped.
    count: usize,
}

fn once<T>(slot: &mut Option<T>, value: T) -> bool {
    slot.replace(value).is_none()
}

impl Fields {
    pub(crate) fn add(&mut self, field: Field) {
        self.count += 1;
        if self.exceeds_count() {
            return;
        }
        let fits = match field {
            Field::Header(name, value) => {
                if !self.regular {
                    self.regular = true;
                    self.headers.reserve(INITIAL_CAPACITY);
                }
                self.sized |= name == CONTENT_LENGTH;
                belongs(&name, &value) && self.headers.try_append(name, value).is_ok()
            }
            _ if self.regular => false,
            Field::Method(method) => once(&mut self.method, method),
            Field::Scheme(scheme) => once(&mut self.scheme, scheme),
            Field::Authority(authority) => once(&mut self.authority, authority),
            Field::Path(path) => once(&mut self.path, path),
            Field::Status(status) => once(&mut self.status, status),
            // Extended CONNECT was not offered (RFC 8441 section 3).
            Field::Protocol(_) | Field::Malformed => false,
        };
        self.malformed |= !fits;
    }

    /// True if fields were dropped because there were too many.
    pub(crate) fn exceeds_count(&self) -> bool {
        self.count > MAX_FIELDS
    }

    /// Memory that a list of `size` bytes is charged, in bytes.
    pub(crate) fn memory(&self, size: usize) -> usize {
        size.saturating_add(self.count * FIELD_MEMORY)
    }

    /// Length of the body by the head; `None` if not declared.
    pub(crate) fn length(&self) -> Result<Option<u64>, Malformed> {
        if self.sized {
            content_length(&self.headers)
        } else {
            Ok(None)
        }
    }

    /// The head of a request.
    pub(crate) fn request(self, cache: &mut UriCache) -> Result<Request<()>, Malformed> {
        let (Some(method), false, None) = (self.method, self.malformed, self.status) else {
            return Err(Malformed);
        };
        let uri = if method == Method::CONNECT {
            if self.scheme.is_some() || self.path.is_some() {
                return Err(Malformed);
            }
            let authority = self.authority.ok_or(Malformed)?;
            Uri::from_maybe_shared(authority).map_err(|_| Malformed)?
        } else {
            let (Some(scheme), Some(path)) = (self.scheme, self.path) else {
                return Err(Malformed);
            };
            cache.uri(scheme, self.authority, path)?
        };
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        Ok(request)
    }

    /// The head of a response.
    pub(crate) fn response(self) -> Result<Response<()>, Malformed> {
        let request =
            self.method.is_some() || self.scheme.is_some() || self.authority.is_some() || self.path.is_some();
        let (Some(status), false, false) = (self.status, self.malformed, request) else {
            return Err(Malformed);
        };
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.version_mut() = Version::HTTP_2;
        *response.headers_mut() = self.headers;
        Ok(response)
    }

    /// The trailers of a message.
    pub(crate) fn trailers(self) -> Result<HeaderMap, Malformed> {
        let pseudo = self.method.is_some()
            || self.scheme.is_some()
            || self.authority.is_some()
            || self.path.is_some()
            || self.status.is_some();
        if pseudo || self.malformed {
            return Err(Malformed);
        }
        Ok(self.headers)
    }
}

/// False for connection-specific fields of HTTP/1.1 (RFC 9113 section 8.2.2).
fn belongs(name: &HeaderName, value: &HeaderValue) -> bool {
    match *name {
        CONNECTION | TRANSFER_ENCODING | UPGRADE => false,
        TE => value == "trailers",
        _ => *name != KEEP_ALIVE && *name != PROXY_CONNECTION,
    }
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|other| other != first) || !first.as_bytes().iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    let length = first.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or(Malformed)
}

/// Size of a list of fields in bytes (RFC 9113 section 6.5.2). `more` holds the lengths of the names and
/// values of pseudo-headers.
pub(crate) fn list_size(headers: &HeaderMap, more: &[(&str, usize)]) -> usize {
    let pseudo = more.iter().map(|(name, value)| name.len() + value);
    let plain = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    (more.len() + headers.len()) * OVERHEAD + pseudo.sum::<usize>() + plain.sum::<usize>()
}

/// A cache of URIs that a client called before, which saves parsing them.
#[derive(Debug, Default)]
pub(crate) struct UriCache {
    calls: Vec<Call>,
    next: usize,
}

#[derive(Debug)]
struct Call {
    scheme: Bytes,
    authority: Option<Bytes>,
    path: Bytes,
    uri: Uri,
}

impl UriCache {
    fn uri(&mut self, scheme: Bytes, authority: Option<Bytes>, path: Bytes) -> Result<Uri, Malformed> {
        let cached = self
            .calls
            .iter()
            .find(|call| call.path == path && call.authority == authority && call.scheme == scheme);
        if let Some(call) = cached {
            return Ok(call.uri.clone());
        }
        let uri = parse(&scheme, authority.clone(), path.clone())?;
        let parts = [&*scheme, authority.as_deref().unwrap_or_default(), &*path];
        if parts.iter().any(|part| part.len() > CACHED_LENGTH) {
            return Ok(uri);
        }
        let call = Call {
            scheme,
            authority,
            path,
            uri: uri.clone(),
        };
        if self.calls.len() < CACHED_URIS {
            self.calls.push(call);
        } else if let Some(oldest) = self.calls.get_mut(self.next) {
            *oldest = call;
            self.next = (self.next + 1) % CACHED_URIS;
        }
        Ok(uri)
    }
}

fn parse(scheme: &[u8], authority: Option<Bytes>, path: Bytes) -> Result<Uri, Malformed> {
    // A path has no fragment (RFC 9113 section 8.3.1); the parser would drop it silently.
    if path.is_empty() || path.contains(&b'#') {
        return Err(Malformed);
    }
    // Escapes only on failure: the parser rejects a path that needs escaping.
    let path = PathAndQuery::from_maybe_shared(path.clone()).or_else(|_| match escape(&path) {
        Cow::Borrowed(_) => Err(Malformed),
        Cow::Owned(escaped) => PathAndQuery::from_maybe_shared(escaped).map_err(|_| Malformed),
    })?;
    let mut parts = http::uri::Parts::default();
    if let Some(authority) = authority.filter(|authority| !authority.is_empty()) {
        parts.scheme = Some(scheme.try_into().map_err(|_| Malformed)?);
        parts.authority = Some(http::uri::Authority::from_maybe_shared(authority).map_err(|_| Malformed)?);
    }
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn header(name: &'static str, value: &'static str) -> Field {
        Field::Header(HeaderName::from_static(name), HeaderValue::from_static(value))
    }

    fn pseudo() -> Vec<Field> {
        vec![
            Field::Method(Method::POST),
            Field::Scheme(text("http")),
            Field::Authority(text("app:80")),
            Field::Path(text("/a/b?c=d")),
        ]
    }

    fn fields(list: Vec<Field>) -> Fields {
        let mut fields = Fields::default();
        list.into_iter().for_each(|field| fields.add(field));
        fields
    }

    fn request(list: Vec<Field>) -> Result<Request<()>, Malformed> {
        fields(list).request(&mut UriCache::default())
    }

    #[test]
    fn parses_request_head() {
        let mut list = pseudo();
        list.extend([header("te", "trailers"), header("x-a", "1"), header("x-a", "2")]);
        let head = request(list).unwrap();
        assert_eq!(head.uri(), "http://app:80/a/b?c=d");
        assert_eq!((head.method(), head.version()), (&Method::POST, Version::HTTP_2));
        assert_eq!(head.headers().get_all("x-a").iter().count(), 2);
    }

    #[test]
    fn rejects_invalid_heads() {
        for missing in [0, 1, 3] {
            let mut list = pseudo();
            list.remove(missing);
            assert!(request(list).is_err());
        }
        let mut bad: Vec<Vec<Field>> = [
            Field::Method(Method::GET),
            Field::Status(StatusCode::OK),
            Field::Protocol(text("websocket")),
            Field::Malformed,
            header("connection", "close"),
            header("keep-alive", "5"),
            header("te", "gzip"),
        ]
        .map(|more| pseudo().into_iter().chain([more]).collect())
        .into();
        let mut late = pseudo();
        late.insert(0, header("x", "y"));
        bad.push(late);
        let mut empty = pseudo();
        empty[3] = Field::Path(Bytes::new());
        bad.push(empty);
        for list in bad {
            assert!(request(list.clone()).is_err(), "{list:?}");
        }
    }

    #[test]
    fn escapes_raw_targets() {
        let uri = |path: &'static str| {
            let mut list = pseudo();
            list[3] = Field::Path(text(path));
            request(list).map(|request| request.uri().path_and_query().unwrap().to_string())
        };
        for (raw, escaped) in [
            (r#"/<a>`b`?c={"d":<1>}"#, "/%3Ca%3E%60b%60?c={%22d%22:%3C1%3E}"),
            ("/pkg.Service/<Method>", "/pkg.Service/%3CMethod%3E"),
            (r#"/"a"?b='c'"#, r#"/"a"?b='c'"#),
        ] {
            assert_eq!(uri(raw).as_deref(), Ok(escaped));
        }
        for refused in ["/a b", "/a\tb", "/<a>#b", "/a\0", ""] {
            assert_eq!(uri(refused), Err(Malformed), "{refused:?}");
        }
    }

    #[test]
    fn accepts_missing_authority() {
        let mut list = pseudo();
        list.remove(2);
        assert_eq!(request(list).unwrap().uri(), "/a/b?c=d");
    }

    #[test]
    fn rejects_pseudo_headers_in_trailers() {
        assert_eq!(
            fields(vec![header("grpc-status", "0")]).trailers().unwrap().len(),
            1
        );
        assert!(fields(pseudo()).trailers().is_err());
    }

    #[test]
    fn uri_cache_evicts_round_robin() {
        let mut cache = UriCache::default();
        for round in 0..3 {
            for n in 0..=CACHED_URIS {
                let path = Bytes::from(format!("/{n}"));
                let uri = cache.uri(text("https"), Some(text("app")), path).unwrap();
                assert_eq!(uri.to_string(), format!("https://app/{n}"), "round {round}");
            }
        }
        assert_eq!(cache.calls.len(), CACHED_URIS);
    }

    #[test]
    fn uri_cache_skips_long_uris() {
        let mut cache = UriCache::default();
        let path = Bytes::from(format!("/{}", "x".repeat(CACHED_LENGTH)));
        assert!(cache.uri(text("https"), Some(text("app")), path).is_ok());
        assert!(cache.calls.is_empty());
    }

    #[test]
    fn drops_and_counts_excess_fields() {
        let mut all = fields(pseudo());
        for _ in 0..2 * MAX_FIELDS {
            all.add(header("x-a", "1"));
        }
        assert!(all.exceeds_count() && all.headers.len() < MAX_FIELDS);
        assert!(all.memory(0) > 2 * MAX_FIELDS * FIELD_MEMORY);
    }

    #[test]
    fn list_size_matches_receiver() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("23"));
        assert_eq!(list_size(&headers, &[(":status", 3)]), 42 + 36 + 37);
    }

    #[test]
    fn content_length_is_single_number() {
        let mut headers = HeaderMap::new();
        assert_eq!(content_length(&headers), Ok(None));
        headers.append(CONTENT_LENGTH, HeaderValue::from_static("12"));
        headers.append(CONTENT_LENGTH, HeaderValue::from_static("12"));
        assert_eq!(content_length(&headers), Ok(Some(12)));
        headers.append(CONTENT_LENGTH, HeaderValue::from_static("13"));
        assert!(content_length(&headers).is_err());
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("+1"));
        assert!(content_length(&headers).is_err());
    }
}
