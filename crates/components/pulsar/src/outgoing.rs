//! Messages to publish, in Pulsar's form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use outrigger_component::{
    Error, Result,
    pubsub::{PARTITION_KEY, Publish},
};
use outrigger_resources::value::go_nanos;
use pulsar::proto::KeyValue;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const AT: &str = "deliverAt";
const AFTER: &str = "deliverAfter";

/// A message to publish.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outgoing {
    pub(super) data: Bytes,
    pub(super) key: Option<String>,
    pub(super) properties: Vec<KeyValue>,
    /// Milliseconds since 1970.
    pub(super) deliver_at: Option<i64>,
}

impl Outgoing {
    /// # Errors
    /// `InvalidRequest`: an invalid time.
    pub(super) fn of(message: &Publish) -> Result<Self> {
        let wrong = |name: &str, value: &str, expected: &str| {
            let text = format!("invalid value {value:?} for the metadata property {name}: {expected}");
            Error::invalid_request(text)
        };
        let at = message.property(AT).map(|text| {
            let time = OffsetDateTime::parse(text, &Rfc3339);
            let millis = time.ok().map(|time| time.unix_timestamp_nanos() / 1_000_000);
            let millis = millis.and_then(|millis| i64::try_from(millis).ok());
            millis.ok_or_else(|| wrong(AT, text, "a time like 2030-01-02T15:04:05Z is expected"))
        });
        let after = message.property(AFTER).map(|text| {
            let nanos = go_nanos(text).ok().and_then(|nanos| u64::try_from(nanos).ok());
            let later = nanos.map(|nanos| now().saturating_add(millis(Duration::from_nanos(nanos))));
            later.ok_or_else(|| wrong(AFTER, text, "a duration like 10s is expected"))
        });
        let of_ours = |name: &str| {
            [PARTITION_KEY, AT, AFTER]
                .iter()
                .any(|n| name.eq_ignore_ascii_case(n))
        };
        let properties = message.metadata.iter().filter(|(name, _)| !of_ours(name));
        Ok(Self {
            data: message.data.clone(),
            key: message.partition_key().map(str::to_owned),
            properties: properties
                .map(|(name, value)| KeyValue {
                    key: name.clone(),
                    value: value.clone(),
                })
                .collect(),
            deliver_at: at.or(after).transpose()?,
        })
    }

    /// Size in bytes without framing.
    pub(super) fn size(&self) -> usize {
        let properties = self
            .properties
            .iter()
            .map(|pair| pair.key.len() + pair.value.len());
        self.data.len() + self.key.as_ref().map_or(0, String::len) + properties.sum::<usize>()
    }

    /// Whether it may join a batch, which goes to one consumer at one time.
    pub(super) fn joins(&self) -> bool {
        self.key.is_none() && self.deliver_at.is_none()
    }

    /// The partition of its key among `count`, as Dapr's publishers compute it.
    pub(super) fn partition(&self, count: usize) -> Option<usize> {
        let hash = self.key.as_ref()?.bytes().fold(0_u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        let hash = usize::try_from(hash & 0x7fff_ffff).unwrap_or(0);
        hash.checked_rem(count)
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(metadata: &[(&str, &str)]) -> Result<Outgoing> {
        let metadata = metadata.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Outgoing::of(&Publish {
            metadata: metadata.collect(),
            ..Publish::default()
        })
    }

    #[test]
    fn metadata_sets_key_time_and_properties() {
        let made = outgoing(&[
            ("partitionKey", "k"),
            ("deliverAt", "1970-01-01T00:00:02.5Z"),
            ("DeliverAfter", "1s"),
            ("rawPayload", "true"),
        ])
        .unwrap();
        assert_eq!((made.key.as_deref(), made.deliver_at), (Some("k"), Some(2500)));
        assert_eq!(made.properties.len(), 1);
        assert_eq!(made.properties[0].key, "rawPayload");
        assert!(!made.joins());
        let before = now();
        let later = outgoing(&[("deliverAfter", "1m")]).unwrap().deliver_at.unwrap();
        assert!((before + 60_000..=now() + 60_000).contains(&later), "{later}");
        assert!(outgoing(&[("a", "b")]).unwrap().joins());
    }

    #[test]
    fn names_invalid_times() {
        for (name, value) in [
            ("deliverAt", "soon"),
            ("deliverAfter", "soon"),
            ("deliverAfter", "-1s"),
        ] {
            let error = outgoing(&[(name, value)]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(error.kind(), outrigger_component::Kind::InvalidRequest);
        }
    }

    #[test]
    fn key_determines_partition() {
        // The hash of Java's strings: "key" is 106079.
        let key = outgoing(&[("partitionKey", "key")]).unwrap();
        assert_eq!(key.partition(10), Some(9));
        assert_eq!(key.partition(1), Some(0));
        assert_eq!(outgoing(&[]).unwrap().partition(10), None);
    }
}
