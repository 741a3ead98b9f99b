//! Payloads of records that were read: as they are, or by their schemas, for which a registry is asked while other records
//! go on.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use krafka::ConsumerRecord;
use outrigger_component::Result;

use super::{
    record::{Encoding, payload},
    registry::{Failure, Registry, schema_id},
    settings::Settings,
};

/// Schemas that a subscription asks for at once; records with others wait.
const MOST_ASKED: usize = 4;
/// How long a record waits for a registry that has no answer.
pub(super) const LATER: Duration = Duration::from_secs(1);

/// How a subscription reads payloads.
#[derive(Clone)]
pub(super) enum Values {
    /// As they are.
    Plain,
    /// By schemas.
    Encoded(Arc<Registry>),
}

impl Settings {
    /// # Errors
    /// They do not say where schemas are.
    pub(super) fn values(&self, encoding: Encoding) -> Result<Values> {
        match encoding {
            Encoding::None => Ok(Values::Plain),
            Encoding::Avro => Ok(Values::Encoded(Arc::clone(self.registry()?))),
        }
    }
}

/// What there is of a payload.
pub(super) enum Read {
    Done(Bytes),
    /// Its schema is on its way, or the registry has no answer now.
    Later,
    /// It cannot be read, as far as anybody knows; why.
    Failed(String),
}

/// Reads the payloads of one session.
pub(super) struct Reader {
    values: Values,
    asked: BTreeSet<u32>,
    asking: FuturesUnordered<BoxFuture<'static, (u32, Option<Failure>)>>,
}

impl Reader {
    pub(super) fn new(values: &Values) -> Self {
        Self {
            values: values.clone(),
            asked: BTreeSet::new(),
            asking: FuturesUnordered::new(),
        }
    }

    /// Reads a payload. Where that needs a schema that is not known, it is asked for: [`Reader::answer`].
    pub(super) fn read(&mut self, record: &ConsumerRecord) -> Read {
        let (Values::Encoded(registry), Some(value)) = (&self.values, &record.value) else {
            return Read::Done(payload(record));
        };
        let id = match schema_id(value) {
            Ok(id) => id,
            Err(why) => return Read::Failed(why.to_owned()),
        };
        match registry.known(id) {
            Some(Ok(schema)) => match registry.decode(&schema, value) {
                Ok(data) => Read::Done(data),
                Err(why) => Read::Failed(why),
            },
            Some(Err(failure)) if failure.may_pass() => Read::Later,
            Some(Err(failure)) => Read::Failed(failure.to_string()),
            None => {
                if self.asked.len() < MOST_ASKED && self.asked.insert(id) {
                    let registry = Arc::clone(registry);
                    let asking = async move { (id, registry.by_id(id).await.err()) };
                    self.asking.push(asking.boxed());
                }
                Read::Later
            }
        }
    }

    /// Waits for an answer about a schema that was asked for: its id, and why it cannot be used. `None`: none was.
    pub(super) async fn answer(&mut self) -> Option<(u32, Option<Failure>)> {
        let answer = self.asking.next().await;
        if let Some((id, _)) = &answer {
            self.asked.remove(id);
        }
        answer
    }
}

/// Whether a record was encoded by this schema.
pub(super) fn is_of(id: u32, record: &ConsumerRecord) -> bool {
    record.value.as_deref().map(schema_id) == Some(Ok(id))
}
