//! Positions of a group and partitions of a topic: requests to brokers besides records.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use krafka::{
    KrafkaError,
    consumer::{AutoOffsetReset, Consumer, OffsetAndMetadata, TopicPartition},
};
use outrigger_component::Result;
use tokio::time::{Instant, sleep};

use super::{CALL_TIMEOUT, offsets::Position, settings::Settings};

/// Pause between attempts while the cluster is not ready.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A commit in progress.
pub(super) type Committing = Pin<Box<dyn Future<Output = (Vec<Position>, krafka::Result<()>)> + Send>>;

/// Commits the newest position for partitions where a group starting at the newest record has none. Without
/// it, the group would start anew with each member that joins after a gap. Partitions beyond the `first` ones
/// were added later, so they start at their oldest record.
pub(super) async fn begin(
    settings: &Settings,
    consumer: &Arc<Consumer>,
    topic: &Arc<str>,
    partitions: &[i32],
    first: usize,
) -> krafka::Result<()> {
    if settings.consumer.initial_offset != AutoOffsetReset::Latest || partitions.is_empty() {
        return Ok(());
    }
    let asked: Vec<(&str, i32)> = partitions
        .iter()
        .map(|partition| (topic.as_ref(), *partition))
        .collect();
    let known = consumer.committed(&asked).await?;
    let mut beginnings = Vec::new();
    for partition in partitions {
        if known.contains_key(&(topic.to_string(), *partition)) {
            continue;
        }
        if usize::try_from(*partition).is_ok_and(|number| number >= first) {
            consumer.seek_to_beginning(topic, *partition).await?;
        }
        let offset = loop {
            match consumer.position(topic, *partition).await {
                Some(offset) => break offset,
                None => sleep(RETRY_PAUSE).await,
            }
        };
        beginnings.push(Position {
            partition: *partition,
            offset,
            epoch: None,
        });
    }
    if beginnings.is_empty() {
        return Ok(());
    }
    committing(consumer, topic, beginnings).await.1
}

/// Whether polling again is useless.
pub(super) fn is_permanent(error: &KrafkaError) -> bool {
    !error.is_retriable() && !matches!(error, KrafkaError::Wakeup)
}

/// A batch that the client cannot decode, which blocks its partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undecodable {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) why: String,
}

/// The undecodable batch of `topic` in a polling error, if any. The client reports it only in the error text.
pub(super) fn undecodable(error: &KrafkaError, topic: &str) -> Option<Undecodable> {
    let KrafkaError::Protocol { message, .. } = error else {
        return None;
    };
    let place = message.strip_prefix("undecodable record batch at ")?;
    let place = place.strip_prefix(topic)?.strip_prefix('-')?;
    let (partition, rest) = place.split_once(" offset ")?;
    let offset = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    let why = rest.split_once("Underlying error: ").map_or("", |(_, why)| why);
    Some(Undecodable {
        partition: partition.parse().ok()?,
        offset: offset.parse().ok()?,
        why: why.to_owned(),
    })
}

/// Commits positions, with retries.
pub(super) fn committing(consumer: &Arc<Consumer>, topic: &Arc<str>, positions: Vec<Position>) -> Committing {
    let (consumer, topic) = (Arc::clone(consumer), Arc::clone(topic));
    Box::pin(async move {
        let offsets: Vec<_> = positions
            .iter()
            .map(|position| {
                let mut offset = OffsetAndMetadata::new(position.offset);
                offset.leader_epoch = position.epoch;
                (TopicPartition::new(topic.as_ref(), position.partition), offset)
            })
            .collect();
        let outcome = consumer.commit_offsets(offsets).await;
        (positions, outcome)
    })
}

/// Waits for the commit in progress; without one, waits forever.
pub(super) async fn committed(committing: &mut Option<Committing>) -> (Vec<Position>, krafka::Result<()>) {
    match committing {
        Some(committing) => committing.await,
        None => std::future::pending().await,
    }
}

/// Number of partitions of a topic.
pub(super) async fn count(consumer: &Arc<Consumer>, topic: &str) -> krafka::Result<usize> {
    let found = Box::pin(consumer.fetch_metadata(Some(topic))).await?;
    Ok(found.topics.iter().map(|topic| topic.partition_count()).sum())
}

/// Waits until the topic exists, which the cluster may create now. Returns its number of partitions.
pub(super) async fn known(settings: &Settings, consumer: &Arc<Consumer>, topic: &str) -> Result<usize> {
    let deadline = Instant::now() + CALL_TIMEOUT;
    loop {
        let error = match count(consumer, topic).await {
            Ok(partitions) if partitions > 0 => return Ok(partitions),
            Ok(_) => KrafkaError::unknown_topic(topic),
            Err(error) => error,
        };
        let unknown = matches!(error, KrafkaError::UnknownTopic { .. });
        if Instant::now() >= deadline || (is_permanent(&error) && !unknown) {
            return Err(settings.failure_of(topic, &error));
        }
        sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use krafka::ProtocolErrorKind;

    use super::*;

    /// As the client writes it; the server test would report a different text.
    #[test]
    fn finds_undecodable_batch_in_error_text() {
        let told = |text: &str| KrafkaError::protocol_kind(ProtocolErrorKind::Malformed, text);
        let error = told(
            "undecodable record batch at a-b-3 offset 17 (2 partitions affected in this poll); the partition cannot \
             advance. Underlying error: compression error: too much",
        );
        let found = undecodable(&error, "a-b").unwrap();
        assert_eq!((found.partition, found.offset), (3, 17));
        assert_eq!(found.why, "compression error: too much");
        assert_eq!(undecodable(&error, "a"), None);
        assert_eq!(undecodable(&told("a batch"), "a-b"), None);
        assert_eq!(undecodable(&KrafkaError::timeout("a-b"), "a-b"), None);
    }
}
