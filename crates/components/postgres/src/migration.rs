use deadpool_postgres::Object;
use outrigger_component::{Error, Kind, Result};
use tokio_postgres::{GenericClient, Transaction, error::SqlState, types::Type};

use super::{
    layout::Step,
    pool::{Parameter, Pool, failure},
};

/// Location of a table's migration level.
pub(super) struct Record {
    /// The table with the levels of other tables.
    pub(super) bookkeeping: String,
    /// The row of this table.
    pub(super) key: String,
    /// The common row of the generation, where Dapr has no row per table. It has the highest level of all
    /// tables.
    pub(super) common: Option<&'static str>,
}

impl Record {
    async fn level(&self, client: &Object, key: &str) -> Result<Option<usize>> {
        let table = &self.bookkeeping;
        let found = client
            .query_typed_opt(
                &format!("SELECT value FROM {table} WHERE key = $1"),
                &[(&key, Type::TEXT)],
            )
            .await
            .map_err(failure)?;
        let text = found.map(|row| row.get::<_, String>(0));
        let number = text.filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|_| {
                let what = format!("PostgreSQL: table {table} has {key} = {text:?}, which is not a number");
                Error::new(Kind::Configuration, what)
            })
        });
        number.transpose()
    }

    async fn set(&self, client: &impl GenericClient, key: &str, level: usize) -> Result<()> {
        let sql = format!(
            "INSERT INTO {} (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            self.bookkeeping
        );
        let level = level.to_string();
        let values: [Parameter<'_>; 2] = [(&key, Type::TEXT), (&level, Type::TEXT)];
        let set = client.execute_typed(&sql, &values).await;
        set.map(drop).map_err(failure)
    }
}

async fn exists(client: &Object, table: &str) -> Result<bool> {
    let found = client
        .query_typed_one("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)])
        .await;
    found.map(|row| row.get(0)).map_err(failure)
}

/// Migrates `table`: runs `steps` from its current level on. Sidecars that start together serialise on a row
/// lock, as Dapr's do; each step and its number are committed together. No statement is prepared by name,
/// because connection poolers may forbid it.
pub(super) async fn migrate(pool: &Pool, record: &Record, table: &str, steps: &[Step]) -> Result<()> {
    let bookkeeping = &record.bookkeeping;
    let mut holding = pool.session().await?;
    let holder = holding.client_mut()?;
    create_bookkeeping(holder, bookkeeping).await?;
    holder
        .batch_execute(&format!(
            "INSERT INTO {bookkeeping} (key, value) VALUES ('lock', 'lock') ON CONFLICT (key) DO NOTHING"
        ))
        .await
        .map_err(failure)?;
    // Dropping the transaction rolls back and releases the lock.
    let turn = holder.transaction().await.map_err(failure)?;
    turn.query_typed(
        &format!("SELECT value FROM {bookkeeping} WHERE key = 'lock' FOR UPDATE"),
        &[],
    )
    .await
    .map_err(failure)?;
    let mut working = pool.session().await?;
    let worker = working.client_mut()?;
    let common = match record.common {
        Some(key) => record.level(worker, key).await?.unwrap_or(0),
        None => 0,
    };
    let done = match record.level(worker, &record.key).await? {
        Some(own) => own,
        // Dapr and earlier releases have only the common row.
        None if common > 0 && exists(worker, table).await? => {
            record.set(&***worker, &record.key, common).await?;
            common
        }
        None => 0,
    };
    // A database of a newer release has more steps than are known here and is used as is.
    for (index, step) in steps.iter().enumerate().skip(done) {
        let transaction = worker.transaction().await.map_err(failure)?;
        match step {
            Step::Sql(sql) => transaction.batch_execute(sql).await.map_err(failure)?,
            Step::RowId { ordered_by } => add_row_id(&transaction, table, ordered_by).await?,
        }
        let level = index + 1;
        record.set(&*transaction, &record.key, level).await?;
        if let Some(key) = record.common.filter(|_| common < level) {
            record.set(&*transaction, key, level).await?;
        }
        transaction.commit().await.map_err(failure)?;
    }
    turn.rollback().await.map_err(failure)?;
    holding.settle();
    working.settle();
    Ok(())
}

/// Two sidecars may both find the table missing; the one that loses the race retries.
async fn create_bookkeeping(connection: &Object, bookkeeping: &str) -> Result<()> {
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS {bookkeeping} (key text NOT NULL PRIMARY KEY, value text NOT NULL)"
    );
    for _ in 0..3 {
        match connection.batch_execute(&sql).await {
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
            other => return other.map_err(failure),
        }
    }
    connection.batch_execute(&sql).await.map_err(failure)
}

async fn add_row_id(transaction: &Transaction<'_>, table: &str, ordered_by: &str) -> Result<()> {
    let names = transaction
        .query_typed_one(
            "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.oid = to_regclass($1)",
            &[(&table, Type::TEXT)],
        )
        .await
        .map_err(failure)?;
    let (schema, name): (String, String) = (names.get(0), names.get(1));
    let index = format!("\"{}_row_id_uidx\"", name.replace('"', "\"\""));
    transaction
        .batch_execute(&format!(
            "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS row_id BIGINT;
             UPDATE {table} AS t SET row_id = numbered.number
             FROM (SELECT key, ROW_NUMBER() OVER (ORDER BY {ordered_by}, key) AS number
                   FROM {table} WHERE row_id IS NULL) AS numbered
             WHERE numbered.key = t.key;
             ALTER TABLE {table} ALTER COLUMN row_id SET NOT NULL"
        ))
        .await
        .map_err(failure)?;
    let identity: bool = transaction
        .query_typed_one(
            "SELECT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = $1
                AND table_name = $2 AND column_name = 'row_id' AND is_identity = 'YES')",
            &[(&schema, Type::TEXT), (&name, Type::TEXT)],
        )
        .await
        .map_err(failure)?
        .get(0);
    let make_identity = if identity {
        String::new()
    } else {
        format!("ALTER TABLE {table} ALTER COLUMN row_id ADD GENERATED BY DEFAULT AS IDENTITY;")
    };
    let quoted = table.replace('\'', "''");
    transaction
        .batch_execute(&format!(
            "{make_identity}
             SELECT setval(pg_get_serial_sequence('{quoted}', 'row_id'),
                 COALESCE((SELECT MAX(row_id) FROM {table}), 0) + 1, false);
             CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} (row_id)"
        ))
        .await
        .map_err(failure)
}
