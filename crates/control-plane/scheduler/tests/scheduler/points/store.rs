//! A shared store for one test, as other clients of its server see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_components_testing::server::{Etcd, Postgres};
use prost::Message;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use tonic::transport::Channel;

use crate::running::until;
use crate::shared::etcd::{Range, call_on, stored_on};

/// Lifetime of a lease that is not renewed, in seconds.
const LEASE: f64 = 20.0;
const LEADERSHIP: &str = "dapr/leadership/";

pub(super) enum Store {
    Etcd {
        server: Etcd,
        channel: Channel,
    },
    Postgres {
        _server: Arc<Postgres>,
        text: String,
        client: Client,
    },
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Leases {
    #[prost(message, repeated, tag = "2")]
    leases: Vec<Lease>,
}

#[derive(Clone, PartialEq, Message)]
struct Life {
    /// Seconds.
    #[prost(int64, tag = "3")]
    left: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

impl Store {
    /// One etcd per store; `None` if etcd cannot be started.
    pub(super) async fn etcds(count: usize) -> Option<Vec<Self>> {
        let mut stores = Vec::with_capacity(count);
        for _ in 0..count {
            let server = Etcd::start()?;
            let endpoint = Channel::from_shared(format!("http://{}", server.endpoint())).unwrap();
            let channel = endpoint.connect().await.unwrap();
            stores.push(Self::Etcd { server, channel });
        }
        Some(stores)
    }

    /// One database per store; `None` if no server can be started.
    pub(super) async fn databases(count: usize) -> Option<Vec<Self>> {
        let server = Arc::new(Postgres::start()?);
        let connect = async |text: String| {
            let (client, connection) = tokio_postgres::connect(&text, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        };
        let first = connect(server.text()).await;
        let mut stores = Vec::with_capacity(count);
        for at in 0..count {
            let name = format!("lane{at}");
            first
                .batch_execute(&format!("CREATE DATABASE {name}"))
                .await
                .unwrap();
            let text = format!("host=127.0.0.1 port={} user=postgres dbname={name}", server.port);
            stores.push(Self::Postgres {
                _server: Arc::clone(&server),
                client: connect(text.clone()).await,
                text,
            });
        }
        Some(stores)
    }

    /// Flags of a scheduler on this store.
    pub(super) fn flags(&self, id: &str) -> Vec<String> {
        match self {
            Self::Etcd { server, .. } => crate::shared::etcd::flags(server, id),
            Self::Postgres { text, .. } => vec![format!("--postgres={text}"), format!("--id={id}")],
        }
    }

    /// Its name for `--migrate`.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Etcd { server, .. } => format!("etcd://{}", server.endpoint()),
            Self::Postgres { text, .. } => text.clone(),
        }
    }

    /// All of its pairs.
    pub(super) async fn pairs(&self) -> BTreeMap<String, Vec<u8>> {
        match self {
            Self::Etcd { channel, .. } => {
                let pairs = stored_on(channel.clone()).await.into_iter();
                pairs.map(|(key, pair)| (key, pair.value)).collect()
            }
            Self::Postgres { client, .. } => {
                let sql = "SELECT convert_from(key, 'UTF8'), value FROM scheduler_pairs";
                match client.query(sql, &[]).await {
                    Ok(rows) => rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
                    Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => BTreeMap::new(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    /// Ids of the group's members.
    pub(super) async fn members(&self) -> Vec<String> {
        let pairs = self.pairs().await;
        let ids = pairs.keys().filter_map(|key| key.strip_prefix(LEADERSHIP));
        ids.map(str::to_owned).collect()
    }

    /// Expires the lease of a killed scheduler, after checking that it is not longer than others wait.
    pub(super) async fn lease_ends(&self, id: &str) {
        let key = format!("{LEADERSHIP}{id}");
        match self {
            Self::Etcd { channel, .. } => {
                let pairs = stored_on(channel.clone()).await;
                let Some((_, pair)) = pairs.into_iter().find(|(other, _)| *other == key) else {
                    return;
                };
                let lease = Lease { id: pair.lease };
                self.is_bounded(&lease).await;
                let path = "/etcdserverpb.Lease/LeaseRevoke";
                // May have expired.
                let _: Result<Nothing, _> = call_on(channel.clone(), path, lease).await;
            }
            Self::Postgres { client, .. } => {
                let sql = "SELECT l.id, extract(epoch FROM l.ends - clock_timestamp())::float8
                           FROM scheduler_leases l JOIN scheduler_pairs p ON p.lease = l.id WHERE p.key = $1";
                let found = match client.query_opt(sql, &[&key.as_bytes()]).await {
                    Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
                    found => found.unwrap(),
                };
                let Some(found) = found else { return };
                let (lease, left): (i64, f64) = (found.get(0), found.get(1));
                assert!(left <= LEASE, "the lease of {id} lasts {left} s");
                let sql = "UPDATE scheduler_leases SET ends = clock_timestamp() WHERE id = $1";
                client.execute(sql, &[&lease]).await.unwrap();
            }
        }
    }

    async fn is_bounded(&self, lease: &Lease) {
        if let Self::Etcd { channel, .. } = self {
            let path = "/etcdserverpb.Lease/LeaseTimeToLive";
            let life: Life = call_on(channel.clone(), path, lease.clone()).await.unwrap();
            #[expect(clippy::cast_precision_loss, reason = "seconds of a lease")]
            let left = life.left as f64;
            assert!(left <= LEASE, "a lease lasts {left} s");
        }
    }

    /// Waits until all leases have expired while a scheduler runs, including those without keys.
    pub(super) async fn no_lease_stays(&self) {
        match self {
            Self::Etcd { channel, .. } => {
                let path = "/etcdserverpb.Lease/LeaseLeases";
                let leases: Leases = call_on(channel.clone(), path, Nothing {}).await.unwrap();
                for lease in leases.leases {
                    self.is_bounded(&lease).await;
                }
            }
            Self::Postgres { client, .. } => {
                let longest =
                    "SELECT max(extract(epoch FROM ends - clock_timestamp()))::float8 FROM scheduler_leases";
                let left: f64 = client.query_one(longest, &[]).await.unwrap().get(0);
                assert!(left <= LEASE, "a lease lasts {left} s");
                let unbound = "UPDATE scheduler_leases SET ends = clock_timestamp()
                               WHERE id NOT IN (SELECT lease FROM scheduler_pairs WHERE lease IS NOT NULL)";
                client.execute(unbound, &[]).await.unwrap();
                until("expired leases are deleted", || async {
                    let count = "SELECT count(*) FROM scheduler_leases";
                    client.query_one(count, &[]).await.unwrap().get::<_, i64>(0) == 1
                })
                .await;
            }
        }
    }

    /// Deletes everything.
    pub(super) async fn clear(&self) {
        match self {
            Self::Etcd { channel, .. } => {
                let path = "/etcdserverpb.KV/DeleteRange";
                let _: Nothing = call_on(channel.clone(), path, Range::all()).await.unwrap();
            }
            Self::Postgres { client, .. } => {
                let sql =
                    "DROP TABLE IF EXISTS scheduler_meta, scheduler_pairs, scheduler_gone, scheduler_leases";
                client.batch_execute(sql).await.unwrap();
            }
        }
    }
}
