//! Work items for workers: a `WorkItem` whose already encoded request is sent unchanged.

use bytes::{BufMut, Bytes};
use outrigger_wire::durabletask::GetWorkItemsRequest;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

const STEP: u32 = 1;
const ACTIVITY: u32 = 2;
const TOKEN: u32 = 10;

/// The work.
#[derive(Clone, Debug)]
pub enum Task {
    /// An encoded `WorkflowRequest`, in pieces.
    Step(Vec<Bytes>),
    /// An encoded `ActivityRequest`.
    Activity(Bytes),
}

/// A `WorkItem`, only ever encoded.
#[derive(Clone, Debug)]
pub struct Item {
    /// The work.
    pub task: Task,
    /// The completion token, which the worker returns with its answer.
    pub token: String,
}

impl Item {
    /// Field number and length of the task.
    fn task_field(&self) -> (u32, usize) {
        match &self.task {
            Task::Step(pieces) => (STEP, pieces.iter().map(Bytes::len).sum()),
            Task::Activity(activity) => (ACTIVITY, activity.len()),
        }
    }

    fn encoded_len(&self) -> usize {
        let (field, len) = self.task_field();
        let task = key_len(field) + encoded_len_varint(len as u64) + len;
        task + prost::encoding::string::encoded_len(TOKEN, &self.token)
    }

    fn encode(&self, buffer: &mut impl BufMut) {
        let (field, len) = self.task_field();
        encode_key(field, WireType::LengthDelimited, buffer);
        encode_varint(len as u64, buffer);
        match &self.task {
            Task::Step(pieces) => pieces.iter().for_each(|piece| buffer.put_slice(piece)),
            Task::Activity(activity) => buffer.put_slice(activity),
        }
        prost::encoding::string::encode(TOKEN, &self.token, buffer);
    }
}

/// Encodes work items and decodes requests for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemCodec;

impl Codec for ItemCodec {
    type Encode = Item;
    type Decode = GetWorkItemsRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        Self
    }
}

impl Encoder for ItemCodec {
    type Item = Item;
    type Error = Status;

    fn encode(&mut self, item: Item, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode(buffer);
        Ok(())
    }
}

impl Decoder for ItemCodec {
    type Item = GetWorkItemsRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<GetWorkItemsRequest>, Status> {
        let request = GetWorkItemsRequest::decode(buffer);
        let request =
            request.map_err(|error| Status::internal(format!("cannot decode the request: {error}")))?;
        Ok(Some(request))
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::work_item::Request;
    use outrigger_wire::durabletask::{ActivityRequest, WorkItem, WorkflowRequest};

    use super::*;

    #[test]
    fn encodes_as_work_item() {
        let step = WorkflowRequest {
            instance_id: "a".to_owned(),
            requires_history_streaming: true,
            ..WorkflowRequest::default()
        };
        let encoded = Bytes::from(step.encode_to_vec());
        let activity = ActivityRequest {
            name: "b".repeat(300),
            ..ActivityRequest::default()
        };
        for (task, request) in [
            (
                Task::Step(vec![encoded.slice(..2), Bytes::new(), encoded.slice(2..)]),
                Request::WorkflowRequest(step),
            ),
            (
                Task::Activity(activity.encode_to_vec().into()),
                Request::ActivityRequest(activity),
            ),
        ] {
            let token = "17".to_owned();
            let item = Item {
                task,
                token: token.clone(),
            };
            let mut buffer = Vec::new();
            item.encode(&mut buffer);
            assert_eq!(buffer.len(), item.encoded_len());
            let expected = WorkItem {
                request: Some(request),
                completion_token: token,
            };
            assert_eq!(WorkItem::decode(buffer.as_slice()).unwrap(), expected);
        }
    }
}
