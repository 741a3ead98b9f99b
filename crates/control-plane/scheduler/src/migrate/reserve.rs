//! Keeps schedulers off a store while its jobs are copied.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio_util::task::AbortOnDropHandle;

use super::MigrateError;
use crate::fault;
use crate::proto::stored::Leadership;
use crate::storage::pair::Range;
use crate::storage::shared::backend::{Backend, Condition, Write};
use crate::storage::{LEADERSHIP, StorageError};

/// Id of the entry among those of schedulers. Schedulers wait until all entries agree, and this entry never
/// does.
const ID: &str = "migration";
/// Lifetime of the lease if it is not renewed.
const LEASE: Duration = Duration::from_secs(20);
/// Interval of lease renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps schedulers off a store until released or dropped.
pub(super) struct Reserved {
    backend: Arc<dyn Backend>,
    lease: i64,
    _keeping: AbortOnDropHandle<()>,
}

impl Reserved {
    /// Reserves a store. `which` names it in messages.
    ///
    /// # Errors
    /// If schedulers use the store.
    pub(super) async fn take(backend: Arc<dyn Backend>, which: &'static str) -> Result<Self, MigrateError> {
        let lease = backend.grant(LEASE).await?;
        fault::point("lease granted");
        let keeping = Arc::clone(&backend);
        let reserved = Self {
            backend: Arc::clone(&backend),
            lease,
            _keeping: AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(RENEW_INTERVAL).await;
                    // If the lease is lost, the final comparison of the jobs detects the effects.
                    let _ = keeping.keep(lease).await;
                }
            })),
        };
        let key = [LEADERSHIP, ID].concat().into_bytes();
        let entry = Leadership {
            total: 0,
            uids: None,
            uid: rand::random(),
            replica_data: None,
        };
        let put = Write::Put {
            key: key.clone(),
            value: entry.encode_to_vec(),
            lease: Some(lease),
        };
        let alone = backend.commit(&[Condition::Modified(key, 0)], &[put]).await?;
        let mut others = others(&*backend).await?;
        if !alone {
            others.push(ID.to_owned());
        }
        fault::point("store reserved");
        if others.is_empty() {
            return Ok(reserved);
        }
        reserved.release().await;
        Err(MigrateError::InUse {
            which,
            ids: others.join(", "),
        })
    }

    /// Releases the store.
    pub(super) async fn release(self) {
        // If this fails, the lease expires.
        let _ = self.backend.revoke(self.lease).await;
        fault::point("lease given back");
    }
}

/// Ids of the schedulers that use the store.
async fn others(backend: &dyn Backend) -> Result<Vec<String>, StorageError> {
    let mut scan = backend.scan(Range::prefix(LEADERSHIP), None).await?;
    let mut ids = Vec::new();
    while let Some(chunk) = scan.chunks.recv().await {
        for pair in chunk? {
            let id = String::from_utf8_lossy(&pair.key[LEADERSHIP.len().min(pair.key.len())..]).into_owned();
            if id != ID {
                ids.push(id);
            }
        }
    }
    Ok(ids)
}
