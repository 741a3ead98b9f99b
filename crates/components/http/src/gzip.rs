//! Decompresses gzip responses, which Go's client requests unless the caller sets `Accept-Encoding`.

use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use reqwest::{
    Method, Request, Response,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, RANGE},
};

const GZIP: HeaderValue = HeaderValue::from_static("gzip");
/// Bytes decompressed at a time.
const CHUNK: usize = 64 << 10;

/// Requests gzip unless the caller set an encoding; returns whether it did.
pub(super) fn request_gzip(request: &mut Request) -> bool {
    let silent = [ACCEPT_ENCODING, RANGE]
        .iter()
        .all(|name| !request.headers().contains_key(name));
    let asks = silent && *request.method() != Method::HEAD;
    if asks {
        request.headers_mut().insert(ACCEPT_ENCODING, GZIP);
    }
    asks
}

/// Whether the body is compressed with gzip.
pub(super) fn is_packed(response: &Response) -> bool {
    let encoding = response.headers().get(CONTENT_ENCODING);
    encoding.is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"))
}

/// Decompresses up to `most` bytes of `packed`, and returns whether that is the whole content. `whole` says
/// whether `packed` is complete; a truncated body yields its readable part.
///
/// # Errors
/// `packed` is invalid.
pub(super) fn unpack(packed: &Bytes, whole: bool, most: Option<usize>) -> io::Result<(Bytes, bool)> {
    if packed.is_empty() {
        return Ok((Bytes::new(), whole));
    }
    let mut decoder = MultiGzDecoder::new(&packed[..]);
    let (mut content, mut piece) = (Vec::new(), vec![0; CHUNK]);
    loop {
        let read = match decoder.read(&mut piece) {
            Ok(0) => return Ok((content.into(), whole)),
            Ok(read) => &piece[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) if !whole => return Ok((content.into(), false)),
            Err(error) => return Err(error),
        };
        let remaining = most.map_or(usize::MAX, |most| most - content.len());
        if read.len() > remaining {
            content.extend_from_slice(&read[..remaining]);
            return Ok((content.into(), false));
        }
        content.extend_from_slice(read);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn packed(content: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap().into()
    }

    #[test]
    fn decompresses_up_to_limit() {
        let content = b"0123456789".repeat(20_000);
        let packed = packed(&content);
        assert_eq!(
            unpack(&packed, true, None).unwrap(),
            (content.clone().into(), true)
        );
        let exactly = Some(content.len());
        assert_eq!(
            unpack(&packed, true, exactly).unwrap(),
            (content.clone().into(), true)
        );
        let less = Some(100_001);
        let (cut, whole) = unpack(&packed, true, less).unwrap();
        assert!(cut == content[..100_001] && !whole);
        let two = [&packed[..], &packed].concat().into();
        assert_eq!(unpack(&two, true, None).unwrap().0.len(), 2 * content.len());
    }

    #[test]
    fn bounds_decompression_bombs() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 128 << 10);
        let (content, whole) = unpack(&bomb, true, Some(1000)).unwrap();
        assert_eq!((content.len(), whole), (1000, false));
    }

    #[test]
    fn rejects_truncated_input_unless_cut() {
        let packed = packed(&b"0123456789".repeat(20_000));
        let part = packed.slice(..packed.len() / 2);
        assert!(unpack(&part, true, None).is_err());
        assert!(!unpack(&part, false, None).unwrap().1);
        assert!(unpack(&Bytes::from_static(b"no gzip"), true, None).is_err());
        assert_eq!(unpack(&Bytes::new(), true, None).unwrap(), (Bytes::new(), true));
    }
}
