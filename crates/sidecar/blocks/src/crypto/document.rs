//! Streaming documents: memory does not grow with their size. Segments are encrypted and decrypted off the
//! serving threads, in batches of those that have arrived.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use outrigger_offload::offload;
use outrigger_transport::body::BoxError;

use super::CryptoError;
use super::scheme::{MAX_HEADER, NAME};
use super::segments::{Direction, SegmentError, Segments};

/// Bytes of input taken before a batch is processed, give or take one piece.
const BATCH: usize = 256 << 10;

/// The output of encryption and decryption, in pieces.
pub type Output = BoxStream<'static, Result<Bytes, CryptoError>>;

/// The header of a document: manifest and MAC, and the payload bytes read with them.
pub(super) struct Header {
    pub(super) manifest: Bytes,
    pub(super) mac: Bytes,
    pub(super) rest: Bytes,
}

/// Reads up to the third newline, rounded to whole pieces.
pub(super) async fn read_header<S>(input: &mut S) -> Result<Header, CryptoError>
where
    S: Stream<Item = Result<Bytes, BoxError>> + Unpin,
{
    let mut read = BytesMut::new();
    let mut ends: Vec<usize> = Vec::with_capacity(3);
    loop {
        if ends.first().is_some_and(|end| read[..*end] != *NAME.as_bytes()) {
            return Err(invalid("unsupported scheme"));
        }
        if let [first, second, third] = ends[..] {
            return header(&read, first, second, third);
        }
        if read.len() >= MAX_HEADER {
            return Err(invalid("it is longer than 64 KiB"));
        }
        let Some(piece) = input.next().await else {
            return Err(invalid(match ends.len() {
                0 => "scheme name not found",
                1 => "manifest not found",
                _ => "message authentication code not found",
            }));
        };
        let piece = piece.map_err(|error| invalid(&error.to_string()))?;
        let newlines = piece.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let missing = 3 - ends.len();
        ends.extend(newlines.take(missing).map(|(at, _)| read.len() + at));
        read.extend_from_slice(&piece);
    }
}

fn invalid(what: &str) -> CryptoError {
    CryptoError::Operation(format!("invalid header: {what}"))
}

fn header(read: &BytesMut, first: usize, second: usize, third: usize) -> Result<Header, CryptoError> {
    if third >= MAX_HEADER {
        return Err(invalid("it is longer than 64 KiB"));
    }
    let part = |from: usize, to: usize| Bytes::copy_from_slice(&read[from..to]);
    let (manifest, mac) = (part(first + 1, second), part(second + 1, third));
    if manifest.is_empty() || mac.is_empty() {
        return Err(invalid("invalid format"));
    }
    let rest = part(third + 1, read.len());
    Ok(Header { manifest, mac, rest })
}

struct Pump<S> {
    input: S,
    /// `None` while they are being processed.
    segments: Option<Segments>,
    direction: Direction,
    ready: VecDeque<Bytes>,
    state: PumpState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PumpState {
    /// More input may follow.
    Open,
    /// All input has arrived.
    Last,
    /// All output is produced, or an error occurred.
    Done,
}

/// `opening`, followed by the encrypted or decrypted segments of `input`. `begun` was already read from the
/// input.
pub(super) fn pump<S>(
    opening: Bytes,
    begun: &[u8],
    input: S,
    mut segments: Segments,
    direction: Direction,
) -> Output
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static,
{
    segments.push(begun);
    let ready = [opening].into_iter().filter(|opening| !opening.is_empty());
    let pump = Pump {
        input,
        segments: Some(segments),
        direction,
        ready: ready.collect(),
        state: PumpState::Open,
    };
    stream::try_unfold(pump, |mut pump| async move {
        let piece = pump.next().await?;
        Ok(piece.map(|piece| (piece, pump)))
    })
    .boxed()
}

impl<S> Pump<S>
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + Unpin,
{
    async fn next(&mut self) -> Result<Option<Bytes>, CryptoError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            let Some(mut segments) = self.segments.take().filter(|_| self.state != PumpState::Done) else {
                return Ok(None);
            };
            if self.state == PumpState::Open && !segments.has_next(self.direction) {
                self.state = self.take(&mut segments).await?;
            }
            let (direction, last) = (self.direction, self.state == PumpState::Last);
            let held = segments.held();
            let work = move || {
                let ready = segments.work(direction, last)?;
                Ok((segments, ready))
            };
            let worked: Result<_, SegmentError> = offload(held, work).await;
            let (segments, ready) = worked.map_err(failed)?;
            self.segments = Some(segments);
            self.ready.extend(ready);
            if last {
                self.state = PumpState::Done;
            }
        }
    }

    /// Waits for input, then takes everything that has already arrived.
    async fn take(&mut self, segments: &mut Segments) -> Result<PumpState, CryptoError> {
        let mut came = self.input.next().await;
        loop {
            match came {
                Some(Ok(piece)) => segments.push(&piece),
                Some(Err(error)) => return Err(CryptoError::Stream(error.to_string())),
                None => return Ok(PumpState::Last),
            }
            if segments.held() >= BATCH {
                return Ok(PumpState::Open);
            }
            match self.input.next().now_or_never() {
                Some(more) => came = more,
                None => return Ok(PumpState::Open),
            }
        }
    }
}

fn failed(error: SegmentError) -> CryptoError {
    CryptoError::Stream(error.to_string())
}

/// Parses `bytes` as a document header, whole and in pieces of `size` bytes.
///
/// # Panics
///
/// If the two results differ, or a manifest does not survive its own encoding.
#[cfg(feature = "fuzzing")]
pub fn fuzz_document_header(bytes: &[u8], size: usize) {
    use super::scheme::Manifest;

    let read = |pieces: Vec<Bytes>| {
        let mut input = stream::iter(pieces.into_iter().map(Ok));
        let header = read_header(&mut input).now_or_never();
        header.expect("the input is there").ok()
    };
    let whole = read(vec![Bytes::copy_from_slice(bytes)]);
    let cut = read(bytes.chunks(size).map(Bytes::copy_from_slice).collect());
    let (Some(whole), Some(cut)) = (&whole, &cut) else {
        assert!(whole.is_none() && cut.is_none());
        return;
    };
    assert_eq!((&whole.manifest, &whole.mac), (&cut.manifest, &cut.mac));
    assert!(whole.rest.starts_with(&cut.rest));
    if let Some((manifest, prefix)) = Manifest::parse(&whole.manifest) {
        let written = serde_json::to_vec(&manifest).expect("a manifest is JSON");
        let (again, same) = Manifest::parse(&written).expect("our own manifest");
        assert_eq!(
            (manifest.key, manifest.file_key, prefix),
            (again.key, again.file_key, same)
        );
        assert_eq!(
            (manifest.wrapping, manifest.cipher),
            (again.wrapping, again.cipher)
        );
    }
}
