use std::time::Duration;

use outrigger_component::{Error, Metadata, Result, Setup};

use crate::settings::{both, identifier};

/// Default lease time of messages.
const VISIBILITY: Duration = Duration::from_secs(60);
/// Default redelivery delay of a returned message.
const REDELIVERY: Duration = Duration::from_secs(1);
/// Default interval of polling for messages of other processes.
const POLL: Duration = Duration::from_millis(50);
/// Default time to keep messages and groups without a consumer.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Interval of deleting old messages and groups.
const SWEEP: Duration = Duration::from_secs(60);
/// Longer than the interval at which groups refresh themselves.
const MIN_RETENTION: Duration = Duration::from_secs(300);

/// The properties of `pubsub.sqlite` except those of the database.
pub(super) struct Options {
    /// The consumer group.
    pub(super) group: String,
    /// Prefix of the table names.
    pub(super) table: String,
    pub(super) metadata_table: String,
    pub(super) visibility: Duration,
    pub(super) redelivery: Duration,
    pub(super) poll: Duration,
    pub(super) retention: Duration,
    /// Interval of refreshing groups and of deleting what is older than `retention`.
    pub(super) sweep: Duration,
}

impl Options {
    pub(super) fn read(setup: &Setup) -> Result<Self> {
        let metadata: &Metadata = &setup.metadata;
        let group = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
        if group.is_empty() {
            // Without an app id there is no default.
            return Err(Error::from(metadata.wrong(&["consumerID"], "it must be a name")));
        }
        let second = Duration::from_secs(1);
        let tick = Duration::from_millis(1);
        let (table, metadata_table) = both(
            identifier(metadata, "tableName", "pubsub"),
            identifier(metadata, "metadataTableName", "metadata"),
        )?;
        Ok(Self {
            group: group.to_owned(),
            table,
            metadata_table,
            visibility: metadata.span(&["visibilityTimeout"], VISIBILITY, second)?,
            redelivery: metadata.span(&["redeliverInterval"], REDELIVERY, tick)?,
            poll: metadata.span(&["pollInterval"], POLL, tick)?,
            retention: metadata.span(&["retention"], RETENTION, MIN_RETENTION)?,
            sweep: SWEEP,
        })
    }
}
