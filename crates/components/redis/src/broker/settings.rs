use std::{num::NonZeroUsize, time::Duration};

use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Setup, Unit};

/// Entries per read, and pending entries per scan step.
const QUEUE_DEPTH: usize = 100;
/// Default number of concurrent handlers.
const CONCURRENCY: usize = 10;

/// The properties of `pubsub.redis` except those of the connection.
pub(super) struct Options {
    /// Name of the consumer group and of its consumer, as in Dapr.
    pub(super) group: String,
    /// `None` if set to 0; likewise for `processing_timeout`.
    pub(super) redeliver_interval: Option<Duration>,
    /// Idle time before a pending entry is claimed.
    pub(super) processing_timeout: Option<Duration>,
    pub(super) queue_depth: usize,
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Approximate number of entries that a stream keeps; `None` for all.
    pub(super) max_length: Option<u64>,
    /// Approximate time that a stream keeps entries; `None` for no limit.
    pub(super) stream_ttl: Option<Duration>,
}

impl Options {
    /// Interval of scanning pending entries; `None` to scan only at the start and after returns.
    pub(super) fn scan_interval(&self) -> Option<Duration> {
        self.redeliver_interval
            .filter(|_| self.processing_timeout.is_some())
    }

    pub(super) fn read(setup: &Setup) -> Result<Self> {
        let metadata: &Metadata = &setup.metadata;
        let group = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
        let seconds = |name, default: u64| span(metadata, name, Duration::from_secs(default));
        let count = |name, default| -> Result<usize, MetadataError> {
            Ok(metadata.number::<usize>(&[name])?.unwrap_or(default))
        };
        Ok(Self {
            group: group.to_owned(),
            redeliver_interval: seconds("redeliverInterval", 15)?,
            processing_timeout: seconds("processingTimeout", 60)?,
            queue_depth: count("queueDepth", QUEUE_DEPTH)?.max(1),
            concurrency: NonZeroUsize::new(count("concurrency", CONCURRENCY)?),
            max_length: metadata.number(&["maxLenApprox"])?.filter(|most| *most > 0),
            stream_ttl: metadata
                .duration(&["streamTTL"], Unit::Seconds)?
                .and_then(GoDuration::positive),
        })
    }
}

/// Bare numbers are milliseconds; zero is `None`.
fn span(metadata: &Metadata, name: &str, default: Duration) -> Result<Option<Duration>, MetadataError> {
    let given = metadata.duration(&[name], Unit::Milliseconds)?;
    Ok(given.map_or(Some(default), GoDuration::positive))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &[(&str, &str)]) -> Options {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let setup = Setup {
            metadata: Metadata::new("broker", owned).unwrap(),
            app_id: "app".to_owned(),
        };
        Options::read(&setup).unwrap()
    }

    #[test]
    fn defaults_match_dapr() {
        let options = read(&[]);
        assert_eq!(options.group, "app");
        assert_eq!(options.redeliver_interval, Some(Duration::from_secs(15)));
        assert_eq!(options.processing_timeout, Some(Duration::from_secs(60)));
        assert_eq!(
            (options.queue_depth, options.concurrency),
            (100, NonZeroUsize::new(10))
        );
        assert_eq!((options.max_length, options.stream_ttl), (None, None));
    }

    #[test]
    fn zero_disables_durations() {
        let options = read(&[
            ("redeliverInterval", "200"),
            ("processingTimeout", "0"),
            ("streamTTL", "5"),
        ]);
        assert_eq!(options.redeliver_interval, Some(Duration::from_millis(200)));
        assert_eq!(options.processing_timeout, None);
        assert_eq!(options.stream_ttl, Some(Duration::from_secs(5)));
    }
}
