//! The two versions of Dapr's state table, and their statements.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// Values as JSON, bytes in Base64; the ETag is the row's transaction number `xmin`.
    V1,
    /// Values as bytes; the ETag is a random UUID.
    V2,
}

/// The statements with table and column names filled in. Parameters: $1 key (or keys); for writes $2 value,
/// $3 the TTL in seconds or NULL, in the first generation $4 whether it is binary; last the expected ETag as
/// text. Each statement that changes one row returns the row's new ETag, or NULL if unknown.
pub(super) struct Layout {
    pub(super) table: String,
    pub(super) get: String,
    pub(super) bulk_get: String,
    pub(super) upsert: String,
    pub(super) first_write: String,
    pub(super) update: String,
    pub(super) delete: String,
    pub(super) delete_version: String,
    /// Whole transactions by [`Shape`].
    whole: [String; 8],
    pub(super) keys: String,
    pub(super) sweep: String,
    /// Migration steps, oldest first.
    pub(super) steps: Vec<Step>,
}

/// The parts of a transaction in one statement. Its parameters are those of the present parts, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// One write with an ETag condition that guards all others: the parameters of an update.
    pub(super) guard: bool,
    /// Unconditional writes: the parameters of a write, each as an array. Without a guard, the last parameter
    /// is the key whose new ETag is returned.
    pub(super) writes: bool,
    /// Unconditional deletions: an array of keys.
    pub(super) removals: bool,
}

impl Shape {
    fn all() -> [Self; 8] {
        std::array::from_fn(|bits| Self {
            writes: bits & 1 != 0,
            removals: bits & 2 != 0,
            guard: bits & 4 != 0,
        })
    }

    fn index(self) -> usize {
        usize::from(self.writes) | usize::from(self.removals) << 1 | usize::from(self.guard) << 2
    }
}

/// A migration step.
pub(super) enum Step {
    Sql(String),
    /// Adds the paging column; existing rows are numbered by `ordered_by`.
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
    /// Whether an update and a delete end with an ETag parameter.
    etag_updated: &'static str,
    etag_deleted: &'static str,
    /// Further columns of a write: names, values and assignments.
    more: (&'static str, &'static str, &'static str),
    read_binary: &'static str,
    /// The new ETag of an upserted and of an updated row. Partitioned tables do not return `xmin` of inserted
    /// rows.
    new_etag: &'static str,
    new_etag_updated: &'static str,
    /// Writing several rows: array type of each parameter, column names, the value, and further values.
    rows: (&'static [&'static str], &'static str, &'static str, &'static str),
    /// Assignment of the column that only this generation has.
    assigned: &'static str,
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
    new_etag: "NULL::text",
    new_etag_updated: "xmin::text",
    rows: (
        &["text[]", "text[]", "int4[]", "bool[]"],
        "key, value, ttl, isbinary",
        "given.value::jsonb",
        ", given.isbinary",
    ),
    assigned: "isbinary = EXCLUDED.isbinary",
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
    new_etag: "etag::text",
    new_etag_updated: "etag::text",
    rows: (
        &["text[]", "bytea[]", "int4[]"],
        "key, value, ttl",
        "given.value",
        ", gen_random_uuid()",
    ),
    assigned: "etag = EXCLUDED.etag",
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
            new_etag,
            new_etag_updated,
            ..
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
        let update = format!(
            "UPDATE {table} SET value = {write}, {updated} = CURRENT_TIMESTAMP, {expires} = {ttl}{assignments}
             WHERE key = $1::text AND {etag_updated} AND {alive} RETURNING {new_etag_updated} AS new_etag"
        );
        Self {
            table: table.to_owned(),
            get: format!("{select} WHERE key = $1::text AND {alive}"),
            bulk_get: format!("{select} WHERE key = ANY($1::text[]) AND {alive}"),
            // An expired row that was not deleted yet does not count.
            first_write: format!(
                "{upsert} WHERE t.{expires} IS NOT NULL AND t.{expires} < CURRENT_TIMESTAMP RETURNING {new_etag}"
            ),
            upsert: format!("{upsert} RETURNING {new_etag}"),
            delete: format!("DELETE FROM {table} WHERE key = $1::text RETURNING NULL::text"),
            delete_version: format!(
                "DELETE FROM {table} WHERE key = $1::text AND {etag_deleted} RETURNING NULL::text"
            ),
            whole: Shape::all().map(|shape| columns.whole(table, &update, shape)),
            update,
            keys: format!(
                "SELECT key, row_id FROM {table} WHERE key LIKE $1::text ESCAPE '\\' AND {alive}
                 AND row_id > $2::int8 ORDER BY row_id LIMIT $3::int8"
            ),
            sweep: format!(
                "DELETE FROM {table} WHERE {expires} IS NOT NULL AND {expires} < CURRENT_TIMESTAMP"
            ),
            steps,
        }
    }

