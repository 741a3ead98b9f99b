use std::time::{Duration, SystemTime};

use bytes::Bytes;
use outrigger_component::{
    Error, Pairs, Result,
    pubsub::{Publish, Settlement},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Milliseconds since 1970: sidecars of one machine share its clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    milliseconds(since.unwrap_or_default())
}

fn milliseconds(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// A message to store.
pub(super) struct Outgoing {
    topic: String,
    key: Option<String>,
    data: Bytes,
    content_type: Option<String>,
    /// A JSON object.
    metadata: String,
    ttl: Option<Duration>,
}

impl Outgoing {
    pub(super) fn new(message: &Publish) -> Result<Self> {
        let metadata = serde_json::to_string(&message.metadata)
            .map_err(|error| Error::invalid_request("the metadata cannot be stored").because(error))?;
        Ok(Self {
            topic: message.topic.clone(),
            key: message.partition_key().map(str::to_owned),
            data: message.data.clone(),
            content_type: message.content_type.clone(),
            metadata,
            ttl: message.ttl()?,
        })
    }
}

/// A leased message.
pub(super) struct Leased {
    pub(super) id: i64,
    pub(super) key: Option<Bytes>,
    pub(super) data: Bytes,
    pub(super) content_type: Option<String>,
    pub(super) metadata: Pairs,
    /// Number of earlier leases.
    pub(super) before: u32,
}

impl Leased {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let key: Option<String> = row.get(1)?;
        let data: Vec<u8> = row.get(2)?;
        let metadata: String = row.get(4)?;
        Ok(Self {
            id: row.get(0)?,
            key: key.map(Bytes::from),
            data: data.into(),
            content_type: row.get(3)?,
            // Written by this component; invalid data of another writer is dropped, and the message kept.
            metadata: serde_json::from_str(&metadata).unwrap_or_default(),
            before: row.get(5)?,
        })
    }
}

/// Limits of one lease.
#[derive(Clone, Copy)]
pub(super) struct LeaseBudget {
    pub(super) messages: usize,
    /// Bytes of payloads; the first message passes whatever its size.
    pub(super) bytes: usize,
}

/// A consumer of a group.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) group: i64,
    /// Unique id.
    pub(super) owner: String,
}

/// The statements with table names filled in.
#[derive(Clone)]
pub(super) struct Tables {
    table: String,
    insert: String,
    fan_out: String,
    find: String,
    lease: String,
    acknowledge: String,
    release: String,
    renew: String,
    forget: String,
    visible: String,
}

