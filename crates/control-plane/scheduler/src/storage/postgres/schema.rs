//! The tables.

use deadpool_postgres::Object;
use tokio_postgres::GenericClient;

use crate::fault;
use crate::storage::StorageError;

/// Version of the tables' format.
const FORMAT: i64 = 1;
/// Advisory lock held while tables are created, since several schedulers may start at once.
const LOCK: i64 = 0x4f75_744a_6f62;

/// - `scheduler_meta`: the format; the revision counter, whose row is locked by every transaction that
///   writes; the revision up to which tombstones are removed.
/// - `scheduler_pairs`: keys and values.
/// - `scheduler_gone`: tombstones of deleted keys, for watches.
/// - `scheduler_leases`: expiry times of leases, by the server's clock.
const TABLES: &str = "
    CREATE TABLE scheduler_meta (name text PRIMARY KEY, value bigint NOT NULL);
    INSERT INTO scheduler_meta VALUES ('format', 1), ('revision', 1), ('forgotten', 0);
    CREATE TABLE scheduler_pairs (
        key bytea PRIMARY KEY,
        value bytea NOT NULL,
        created bigint NOT NULL,
        modified bigint NOT NULL,
        version bigint NOT NULL,
        lease bigint
    );
    CREATE INDEX scheduler_pairs_modified ON scheduler_pairs (modified, key);
    CREATE INDEX scheduler_pairs_lease ON scheduler_pairs (lease) WHERE lease IS NOT NULL;
    CREATE TABLE scheduler_gone (revision bigint NOT NULL, key bytea NOT NULL);
    CREATE INDEX scheduler_gone_revision ON scheduler_gone (revision, key);
    CREATE TABLE scheduler_leases (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        lifetime interval NOT NULL,
        ends timestamptz NOT NULL
    );
";

/// Creates missing tables and checks their format.
pub(super) async fn prepare(client: &mut Object) -> Result<(), StorageError> {
    let transaction = client.transaction().await?;
    transaction
        .execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])
        .await?;
    let there = transaction
        .query_one("SELECT to_regclass('scheduler_meta') IS NOT NULL", &[])
        .await?;
    if !there.try_get::<_, bool>(0)? {
        transaction.batch_execute(TABLES).await?;
        fault::point("tables made");
    }
    let format = meta(&*transaction, "format").await?;
    transaction.commit().await?;
    fault::point("tables are there");
    match format {
        FORMAT => Ok(()),
        found => Err(StorageError::Failed(format!(
            "the tables (scheduler_meta and others) have format {found}, and this scheduler supports {FORMAT}: run a \
             newer scheduler, or use another database"
        ))),
    }
}

/// The current revision.
pub(super) async fn revision(client: &Object) -> Result<i64, StorageError> {
    Ok(meta(&***client, "revision").await?)
}

async fn meta(client: &impl GenericClient, name: &str) -> Result<i64, tokio_postgres::Error> {
    let row = client
        .query_one("SELECT value FROM scheduler_meta WHERE name = $1", &[&name])
        .await?;
    row.try_get(0)
}
