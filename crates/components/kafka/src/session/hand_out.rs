//! Hands records to the engine; handles undecodable and returned records.

use krafka::{ConsumerRecord, KrafkaError};
use outrigger_component::pubsub::Feed;
use tokio::time::Instant;

use super::{LOG, Session, Tracked, UNREADABLE_PAUSE};
use crate::{
    offsets::{Returned, TakenRecord},
    positions::undecodable,
    record::incoming,
    values::{Answer, REGISTRY_RETRY_DELAY, Read, has_schema},
};

impl Session {
    /// Hands out as many records as there is capacity for, redeliveries first.
    pub(super) fn offer(&mut self, feed: &mut Feed<Tracked>) {
        let now = Instant::now();
        while feed.free_capacity() > 0 {
            let (taken_record, failed) = match self.offsets.next_due(now) {
                Some((taken_record, failed)) => (taken_record, Some(failed)),
                None => match self.ahead.pop_front() {
                    None => return,
                    Some(record) => match self.offsets.take(taken_record(record)) {
                        Some(taken_record) => (taken_record, None),
                        // An earlier record blocks it, or another member owns the partition.
                        None => continue,
                    },
                },
            };
            let data = match self.values.read(&taken_record.record) {
                Read::Done(data) => data,
                Read::Later => {
                    self.offsets.postponed(taken_record, now + REGISTRY_RETRY_DELAY);
                    continue;
                }
                Read::Failed(why) => {
                    self.unreadable(taken_record, &why, now);
                    continue;
                }
            };
            let headers = &self.shared.settings.headers;
            let failed = failed.filter(|failed| *failed > 0);
            let message = incoming(&self.topic, &taken_record.record, data, headers, failed);
            feed.offer(taken_record, message);
        }
    }

    /// Redelivers the record like a failed one, because the registry may be repaired.
    fn unreadable(&mut self, taken_record: Tracked, why: &str, now: Instant) {
        let (partition, offset) = (taken_record.partition, taken_record.offset);
        match self.offsets.returned(taken_record, now) {
            Returned::Redeliver(pause) => tracing::warn!(
                target: LOG,
                "component {}: record {offset} of topic {}, partition {partition} cannot be read: {why}; \
                 retrying in {pause:?}",
                self.shared.component,
                self.topic
            ),
            Returned::Skip => tracing::error!(
                target: LOG,
                "component {}: record {offset} of topic {}, partition {partition} cannot be read: {why}; \
                 skipping it as configured by consumeRetryEnabled and backOffMaxRetries",
                self.shared.component,
                self.topic
            ),
            Returned::Gone => {}
        }
        self.commit_soon(now);
    }

    /// Pauses a partition whose next batch the client cannot decode. No record is lost: reading continues
    /// after the batch is deleted, or after an operator moves the group past it.
    pub(super) fn pause_undecodable(&mut self, error: &KrafkaError) {
        let Some(place) = undecodable(error, &self.topic) else {
            return;
        };
        let until = Instant::now() + UNREADABLE_PAUSE;
        if self.stuck.insert(place.partition, until).is_none() {
            tracing::error!(
                target: LOG,
                "component {}: topic {}: partition {} is blocked at offset {} by an undecodable batch: {}; \
                 retrying every {UNREADABLE_PAUSE:?}; to skip the batch, move the offset of the group {:?}",
                self.shared.component,
                self.topic,
                place.partition,
                place.offset,
                place.why,
                self.shared.settings.group
            );
        }
    }

    /// Releases the records that waited for `answer`.
    pub(super) fn answered(&mut self, answer: Answer) {
        let now = Instant::now();
        match answer {
            Answer::Payload(partition, offset) => {
                let is_it =
                    |record: &ConsumerRecord| record.partition == partition && record.offset == offset;
                self.offsets.wake(now, is_it);
            }
            Answer::Schema(id, failure) => {
                if let Some(failure) = &failure {
                    tracing::warn!(
                        target: LOG,
                        "component {}: topic {}: {failure}; records with schema {id} wait",
                        self.shared.component,
                        self.topic
                    );
                }
                if failure.is_none_or(|failure| !failure.may_pass()) {
                    self.offsets.wake(now, |record| has_schema(id, record));
                }
            }
        }
    }

    pub(super) fn returned(&mut self, taken_record: Tracked, now: Instant) {
        let (partition, offset) = (taken_record.partition, taken_record.offset);
        match self.offsets.returned(taken_record, now) {
            Returned::Redeliver(pause) => tracing::warn!(
                target: LOG,
                "component {}: the app failed record {offset} of topic {}, partition {partition}; \
                 redelivering it in {pause:?}",
                self.shared.component,
                self.topic
            ),
            Returned::Skip => tracing::error!(
                target: LOG,
                "component {}: the app failed record {offset} of topic {}, partition {partition}; dropping \
                 it as configured by consumeRetryEnabled and backOffMaxRetries",
                self.shared.component,
                self.topic
            ),
            Returned::Gone => {}
        }
    }
}

fn taken_record(record: ConsumerRecord) -> TakenRecord<ConsumerRecord> {
    TakenRecord {
        partition: record.partition,
        offset: record.offset,
        key: record.key.clone(),
        epoch: record.leader_epoch,
        record,
    }
}