impl Tables {
    pub(super) fn new(table: &str) -> Self {
        // Skips keys whose earlier message is leased by another consumer or waits for redelivery. Skips
        // messages behind a redelivered one, because their lease is useless if it fails again.
        let available = format!(
            "d.group_id = ?1 AND d.visible_ms <= ?2 AND (d.key IS NULL OR NOT EXISTS (
                 SELECT 1 FROM {table}_deliveries e
                 WHERE e.group_id = d.group_id AND e.key = d.key AND e.message_id < d.message_id
                     AND (e.visible_ms > ?2 AND e.owner <> ?3 OR e.leases > (e.owner <> ''))))"
        );
        Self {
            table: table.to_owned(),
            // Without a group no consumer will ever request it.
            insert: format!(
                "INSERT INTO {table}_messages (topic, data, content_type, metadata, published_ms)
                 SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM {table}_groups WHERE topic = ?1)"
            ),
            fan_out: format!(
                "INSERT INTO {table}_deliveries (group_id, message_id, key, visible_ms, expires_ms)
                 SELECT id, ?2, ?3, 0, ?4 FROM {table}_groups WHERE topic = ?1"
            ),
            find: format!(
                "SELECT d.message_id, d.key, m.data, m.content_type, m.metadata, d.leases,
                     length(m.data)
                 FROM {table}_deliveries d JOIN {table}_messages m ON m.id = d.message_id
                 WHERE {available} ORDER BY d.message_id LIMIT ?4"
            ),
            lease: format!(
                "UPDATE {table}_deliveries SET visible_ms = ?3, owner = ?4, leases = leases + 1
                 WHERE group_id = ?1 AND message_id = ?2"
            ),
            acknowledge: format!(
                "DELETE FROM {table}_deliveries WHERE group_id = ?1 AND message_id = ?2 AND owner = ?3"
            ),
            release: format!(
                "UPDATE {table}_deliveries SET visible_ms = ?4, owner = '', leases = leases - ?5
                 WHERE group_id = ?1 AND message_id = ?2 AND owner = ?3"
            ),
            renew: format!(
                "UPDATE {table}_deliveries SET visible_ms = ?4
                 WHERE group_id = ?1 AND message_id = ?2 AND owner = ?3"
            ),
            forget: format!(
                "DELETE FROM {table}_messages WHERE id = ?1
                 AND NOT EXISTS (SELECT 1 FROM {table}_deliveries WHERE message_id = ?1)"
            ),
            visible: format!("SELECT 1 FROM {table}_deliveries d WHERE {available} LIMIT 1"),
        }
    }

    /// Name of the message table.
    pub(super) fn messages(&self) -> String {
        format!("{}_messages", self.table)
    }

    /// Migration steps that create the tables.
    pub(super) fn create(&self) -> [String; 1] {
        let table = &self.table;
        [format!(
            "CREATE TABLE {table}_groups (
                 id INTEGER PRIMARY KEY,
                 topic TEXT NOT NULL,
                 name TEXT NOT NULL,
                 seen_ms INTEGER NOT NULL,
                 UNIQUE (topic, name)
             );
             CREATE TABLE {table}_messages (
                 id INTEGER PRIMARY KEY AUTOINCREMENT,
                 topic TEXT NOT NULL,
                 data BLOB NOT NULL,
                 content_type TEXT,
                 metadata TEXT NOT NULL,
                 published_ms INTEGER NOT NULL
             );
             CREATE TABLE {table}_deliveries (
                 group_id INTEGER NOT NULL,
                 message_id INTEGER NOT NULL,
                 key TEXT,
                 visible_ms INTEGER NOT NULL,
                 owner TEXT NOT NULL DEFAULT '',
                 leases INTEGER NOT NULL DEFAULT 0,
                 expires_ms INTEGER,
                 PRIMARY KEY (group_id, message_id)
             ) WITHOUT ROWID;
             CREATE INDEX {table}_deliveries_message ON {table}_deliveries (message_id);
             CREATE INDEX {table}_deliveries_key ON {table}_deliveries (group_id, key, message_id)
                 WHERE key IS NOT NULL;
             CREATE INDEX {table}_deliveries_expiry ON {table}_deliveries (expires_ms)
                 WHERE expires_ms IS NOT NULL;
             CREATE INDEX {table}_messages_published ON {table}_messages (published_ms);"
        )]
    }

    /// Stores a message for every group of its topic.
    pub(super) fn publish(&self, connection: &Connection, message: &Outgoing) -> rusqlite::Result<()> {
        let now = now();
        let values = params![
            message.topic,
            &message.data[..],
            message.content_type,
            message.metadata,
            now
        ];
        if connection.prepare_cached(&self.insert)?.execute(values)? == 0 {
            return Ok(());
        }
        let expires = message.ttl.map(|ttl| now.saturating_add(milliseconds(ttl)));
        let values = params![
            message.topic,
            connection.last_insert_rowid(),
            message.key,
            expires
        ];
        connection
            .prepare_cached(&self.fan_out)?
            .execute(values)
            .map(drop)
    }

    /// Creates the group if needed; returns its number.
    pub(super) fn join(&self, connection: &Connection, topic: &str, group: &str) -> rusqlite::Result<i64> {
        // Numbers of deleted groups are not reused, unlike SQLite's default, because their consumers may not
        // know yet.
        let sql = format!(
            "INSERT INTO {}_groups (id, topic, name, seen_ms) VALUES (random(), ?1, ?2, ?3)
             ON CONFLICT (topic, name) DO UPDATE SET seen_ms = excluded.seen_ms RETURNING id",
            self.table
        );
        connection.query_row(&sql, params![topic, group, now()], |row| row.get(0))
    }

    /// Whether there may be a message to lease.
    pub(super) fn visible(&self, connection: &Connection, member: &Member) -> rusqlite::Result<bool> {
        let mut sql = connection.prepare_cached(&self.visible)?;
        let values = params![member.group, now(), member.owner];
        let found = sql.query_row(values, |_| Ok(())).optional()?;
        Ok(found.is_some())
    }

    /// Stores settlements; returned messages become visible after `redelivery`.
    pub(super) fn settle(
        &self,
        connection: &Connection,
        member: &Member,
        settled: &[(i64, Settlement)],
        redelivery: Duration,
    ) -> rusqlite::Result<()> {
        let again = now().saturating_add(milliseconds(redelivery));
        for (id, settlement) in settled {
            match settlement {
                Settlement::Acknowledge => {
                    let values = params![member.group, id, member.owner];
                    if connection.prepare_cached(&self.acknowledge)?.execute(values)? > 0 {
                        connection.prepare_cached(&self.forget)?.execute([id])?;
                    }
                }
                Settlement::Reject | Settlement::Release => {
                    // An unattempted message does not count as delivered.
                    let untried = i64::from(*settlement == Settlement::Release);
                    let values = params![member.group, id, member.owner, again, untried];
                    connection.prepare_cached(&self.release)?.execute(values)?;
                }
            }
        }
        Ok(())
    }

    /// Leases messages within the budget for the time `visibility`, oldest first.
    pub(super) fn lease(
        &self,
        connection: &Connection,
        member: &Member,
        budget: LeaseBudget,
        visibility: Duration,
    ) -> rusqlite::Result<Vec<Leased>> {
        self.expire(connection)?;
        let now = now();
        let most = i64::try_from(budget.messages).unwrap_or(i64::MAX);
        let mut find = connection.prepare_cached(&self.find)?;
        let mut rows = find.query(params![member.group, now, member.owner, most])?;
        let (mut found, mut left) = (Vec::new(), budget.bytes);
        while let Some(row) = rows.next()? {
            let size = usize::try_from(row.get::<_, i64>(6)?).unwrap_or(usize::MAX);
            if size > left && !found.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            found.push(Leased::read(row)?);
        }
        drop(rows);
        let until = now.saturating_add(milliseconds(visibility));
        let mut lease = connection.prepare_cached(&self.lease)?;
        for message in &found {
            lease.execute(params![member.group, message.id, until, member.owner])?;
        }
        Ok(found)
    }

    /// Extends the member's leases to `visibility` from now.
    pub(super) fn renew(
        &self,
        connection: &Connection,
        member: &Member,
        ids: &[i64],
        visibility: Duration,
    ) -> rusqlite::Result<()> {
        let until = now().saturating_add(milliseconds(visibility));
        let mut renew = connection.prepare_cached(&self.renew)?;
        for id in ids {
            renew.execute(params![member.group, id, member.owner, until])?;
        }
        Ok(())
    }

    /// Deletes unleased messages after their time to live.
    fn expire(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = format!(
            "DELETE FROM {}_deliveries WHERE expires_ms <= ?1 AND visible_ms <= ?1 RETURNING message_id",
            self.table
        );
        let mut sql = connection.prepare_cached(&sql)?;
        let gone = sql.query_map([now()], |row| row.get::<_, i64>(0))?;
        for id in gone.collect::<rusqlite::Result<Vec<_>>>()? {
            connection.prepare_cached(&self.forget)?.execute([id])?;
        }
        Ok(())
    }

    /// Refreshes the group, and deletes messages and groups older than `retention`, if set. `false` if the
    /// group is gone.
    pub(super) fn sweep(
        &self,
        connection: &Connection,
        group: i64,
        retention: Option<Duration>,
    ) -> rusqlite::Result<bool> {
        let table = &self.table;
        let now = now();
        let seen = connection.execute(
            &format!("UPDATE {table}_groups SET seen_ms = ?2 WHERE id = ?1"),
            params![group, now],
        )?;
        let Some(retention) = retention.filter(|_| seen > 0) else {
            return Ok(seen > 0);
        };
        let cut = now.saturating_sub(milliseconds(retention));
        for sql in [
            format!("DELETE FROM {table}_groups WHERE seen_ms < ?1"),
            format!(
                "DELETE FROM {table}_deliveries WHERE visible_ms <= ?2 AND message_id IN
                     (SELECT id FROM {table}_messages WHERE published_ms < ?1)"
            ),
            format!(
                "DELETE FROM {table}_deliveries WHERE ?1 <= ?2 AND group_id NOT IN (SELECT id FROM {table}_groups)"
            ),
            format!(
                "DELETE FROM {table}_messages WHERE published_ms < ?1 AND NOT EXISTS
                     (SELECT 1 FROM {table}_deliveries WHERE message_id = {table}_messages.id)"
            ),
        ] {
            let mut sql = connection.prepare(&sql)?;
            match sql.parameter_count() {
                1 => sql.execute([cut])?,
                _ => sql.execute([cut, now])?,
            };
        }
        Ok(true)
    }
}
