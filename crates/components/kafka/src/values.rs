//! Payloads of read records, raw or decoded by schema. Other records continue while a schema is fetched or a
//! large payload is decoded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use krafka::ConsumerRecord;
use outrigger_component::Result;
use outrigger_offload::{INLINE, offload};

use super::{
    record::{Encoding, payload},
    registry::{Failure, Registry, Schema, schema_id},
    settings::Settings,
};

/// Maximum schemas that a subscription fetches at once; other records wait.
const MAX_ASKED: usize = 4;
/// Maximum large payloads per subscription being decoded or waiting decoded.
const MAX_DECODED: usize = 2;
/// Delay of a record if the registry does not respond.
pub(super) const REGISTRY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// How a subscription reads payloads.
#[derive(Clone)]
pub(super) enum Values {
    /// Raw.
    Plain,
    /// Decoded by schema.
    Encoded(Arc<Registry>),
}

impl Settings {
    /// # Errors
    /// No registry is configured.
    pub(super) fn values(&self, encoding: Encoding) -> Result<Values> {
        match encoding {
            Encoding::None => Ok(Values::Plain),
            Encoding::Avro => Ok(Values::Encoded(Arc::clone(self.registry()?))),
        }
    }
}

/// Result of reading a payload.
pub(super) enum Read {
    Done(Bytes),
    /// Pending: the schema is being fetched, the payload is being decoded, or the registry does not respond.
    Later,
    /// The payload cannot be read, with the reason.
    Failed(String),
}

/// An event that records wait for.
pub(super) enum Answer {
    /// A schema id, and why the schema is unusable, if it is.
    Schema(u32, Option<Failure>),
    /// The decoded payload of a record, by partition and offset.
    Payload(i32, i64),
}

/// Partition and offset of a record.
type RecordId = (i32, i64);

enum Work {
    Asked(u32, Option<Failure>),
    Decoded(RecordId, Result<Bytes, String>),
}

/// Reads the payloads of one session.
pub(super) struct Reader {
    values: Values,
    asked: BTreeSet<u32>,
    decoding: BTreeSet<RecordId>,
    decoded: BTreeMap<RecordId, Result<Bytes, String>>,
    work: FuturesUnordered<BoxFuture<'static, Work>>,
}

impl Reader {
    pub(super) fn new(values: &Values) -> Self {
        Self {
            values: values.clone(),
            asked: BTreeSet::new(),
            decoding: BTreeSet::new(),
            decoded: BTreeMap::new(),
            work: FuturesUnordered::new(),
        }
    }

    /// Reads a payload, or starts what it needs: see [`Reader::answer`].
    pub(super) fn read(&mut self, record: &ConsumerRecord) -> Read {
        let (Values::Encoded(registry), Some(value)) = (&self.values, &record.value) else {
            return Read::Done(payload(record));
        };
        let id = match schema_id(value) {
            Ok(id) => id,
            Err(why) => return Read::Failed(why.to_owned()),
        };
        let registry = Arc::clone(registry);
        match registry.known(id) {
            Some(Ok(schema)) => match self.decode(registry, schema, record, value) {
                Some(Ok(data)) => Read::Done(data),
                Some(Err(why)) => Read::Failed(why),
                None => Read::Later,
            },
            Some(Err(failure)) if failure.may_pass() => Read::Later,
            Some(Err(failure)) => Read::Failed(failure.to_string()),
            None => {
                if self.asked.len() < MAX_ASKED && self.asked.insert(id) {
                    let asking = async move { Work::Asked(id, registry.by_id(id).await.err()) };
                    self.work.push(asking.boxed());
                }
                Read::Later
            }
        }
    }

    /// `None` if the payload is large and being decoded.
    fn decode(
        &mut self,
        registry: Arc<Registry>,
        schema: Arc<Schema>,
        record: &ConsumerRecord,
        value: &Bytes,
    ) -> Option<Result<Bytes, String>> {
        if value.len() <= INLINE {
            return Some(registry.decode(&schema, value));
        }
        let place = (record.partition, record.offset);
        if let Some(decoded) = self.decoded.remove(&place) {
            return Some(decoded);
        }
        if self.decoding.len() < MAX_DECODED && self.decoding.insert(place) {
            let value = value.clone();
            let work = async move {
                let decoded = offload(value.len(), move || registry.decode(&schema, &value));
                Work::Decoded(place, decoded.await)
            };
            self.work.push(work.boxed());
        }
        None
    }

    /// Waits for an event that records wait for; `None` if no record waits.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        Some(match self.work.next().await? {
            Work::Asked(id, failure) => {
                self.asked.remove(&id);
                Answer::Schema(id, failure)
            }
            Work::Decoded(place, decoded) => {
                self.decoding.remove(&place);
                // Payloads of revoked partitions are never fetched. An evicted payload is decoded again.
                while self.decoded.len() >= MAX_DECODED {
                    self.decoded.pop_first();
                }
                self.decoded.insert(place, decoded);
                Answer::Payload(place.0, place.1)
            }
        })
    }
}

/// Whether a record has this schema id.
pub(super) fn has_schema(id: u32, record: &ConsumerRecord) -> bool {
    record.value.as_deref().map(schema_id) == Some(Ok(id))
}

#[cfg(test)]
mod tests {
    use outrigger_component::Metadata;
    use outrigger_components_testing::registry::SchemaRegistry;
    use outrigger_offload::done_at_once;

    use super::*;

    #[tokio::test]
    async fn offloads_large_payload_decoding() {
        let server = SchemaRegistry::start(None).await;
        server.register("t-value", "\"string\"");
        let properties = [("schemaRegistryURL".to_owned(), server.url())];
        let metadata = Metadata::new("broker", properties).unwrap();
        let registry = Arc::new(Registry::read(&metadata).unwrap().unwrap());
        registry.by_id(1).await.unwrap();
        let mut reader = Reader::new(&Values::Encoded(Arc::clone(&registry)));
        for (length, at_once) in [(INLINE / 2, true), (INLINE, false)] {
            let json = format!("\"{}\"", "x".repeat(length));
            let payload = registry
                .encode("t", json.clone().into(), 2 * INLINE)
                .await
                .unwrap();
            let record = ConsumerRecord::new("t", 3, 42, None, Some(payload));
            if !at_once {
                assert!(matches!(reader.read(&record), Read::Later), "{length}");
                let (was_at_once, answer) = done_at_once(reader.answer()).await;
                assert!(!was_at_once && matches!(answer, Some(Answer::Payload(3, 42))));
            }
            assert!(
                matches!(reader.read(&record), Read::Done(data) if data == json),
                "{length}"
            );
        }
    }
}
