//! Opens the store that a configuration names.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::config::{Config, Store};
use crate::defragment::Defragment;
use crate::error::SchedulerError;
use crate::etcd_child::EtcdChild;
use crate::storage::embedded::{Embedded, FolderLock, Location};
use crate::storage::etcd::{Client, Etcd};
use crate::storage::postgres::Postgres;
use crate::storage::shared::backend::Backend;
use crate::storage::shared::{SelfMember, SharedStorage};
use crate::storage::{Change, Hosts, Storage};

/// An open store with its event stream and the schedulers that share it.
pub(crate) struct Opened {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) changes: mpsc::Receiver<Change>,
    pub(crate) hosts: watch::Receiver<Hosts>,
    /// The embedded store, if that is used.
    pub(crate) embedded: Option<Arc<Embedded>>,
    /// The etcd child process and the task that shrinks its file, if the scheduler runs etcd.
    pub(crate) child: Option<(EtcdChild, Defragment)>,
    /// Description of the store for the log.
    pub(crate) at: String,
}

impl Opened {
    /// Opens and checks the embedded store; connects to an external store in the background. `address` is the
    /// one announced to sidecars.
    pub(crate) async fn open(config: &Config, address: &str) -> Result<Self, SchedulerError> {
        match &config.store {
            Store::Embedded => Self::embedded(config, address).await,
            Store::Etcd(access) => {
                let at = format!("the etcd at {}", access.shown());
                let etcd = Etcd::new(Client::new(access)?);
                Ok(Self::shared(config, address, Arc::new(etcd), at, None))
            }
            Store::Postgres(access) => {
                let postgres = Postgres::new(&access.0).map_err(SchedulerError::Postgres)?;
                let at = "PostgreSQL".to_owned();
                Ok(Self::shared(config, address, Arc::new(postgres), at, None))
            }
            Store::Cluster(cluster) => {
                let lock = location(config).lock()?;
                let child = EtcdChild::start(cluster, own_program()?)?;
                let endpoint = format!("{}:{}", cluster.client.host, cluster.client.port);
                let at = format!("an etcd in {}", cluster.folder.display());
                let etcd = Etcd::new(Client::of_child(endpoint.clone())?);
                let care = Defragment::new(Client::of_child(endpoint)?, cluster.quota());
                Ok(Self {
                    child: Some((child, care)),
                    ..Self::shared(config, address, Arc::new(etcd), at, Some(lock))
                })
            }
        }
    }

    fn shared(
        config: &Config,
        address: &str,
        backend: Arc<dyn Backend>,
        at: String,
        lock: Option<FolderLock>,
    ) -> Self {
        let own = SelfMember {
            id: config.id.clone(),
            address: address.to_owned(),
            lock,
        };
        let (storage, events) = SharedStorage::join(backend, own);
        Self {
            storage,
            changes: events.changes,
            hosts: events.hosts,
            embedded: None,
            child: None,
            at,
        }
    }

    async fn embedded(config: &Config, address: &str) -> Result<Self, SchedulerError> {
        let location = location(config);
        let opened = tokio::task::spawn_blocking(move || Embedded::open(&location)).await;
        let (store, changes) = opened.map_err(outrigger_controlplane::TaskFailed::from)??;
        // The embedded store has a single scheduler, so the list never changes.
        let (_, hosts) = watch::channel(Hosts::from([address.to_owned()]));
        Ok(Self {
            storage: store.clone(),
            changes,
            hosts,
            embedded: Some(store),
            child: None,
            at: config.data.display().to_string(),
        })
    }
}

/// Path of this program, even if its file was replaced.
fn own_program() -> std::io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    match running.exists() {
        true => Ok(running),
        false => std::env::current_exe(),
    }
}

/// Location of the embedded store.
pub(crate) fn location(config: &Config) -> Location {
    Location {
        folder: config.data.clone(),
        id: config.id.clone(),
        quota: config.quota,
    }
}
