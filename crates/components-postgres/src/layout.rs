//! The two generations of Dapr's state table, and the statements on them.

/// Which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// Values as JSON, bytes in Base64; the ETag is the row's transaction number `xmin`.
    V1,
    /// Values as bytes; the ETag is a random UUID.
    V2,
}

/// The statements, with table and column names in place. Parameters: $1 key (or keys); for writes $2 value,
/// $3 the TTL in seconds or NULL, in the first generation $4 whether it is binary; last the expected ETag as text.
pub(super) struct Layout {
    pub(super) table: String,
    pub(super) get: String,
    pub(super) bulk_get: String,
    pub(super) upsert: String,
    pub(super) first_write: String,
    pub(super) update: String,
    pub(super) delete: String,
    pub(super) delete_version: String,
    pub(super) keys: String,
    pub(super) sweep: String,
    /// Steps that make the table, oldest first.
    pub(super) steps: Vec<Step>,
}

/// A step of the layout's history.
pub(super) enum Step {
    Sql(String),
    /// Adds the column that paging goes by; rows that are there are numbered in the order of `ordered_by`.
    RowId {
        ordered_by: &'static str,
    },
}

struct Columns {
    expires: &'static str,
    updated: &'static str,
    /// How a value is read and written.
    read: &'static str,
    write: &'static str,
    etag: &'static str,
    /// Whether the ETag is the last parameter of an update, and of a delete.
    etag_updated: &'static str,
    etag_deleted: &'static str,
    /// Further columns of a write: names, values, and assignments.
    more: (&'static str, &'static str, &'static str),
    read_binary: &'static str,
}

const V1: Columns = Columns {
    expires: "expiredate",
    updated: "updatedate",
    read: "value::text",
    write: "$2::text::jsonb",
    etag: "xmin::text",
    etag_updated: "xmin = $5::text::xid",
    etag_deleted: "xmin = $2::text::xid",
    more: (", isbinary", ", $4::bool", ", isbinary = $4::bool"),
    read_binary: "isbinary",
};

const V2: Columns = Columns {
    expires: "expires_at",
    updated: "updated_at",
    read: "value",
    write: "$2::bytea",
    etag: "etag::text",
    etag_updated: "etag = $4::text::uuid",
    etag_deleted: "etag = $2::text::uuid",
    more: (", etag", ", gen_random_uuid()", ", etag = gen_random_uuid()"),
    read_binary: "false",
};

impl Layout {
    pub(super) fn new(generation: Generation, table: &str) -> Self {
        let (columns, steps) = match generation {
            Generation::V1 => (V1, v1_steps(table)),
            Generation::V2 => (V2, v2_steps(table)),
        };
        let Columns {
            expires,
            updated,
            read,
            write,
            etag,
            etag_updated,
            etag_deleted,
            more: (names, values, assignments),
            read_binary,
        } = columns;
        let ttl = "CURRENT_TIMESTAMP + $3::int4 * interval '1 second'";
        let alive = format!("({expires} IS NULL OR {expires} >= CURRENT_TIMESTAMP)");
        let select = format!(
            "SELECT key, {read}, {read_binary}, {etag},
                to_char({expires} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
             FROM {table}"
        );
        let upsert = format!(
            "INSERT INTO {table} AS t (key, value{names}, {expires})
             VALUES ($1::text, {write}{values}, {ttl})
             ON CONFLICT (key) DO UPDATE
             SET value = {write}, {updated} = CURRENT_TIMESTAMP, {expires} = {ttl}{assignments}"
        );
        Self {
            table: table.to_owned(),
            get: format!("{select} WHERE key = $1::text AND {alive}"),
            bulk_get: format!("{select} WHERE key = ANY($1::text[]) AND {alive}"),
            // A row that expired and is still there does not count.
            first_write: format!(
                "{upsert} WHERE t.{expires} IS NOT NULL AND t.{expires} < CURRENT_TIMESTAMP RETURNING 1"
            ),
            upsert: format!("{upsert} RETURNING 1"),
            update: format!(
                "UPDATE {table} SET value = {write}, {updated} = CURRENT_TIMESTAMP, {expires} = {ttl}{assignments}
                 WHERE key = $1::text AND {etag_updated} AND {alive} RETURNING 1"
            ),
            delete: format!("DELETE FROM {table} WHERE key = $1::text RETURNING 1"),
            delete_version: format!(
                "DELETE FROM {table} WHERE key = $1::text AND {etag_deleted} RETURNING 1"
            ),
            keys: format!(
                "SELECT key, row_id FROM {table} WHERE key LIKE $1::text ESCAPE '\\' AND {alive}
                 AND row_id > $2::int8 ORDER BY row_id LIMIT $3::int8"
            ),
            sweep: format!("DELETE FROM {table} WHERE {expires} IS NOT NULL AND {expires} < CURRENT_TIMESTAMP"),
            steps,
        }
    }
}

fn v1_steps(table: &str) -> Vec<Step> {
    vec![
        Step::Sql(format!(
            "CREATE TABLE IF NOT EXISTS {table} (
                key text NOT NULL PRIMARY KEY,
                value jsonb NOT NULL,
                isbinary boolean NOT NULL,
                insertdate TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT NOW(),
                updatedate TIMESTAMP WITH TIME ZONE NULL
            )"
        )),
        Step::Sql(format!(
            "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS expiredate TIMESTAMP WITH TIME ZONE"
        )),
        Step::RowId {
            ordered_by: "insertdate",
        },
    ]
}

fn v2_steps(table: &str) -> Vec<Step> {
    vec![
        Step::Sql(format!(
            "CREATE TABLE IF NOT EXISTS {table} (
                key text NOT NULL PRIMARY KEY,
                value bytea NOT NULL,
                etag uuid NOT NULL DEFAULT gen_random_uuid(),
                created_at timestamp with time zone NOT NULL DEFAULT now(),
                updated_at timestamp with time zone,
                expires_at timestamp with time zone
            );
            CREATE INDEX ON {table} (expires_at)"
        )),
        Step::RowId {
            ordered_by: "created_at",
        },
    ]
}
