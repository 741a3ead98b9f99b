//! Chooses the partition of a record like Dapr's publishers, so that messages of one key keep their order
//! across publishers.

use krafka::producer::Partitioner;
use rand::RngExt as _;

/// The hash partitioner of Sarama, Dapr's client: the absolute value of signed FNV-1a of the key modulo the
/// partitions. Records without a key go to any partition.
#[derive(Debug)]
pub(super) struct ByKey;

impl Partitioner for ByKey {
    fn partition(&self, _topic: &str, key: Option<&[u8]>, partition_count: usize) -> i32 {
        let count = i32::try_from(partition_count).unwrap_or(i32::MAX).max(1);
        match key {
            Some(key) => {
                let signed = i32::from_ne_bytes(fnv1a(key).to_ne_bytes());
                (signed % count).abs()
            }
            None => rand::rng().random_range(0..count),
        }
    }
}

/// FNV-1a, 32 bits (RFC 9923).
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_fnv1a() {
        // Test vectors of the FNV draft.
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text:?}");
        }
    }

    #[test]
    fn key_determines_partition() {
        // 0xe40c292c is -468965076 as a signed number.
        assert_eq!(ByKey.partition("t", Some(b"a"), 10), 6);
        assert_eq!(ByKey.partition("t", Some(b"a"), 1), 0);
        let chosen: std::collections::BTreeSet<i32> =
            (0..200).map(|_| ByKey.partition("t", None, 3)).collect();
        assert_eq!(chosen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