    /// A whole transaction as one statement, atomic without `BEGIN`: the guard first, then writes, then
    /// deletions.
    pub(super) fn whole(&self, shape: Shape) -> &str {
        &self.whole[shape.index()]
    }
}

impl Columns {
    fn whole(&self, table: &str, update: &str, shape: Shape) -> String {
        let Self {
            expires,
            updated,
            new_etag,
            assigned,
            ..
        } = self;
        let (types, columns, value, values) = self.rows;
        let names = self.more.0;
        let mut parts = Vec::new();
        let mut taken = 0;
        let mut parameter = |kind: &str| {
            taken += 1;
            format!("${taken}::{kind}")
        };
        if shape.guard {
            // An update has the parameters of a write plus the ETag.
            for kind in types.iter().chain(&["text"]) {
                drop(parameter(kind));
            }
            parts.push(format!("guard AS ({update})"));
        }
        // Parts that read the guard run after it, and do nothing if it changed nothing.
        let guarded = match shape.guard {
            true => "EXISTS (SELECT 1 FROM guard)",
            false => "true",
        };
        if shape.writes {
            let arrays: Vec<_> = types.iter().map(|kind| parameter(kind)).collect();
            let arrays = arrays.join(", ");
            parts.push(format!(
                "written AS (INSERT INTO {table} AS t (key, value{names}, {expires})
                 SELECT given.key, {value}{values}, CURRENT_TIMESTAMP + given.ttl * interval '1 second'
                 FROM unnest({arrays}) AS given ({columns}) WHERE {guarded}
                 ON CONFLICT (key) DO UPDATE
                 SET value = EXCLUDED.value, {updated} = CURRENT_TIMESTAMP, {expires} = EXCLUDED.{expires}, {assigned}
                 RETURNING t.key, {new_etag} AS new_etag)"
            ));
        }
        if shape.removals {
            let keys = parameter("text[]");
            parts.push(format!(
                "removed AS (DELETE FROM {table} WHERE key = ANY({keys}) AND {guarded})"
            ));
        }
        let answer = match (shape.guard, shape.writes) {
            // CTEs needed for the answer run first.
            (true, true) => "SELECT new_etag, (SELECT count(*) FROM written) FROM guard".to_owned(),
            (true, false) => "SELECT new_etag FROM guard".to_owned(),
            (false, true) => format!("SELECT new_etag FROM written WHERE key = {}", parameter("text")),
            (false, false) => "SELECT NULL::text".to_owned(),
        };
        match parts.is_empty() {
            true => answer,
            false => format!("WITH {} {answer}", parts.join(", ")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parameters_across_parts() {
        for generation in [Generation::V1, Generation::V2] {
            let layout = Layout::new(generation, "state");
            let of_write = if generation == Generation::V1 { 4 } else { 3 };
            for shape in Shape::all() {
                let sql = layout.whole(shape);
                let of_guard = match (shape.guard, shape.writes) {
                    (true, _) => of_write + 1,
                    (false, true) => 1,
                    (false, false) => 0,
                };
                let count = usize::from(shape.writes) * of_write + usize::from(shape.removals) + of_guard;
                for number in 1..=12 {
                    let is_there = sql.contains(&format!("${number}:"));
                    assert_eq!(is_there, number <= count, "{shape:?} ${number}: {sql}");
                }
            }
        }
    }
}
