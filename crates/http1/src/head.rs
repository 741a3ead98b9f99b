//! Heads of messages (RFC 9112 sections 3 to 6).

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use httparse::{Error, ParserConfig, Status};

use crate::chunks::{Chunks, Rest};
use crate::error::Refused;

/// Fields that are parsed without an allocation.
const FEW: usize = 100;
/// Fields that there is room for without growing: what the library's map starts with.
const ROOM: usize = 6;

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes.
    pub(crate) bytes: usize,
    /// Fields.
    pub(crate) fields: usize,
}

/// A request's head, and as much of its body as came with it.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) request: Request<()>,
    pub(crate) body: Start,
    pub(crate) asked: Asked,
    /// Whether the client would use the connection again.
    pub(crate) keep_alive: bool,
    /// Whether the client waits to be asked for the body.
    pub(crate) expects: bool,
}

/// What an answer has to know of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) version: Version,
    pub(crate) head_only: bool,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
}

/// How a body begins.
#[derive(Debug)]
pub(crate) enum Start {
    /// It came with the head, or there is none.
    Whole(Bytes),
    /// It comes.
    Later(Rest),
}

/// Takes a head, and a body that is here whole, out of what was read; `None` when more has to be read first.
pub(crate) fn take(read: &mut BytesMut, limits: Limits) -> Result<Option<Head>, Refused> {
    let bytes = std::mem::take(read).freeze();
    let parsed = if limits.fields <= FEW {
        let mut space = [const { MaybeUninit::uninit() }; FEW];
        parse(&bytes, &mut space[..limits.fields], limits)
    } else {
        parse(&bytes, &mut vec![MaybeUninit::uninit(); limits.fields], limits)
    };
    let Some((length, request, told)) = parsed? else {
        *read = bytes.into();
        return Ok(None);
    };
    let mut behind = bytes.slice(length..);
    drop(bytes);
    let body = if told.chunked {
        Start::Later(Rest::Chunks(Chunks::default()))
    } else {
        told_body(told.length.unwrap_or(0), &mut behind)
    };
    if !behind.is_empty() {
        *read = behind.into();
    }
    let modern = request.version() == Version::HTTP_11;
    Ok(Some(Head {
        asked: Asked {
            version: request.version(),
            head_only: request.method() == Method::HEAD,
            trailers: told.trailers,
        },
        keep_alive: !told.close && (modern || told.keep_alive),
        expects: modern && told.expects,
        request,
        body,
    }))
}

type Parsed = (usize, Request<()>, Told);

fn parse<'a>(
    bytes: &'a Bytes,
    space: &mut [MaybeUninit<httparse::Header<'a>>],
    limits: Limits,
) -> Result<Option<Parsed>, Refused> {
    let mut found = httparse::Request::new(&mut []);
    let length = match found.parse_with_uninit_headers(bytes, space).map_err(malformed)? {
        Status::Complete(length) if length <= limits.bytes => length,
        Status::Partial if bytes.len() <= limits.bytes => return Ok(None),
        _ => return Err(Refused::large("the head is too large (see --read-buffer-size)")),
    };
    let mut request = Request::new(());
    *request.version_mut() = match found.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let method = found.method.unwrap_or_default().as_bytes();
    *request.method_mut() = Method::from_bytes(method).map_err(|_| Refused::bad("the method is no token"))?;
    let target = bytes.slice_ref(found.path.unwrap_or_default().as_bytes());
    *request.uri_mut() = Uri::from_maybe_shared(target).map_err(|_| Refused::bad("the target is no URI"))?;
    let mut told = Told::default();
    *request.headers_mut() = fields(bytes, found.headers, |name, value| told.hear(name, value))?;
    told.check(request.version())?;
    Ok(Some((length, request, told)))
}

/// Fields as they lie in `bytes`; each is shown to `hear`.
fn fields(
    bytes: &Bytes,
    found: &[httparse::Header<'_>],
    mut hear: impl FnMut(&HeaderName, &HeaderValue) -> Result<(), Refused>,
) -> Result<HeaderMap, Refused> {
    let mut fields = HeaderMap::with_capacity(found.len().max(ROOM));
    for field in found {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| Refused::bad("the name of a field is no token"))?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value))
            .map_err(|_| Refused::bad("the value of a field has control characters"))?;
        hear(&name, &value)?;
        fields
            .try_append(name, value)
            .map_err(|_| Refused::large("the head has too many fields"))?;
    }
    Ok(fields)
}

/// The head of an answer, and as much of its body as came with it.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    pub(crate) answer: Response<()>,
    pub(crate) body: Start,
    /// Whether the connection can be used again after the body.
    pub(crate) keep_alive: bool,
}

/// Takes the head of an answer, and a body that is here whole, out of what was read; `None` when more has to be read
/// first. `head_only` when it answers a HEAD.
pub(crate) fn take_answer(
    read: &mut BytesMut,
    limits: Limits,
    head_only: bool,
) -> Result<Option<AnswerHead>, Refused> {
    let bytes = std::mem::take(read).freeze();
    let mut space = [const { MaybeUninit::uninit() }; FEW];
    let Some((length, answer, told)) = parse_answer(&bytes, &mut space[..limits.fields.min(FEW)], limits)?
    else {
        *read = bytes.into();
        return Ok(None);
    };
    let mut behind = bytes.slice(length..);
    drop(bytes);
    let status = answer.status();
    let empty = head_only
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let mut keep_alive = !told.close && (answer.version() == Version::HTTP_11 || told.keep_alive);
    let body = if empty {
        Start::Whole(Bytes::new())
    } else if told.chunked {
        // The chunks are what counts, but whoever says both is not to be trusted with more (RFC 9112 section 6.3).
        keep_alive &= told.length.is_none();
        Start::Later(Rest::Chunks(Chunks::default()))
    } else {
        match told.length {
            Some(length) => told_body(length, &mut behind),
            None => {
                keep_alive = false;
                Start::Later(Rest::All)
            }
        }
    };
    if !behind.is_empty() {
        *read = behind.into();
    }
    Ok(Some(AnswerHead {
        answer,
        body,
        keep_alive,
    }))
}

