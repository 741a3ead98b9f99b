use std::time::Duration;

use outrigger_component::{Error, Metadata, Result, Setup};

use crate::settings::{both, identifier};

/// How long a consumer that vanished keeps its messages.
const VISIBILITY: Duration = Duration::from_secs(60);
/// How soon a message that was returned comes again.
const REDELIVERY: Duration = Duration::from_secs(1);
/// How often it is looked for what other processes published.
const POLL: Duration = Duration::from_millis(50);
/// How long messages and groups without a consumer are kept.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often old messages and groups are removed.
const SWEEP: Duration = Duration::from_secs(60);
/// Groups say more often that they are there.
const MIN_RETENTION: Duration = Duration::from_secs(300);

/// The properties of `pubsub.sqlite` besides those of the database.
pub(super) struct Options {
    /// The consumer group.
    pub(super) group: String,
    /// What the names of the tables begin with.
    pub(super) table: String,
    pub(super) metadata_table: String,
    pub(super) visibility: Duration,
    pub(super) redelivery: Duration,
    pub(super) poll: Duration,
    pub(super) retention: Duration,
    /// How often groups say that they are there, and what is older than `retention` is removed.
    pub(super) sweep: Duration,
}

impl Options {
    pub(super) fn read(setup: &Setup) -> Result<Self> {
        let metadata: &Metadata = &setup.metadata;
        let group = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
        if group.is_empty() {
            // Without an app id there is nobody to stand for.
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
