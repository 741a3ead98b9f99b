//! The stores behind the state API, called directly through the sidecar's drivers, as a baseline for its
//! overhead. The commands are those of a plain get, and of a save without conditions.

use std::net::SocketAddr;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use tokio_postgres::types::Type;
use tokio_postgres::{NoTls, Statement};

use super::call::name_of;
use crate::plan::{Store, Verb};

/// A command to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    pub(super) store: Store,
    pub(super) verb: Verb,
    pub(super) key: usize,
}

/// Why a driver's call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    #[error("there is no driver for state in memory")]
    None,
}

/// Writes a value and increments its version atomically, like the component.
const SAVE: &str = r#"
if redis.call("HGET", KEYS[1], "first-write") then return 1 end
redis.call("HSET", KEYS[1], "data", ARGV[1])
redis.call("HINCRBY", KEYS[1], "version", 1)
return 0
"#;
/// The columns of the component's table used by these statements.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS direct_state (
    key text NOT NULL PRIMARY KEY,
    value bytea NOT NULL,
    etag uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone,
    expires_at timestamp with time zone
)";
const SELECT: &str = "SELECT key, value, etag::text, expires_at::text FROM direct_state
    WHERE key = $1 AND (expires_at IS NULL OR expires_at >= CURRENT_TIMESTAMP)";
const UPSERT: &str = "INSERT INTO direct_state (key, value, etag) VALUES ($1, $2, gen_random_uuid())
    ON CONFLICT (key) DO UPDATE
    SET value = $2, updated_at = CURRENT_TIMESTAMP, expires_at = NULL, etag = gen_random_uuid() RETURNING 1";
/// Serializes the creation of the table, which fails if run concurrently.
const LOCK: i64 = 4_096;

/// A connection to a store.
pub(super) struct Client {
    command: Command,
    key: String,
    link: Link,
}

enum Link {
    Redis(MultiplexedConnection, redis::Script),
    Postgres(tokio_postgres::Client, Statement),
}

impl Client {
    pub(super) async fn open(address: SocketAddr, command: Command) -> Result<Self, DriverError> {
        let link = match command.store {
            Store::Memory => return Err(DriverError::None),
            Store::Redis => {
                let client = redis::Client::open(format!("redis://{address}/"))?;
                let connection = client.get_multiplexed_async_connection().await?;
                Link::Redis(connection, redis::Script::new(SAVE))
            }
            Store::Postgres => postgres(address, command.verb).await?,
        };
        Ok(Self {
            command,
            key: format!("direct||{}", name_of(command.key)),
            link,
        })
    }

    /// Makes the call; returns the length of the received value.
    pub(super) async fn call(&mut self, value: &Bytes) -> Result<usize, DriverError> {
        match (&mut self.link, self.command.verb) {
            (Link::Redis(connection, _), Verb::Get) => {
                let mut command = redis::cmd("HMGET");
                command.arg(&self.key).arg("data").arg("version");
                let (data, _version): (Option<Vec<u8>>, Option<String>) =
                    command.query_async(connection).await?;
                Ok(data.map_or(0, |data| data.len()))
            }
            (Link::Redis(connection, script), Verb::Save) => {
                let refused: u8 = script
                    .key(&self.key)
                    .arg(&value[..])
                    .invoke_async(connection)
                    .await?;
                debug_assert_eq!(refused, 0);
                Ok(0)
            }
            (Link::Postgres(client, statement), Verb::Get) => {
                let row = client.query_opt(statement, &[&self.key]).await?;
                Ok(row.map_or(0, |row| row.get::<_, Vec<u8>>(1).len()))
            }
            (Link::Postgres(client, statement), Verb::Save) => {
                client.query_one(statement, &[&self.key, &&value[..]]).await?;
                Ok(0)
            }
        }
    }
}

async fn postgres(address: SocketAddr, verb: Verb) -> Result<Link, DriverError> {
    let (host, port) = (address.ip(), address.port());
    let text = format!("host={host} port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&text, NoTls).await?;
    // The task ends with the client; its errors surface in the calls.
    tokio::spawn(connection);
    let locked = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK}); {TABLE}; COMMIT");
    client.batch_execute(&locked).await?;
    let statement = match verb {
        Verb::Get => client.prepare_typed(SELECT, &[Type::TEXT]).await?,
        Verb::Save => client.prepare_typed(UPSERT, &[Type::TEXT, Type::BYTEA]).await?,
    };
    Ok(Link::Postgres(client, statement))
}
