//! Keeps schedulers away from a store while its jobs are copied.

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

/// The entry among those of schedulers. They wait until all of them agree, which this one never does.
const ID: &str = "migration";
/// Life of the entry when nobody keeps it.
const LEASE: Duration = Duration::from_secs(20);
/// Between two times that it is kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// A store that no scheduler uses, until this is released or dropped.
pub(super) struct Reserved {
    backend: Arc<dyn Backend>,
    lease: i64,
    _keeping: AbortOnDropHandle<()>,
}

impl Reserved {
    /// `which` store it is, for messages.
    ///
    /// # Errors
    /// When schedulers use it.
    pub(super) async fn take(backend: Arc<dyn Backend>, which: &'static str) -> Result<Self, MigrateError> {
        let lease = backend.grant(LEASE).await?;
        fault::point("lease granted");
        let keeping = Arc::clone(&backend);
        let reserved = Self {
            backend: Arc::clone(&backend),
            lease,
            _keeping: AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(KEEP_EVERY).await;
                    // Where it ends, the last look at the jobs tells what that has done.
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

    /// Lets schedulers use it again.
    pub(super) async fn release(self) {
        // Where that fails it ends by itself.
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