/// A body of known length, as far as it is here.
fn told_body(length: u64, behind: &mut Bytes) -> Start {
    match usize::try_from(length) {
        Ok(length) if length <= behind.len() => Start::Whole(behind.split_to(length)),
        _ => Start::Later(Rest::Bytes(length)),
    }
}

fn parse_answer<'a>(
    bytes: &'a Bytes,
    space: &mut [MaybeUninit<httparse::Header<'a>>],
    limits: Limits,
) -> Result<Option<(usize, Response<()>, Told)>, Refused> {
    let mut found = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut found, bytes, space);
    let length = match parsed.map_err(malformed)? {
        Status::Complete(length) if length <= limits.bytes => length,
        Status::Partial if bytes.len() <= limits.bytes => return Ok(None),
        _ => return Err(Refused::large("the head is too large")),
    };
    let mut answer = Response::new(());
    *answer.version_mut() = match found.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let status = StatusCode::from_u16(found.code.unwrap_or_default());
    *answer.status_mut() = status.map_err(|_| Refused::bad("the status is none"))?;
    let mut told = Told::default();
    *answer.headers_mut() = fields(bytes, found.headers, |name, value| {
        if *name == TRANSFER_ENCODING {
            // With any other encoding the body goes on to the end of the connection.
            told.chunked = value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
            told.close |= !told.chunked;
            return Ok(());
        }
        told.hear(name, value)
    })?;
    Ok(Some((length, answer, told)))
}

fn malformed(error: Error) -> Refused {
    match error {
        Error::HeaderName => Refused::bad("the name of a field is no token"),
        Error::HeaderValue => Refused::bad("the value of a field has control characters"),
        Error::NewLine => Refused::bad("a line does not end where it should"),
        Error::TooManyHeaders => Refused::large("the head has too many fields"),
        Error::Version => Refused::bad("the version is neither HTTP/1.0 nor HTTP/1.1"),
        Error::Status | Error::Token => Refused::bad("the first line is no request"),
    }
}

/// What the fields say about the message and the connection.
#[derive(Debug, Default)]
struct Told {
    hosts: usize,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects: bool,
    trailers: bool,
}

impl Told {
    fn hear(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), Refused> {
        // Each of these is known by a number: this costs less than to look for them when all are there.
        match *name {
            HOST => self.hosts += 1,
            CONTENT_LENGTH => self.hear_length(value.as_bytes())?,
            TRANSFER_ENCODING => self.hear_encoding(value.as_bytes())?,
            CONNECTION => {
                self.close |= has_token(value, b"close");
                self.keep_alive |= has_token(value, b"keep-alive");
            }
            EXPECT => self.expects |= has_token(value, b"100-continue"),
            TE => self.trailers |= has_token(value, b"trailers"),
            _ => {}
        }
        Ok(())
    }

    /// All lengths have to be the same.
    fn hear_length(&mut self, value: &[u8]) -> Result<(), Refused> {
        for part in value.split(|byte| *byte == b',') {
            let part = part.trim_ascii();
            let digits = !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            let number = str::from_utf8(part)
                .ok()
                .and_then(|text| text.parse::<u64>().ok());
            let number = number.filter(|_| digits);
            let number = number.ok_or_else(|| Refused::bad("Content-Length is no number of bytes"))?;
            if self.length.is_some_and(|length| length != number) {
                return Err(Refused::bad("there are two Content-Length values that differ"));
            }
            self.length = Some(number);
        }
        Ok(())
    }

    fn hear_encoding(&mut self, value: &[u8]) -> Result<(), Refused> {
        if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            return Err(Refused {
                status: StatusCode::NOT_IMPLEMENTED,
                what: "of transfer encodings only chunked is understood",
            });
        }
        self.chunked = true;
        Ok(())
    }

    /// Checks what they say together.
    fn check(&self, version: Version) -> Result<(), Refused> {
        let modern = version == Version::HTTP_11;
        Err(Refused::bad(match self {
            Self { hosts: 0, .. } if modern => "the Host field is missing",
            Self { hosts: 2.., .. } => "there are two Host fields",
            Self { chunked: true, .. } if !modern => "HTTP/1.0 has no Transfer-Encoding",
            Self {
                chunked: true,
                length: Some(_),
                ..
            } => "there are both a Transfer-Encoding and a Content-Length",
            _ => return Ok(()),
        }))
    }
}

/// Whether a list of tokens has `token`.
pub(crate) fn has_token(list: &HeaderValue, token: &[u8]) -> bool {
    let mut parts = list.as_bytes().split(|byte| *byte == b',');
    parts.any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

/// Whether what was read can be a whole head, if its first `seen` bytes are none.
pub(crate) fn may_be_whole(read: &[u8], seen: usize, limit: usize) -> bool {
    // The end of a head is up to three bytes long, and may have begun before.
    let new = &read[seen.saturating_sub(2).min(read.len())..];
    match seen {
        0 => !read.is_empty(),
        _ => {
            read.len() > limit
                || new.windows(2).any(|pair| pair == b"\n\n")
                || new.windows(3).any(|three| three == b"\n\r\n")
        }
    }
}
