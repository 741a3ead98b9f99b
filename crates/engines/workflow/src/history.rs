//! The encoded events of a history, laid out as workers receive them. Encoded pieces are shared by all later
//! steps.

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint};

/// Field number of the history in `WorkflowRequest`.
const PAST_EVENTS: u32 = 3;
/// Minimum bytes of a shared piece.
const PIECE: usize = 32 * 1024;

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Complete pieces, immutable.
    pieces: Vec<Bytes>,
    last: BytesMut,
    /// Location of each event: piece, first byte, end.
    events: Vec<(u32, u32, u32)>,
    /// Total length of the events without field headers.
    size: usize,
}

impl History {
    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }

    /// Encoded length of all events, bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn push(&mut self, event: &[u8]) {
        encode_key(PAST_EVENTS, WireType::LengthDelimited, &mut self.last);
        encode_varint(event.len() as u64, &mut self.last);
        let start = self.last.len();
        self.last.put_slice(event);
        let place = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        self.events
            .push((place(self.pieces.len()), place(start), place(self.last.len())));
        self.size += event.len();
        if self.last.len() >= PIECE {
            self.pieces.push(self.last.split().freeze());
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// An encoded event.
    pub(crate) fn get(&self, index: usize) -> Option<Bytes> {
        let (piece, start, end) = *self.events.get(index)?;
        let range = start as usize..end as usize;
        match self.pieces.get(piece as usize) {
            Some(piece) => Some(piece.slice(range)),
            None => self.last.get(range).map(Bytes::copy_from_slice),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Bytes> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// The events from an index on as fields of a `WorkflowRequest`.
    pub(crate) fn fields(&self, from: usize) -> impl Iterator<Item = Bytes> {
        let (first, skipped) = self.place(from);
        let last = (self.pieces.len(), &self.last[..]);
        let last = match last {
            (piece, last) if piece == first => &last[skipped..],
            (_, last) => last,
        };
        let last = (!last.is_empty()).then(|| Bytes::copy_from_slice(last));
        let pieces = self.pieces.iter().enumerate().skip(first);
        let pieces = pieces.map(move |(index, piece)| match index == first {
            true => piece.slice(skipped..),
            false => piece.clone(),
        });
        pieces.chain(last)
    }

    /// Piece and first byte of the field of an event, or of the next one.
    fn place(&self, index: usize) -> (usize, usize) {
        let before = index.checked_sub(1).and_then(|before| self.events.get(before));
        let (piece, end) = before.map_or((0, 0), |(piece, _, end)| (*piece as usize, *end as usize));
        match self.pieces.get(piece) {
            Some(complete) if complete.len() == end => (piece + 1, 0),
            _ => (piece, end),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{HistoryEvent, WorkflowRequest};
    use prost::Message;

    use super::*;

    #[test]
    fn returns_events_singly_and_as_fields() {
        let mut history = History::default();
        let event = |id: i32| {
            HistoryEvent {
                event_id: id,
                router: None,
                ..HistoryEvent::default()
            }
            .encode_to_vec()
        };
        for id in 0..40_000 {
            history.push(&event(id));
        }
        assert!(history.pieces.len() > 2);
        assert_eq!(history.len(), 40_000);
        assert_eq!(
            history.size(),
            (0..40_000).map(|id| event(id).len()).sum::<usize>()
        );
        assert!(history.iter().eq((0..40_000).map(event)));
        assert_eq!(history.get(40_000), None);
        let first_of_second = history.events.iter().position(|(piece, ..)| *piece == 1).unwrap();
        let boundary = i32::try_from(first_of_second).unwrap();
        for from in [0, 1, boundary - 1, boundary, boundary + 1, 39_999, 40_000] {
            let fields = history.fields(usize::try_from(from).unwrap());
            let request: Vec<u8> = fields.flatten().collect();
            let request = WorkflowRequest::decode(request.as_slice()).unwrap();
            let ids = request.past_events.iter().map(|event| event.event_id);
            assert!(ids.eq(from..40_000), "{from}");
        }
        history.clear();
        assert_eq!(
            (history.len(), history.size(), history.fields(0).count()),
            (0, 0, 0)
        );
    }
}
