//! `configuration.postgresql`: a table and a notifying trigger, both created by the user.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{
    ConfigurationStore, Error, Kind, Metadata, Pairs, Result,
    configuration::{Follow, Heard, Item, Items, Request, Subscription, Subscriptions, follow},
};
use serde_json::{Map, Value};
use tokio_postgres::types::Type;

use super::{listener::Listener, pool::Pool, settings::Settings};

/// The server's limit for identifiers.
const MAX_TABLE_NAME: usize = 64;

pub(super) struct PostgresConfiguration {
    values: Arc<Values>,
    subscriptions: Subscriptions,
}

struct Values {
    pool: Pool,
    settings: Settings,
    table: String,
    /// Notification channel of subscriptions that name none.
    channel: Option<String>,
}

pub(super) async fn open(metadata: &Metadata) -> Result<PostgresConfiguration> {
    let table = metadata.required(&["table"])?.to_owned();
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_');
    if table.len() > MAX_TABLE_NAME || !table.chars().all(fine) {
        let expected = "it must have at most 64 lower-case letters, digits, '_' and '.'";
        return Err(metadata.wrong(&["table"], expected).into());
    }
    let channel = metadata.filled(&["pgNotifyChannel"]).map(str::to_owned);
    let settings = Settings::read(metadata)?;
    let pool = Pool::open(metadata, &settings).await?;
    let exists = pool
        .read(
            "SELECT to_regclass($1::text) IS NOT NULL",
            &[(&table, Type::TEXT)],
        )
        .await?;
    if !exists.first().is_some_and(|row| row.get(0)) {
        let expected =
            "the table does not exist; create it with the columns key, value, version and metadata";
        return Err(metadata.wrong(&["table"], expected).into());
    }
    Ok(PostgresConfiguration {
        values: Arc::new(Values {
            pool,
            settings,
            table,
            channel,
        }),
        subscriptions: Subscriptions::default(),
    })
}

/// A JSON object of texts; other values become their JSON text.
fn pairs(json: Option<Value>) -> Pairs {
    let members = match json {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    members
        .into_iter()
        .map(|(name, value)| (name, text(value)))
        .collect()
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// A row in a notification.
struct Notified {
    key: String,
    /// The current item; `None` if only the table has it, as after a deletion.
    item: Option<Item>,
}

/// Parses the row in the `data` of a notification; column names in any case.
fn notified(payload: &str) -> Result<Notified, String> {
    let mut payload: Map<String, Value> =
        outrigger_go_json::from_slice(payload.as_bytes()).map_err(|error| error.to_string())?;
    let Some(Value::Object(row)) = payload.remove("data") else {
        return Err("its member \"data\" is not an object".to_owned());
    };
    let mut row: HashMap<String, Value> = row
        .into_iter()
        .map(|(name, value)| (name.to_lowercase(), value))
        .collect();
    let mut take = |name: &str| row.remove(name);
    let key = take("key")
        .map(text)
        .filter(|key| !key.is_empty())
        .ok_or("its column \"key\" is missing or empty")?;
    let item = Item {
        value: take("value").map(text).unwrap_or_default(),
        version: take("version").map(text).unwrap_or_default(),
        metadata: pairs(take("metadata")),
    };
    let action = payload.get("action").and_then(Value::as_str);
    let is_written = action.is_some_and(|action| ["INSERT", "UPDATE"].contains(&action));
    Ok(Notified {
        key,
        item: is_written.then_some(item),
    })
}

impl Values {
    async fn read(&self, keys: &[String]) -> Result<Items> {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_');
        if let Some(key) = keys.iter().find(|key| !key.chars().all(known)) {
            return Err(Error::new(Kind::InvalidRequest, format!("invalid key : '{key}'")));
        }
        self.select(keys).await
    }

    async fn select(&self, keys: &[String]) -> Result<Items> {
        let select = format!(
            "SELECT key::text, value::text, version::text, metadata::text FROM {}",
            self.table
        );
        let rows = if keys.is_empty() {
            self.pool.read(&select, &[]).await?
        } else {
            let sql = format!("{select} WHERE key = ANY($1::text[])");
            self.pool.read(&sql, &[(&keys, Type::TEXT_ARRAY)]).await?
        };
        let mut newest: HashMap<String, (i64, Item)> = HashMap::new();
        for row in rows {
            let version: Option<String> = row.get(2);
            let version = version.unwrap_or_default();
            let number = version.parse().unwrap_or(-1);
            let key: String = row.get(0);
            if newest.get(&key).is_some_and(|(known, _)| *known >= number) {
                continue;
            }
            let metadata: Option<String> = row.get(3);
            let item = Item {
                value: row.get::<_, Option<String>>(1).unwrap_or_default(),
                version,
                metadata: pairs(
                    metadata.and_then(|text| outrigger_go_json::from_slice(text.as_bytes()).ok()),
                ),
            };
            newest.insert(key, (number, item));
        }
        Ok(newest.into_iter().map(|(key, (_, item))| (key, item)).collect())
    }

    async fn listen(&self, channel: &str) -> Result<Listener> {
        let (tls, config) = self.settings.connector(self.pool.max_answer())?;
        Listener::open(&config, tls, channel, self.settings.timeout).await
    }
}

/// The values that a subscription follows.
struct Watch {
    values: Arc<Values>,
    /// Empty for all.
    keys: Vec<String>,
    channel: String,
}

impl Watch {
    /// Reads a key again after one of its rows was deleted: another version may remain.
    async fn read_again(&self, key: String) -> Heard {
        match self.values.select(std::slice::from_ref(&key)).await {
            Ok(mut items) => {
                let item = items.remove(&key);
                Heard::Change(key, item)
            }
            Err(error) if error.retryable() => Heard::Missed,
            Err(error) => {
                tracing::warn!(target: "dapr.contrib", "cannot read the changed key {key}: {error}");
                Heard::Nothing
            }
        }
    }
}

#[async_trait]
impl Follow for Watch {
    type Listener = Listener;

    async fn resume(&self) -> Result<(Listener, Items)> {
        let listener = self.values.listen(&self.channel).await?;
        let items = self.values.select(&self.keys).await?;
        Ok((listener, items))
    }

    async fn next(&self, listener: &mut Listener) -> Option<Heard> {
        let payload = listener.next().await?;
        Some(match notified(&payload) {
            Ok(row) if !self.keys.is_empty() && !self.keys.contains(&row.key) => Heard::Nothing,
            Ok(Notified { key, item: None }) => self.read_again(key).await,
            Ok(Notified { key, item }) => Heard::Change(key, item),
            Err(why) => {
                tracing::error!(
                    target: "dapr.contrib",
                    "invalid notification on {}: {why}; the trigger must send {{\"data\": ROW}}",
                    self.channel
                );
                Heard::Nothing
            }
        })
    }

    fn failed(&self, error: &Error) {
        tracing::warn!(target: "dapr.contrib", "cannot listen to {}: {error}", self.channel);
    }
}

#[async_trait]
impl ConfigurationStore for PostgresConfiguration {
    async fn get(&self, request: &Request) -> Result<Items> {
        self.values.read(&request.keys).await
    }

    async fn subscribe(&self, request: &Request) -> Result<Subscription> {
        self.subscriptions.check_open()?;
        let channel = request
            .metadata
            .iter()
            .find(|(name, value)| name.eq_ignore_ascii_case("pgNotifyChannel") && !value.is_empty())
            .map(|(_, value)| value.clone())
            .or_else(|| self.values.channel.clone())
            .ok_or_else(|| {
                let text = format!(
                    "unable to subscribe to '{}'. pgNotifyChannel attribute cannot be empty",
                    self.values.table
                );
                Error::new(Kind::InvalidRequest, text)
            })?;
        let watch = Watch {
            values: self.values.clone(),
            keys: request.keys.clone(),
            channel,
        };
        let (listener, known) = watch.resume().await?;
        self.subscriptions
            .open(|updates| async move { follow(&watch, listener, known, updates).await })
    }

    async fn unsubscribe(&self, id: &str) -> Result<()> {
        self.subscriptions.end(id).await
    }

    async fn ping(&self) -> Result<()> {
        self.values.pool.ping().await
    }

    async fn close(&self) {
        self.subscriptions.close().await;
        self.values.pool.close();
    }
}

#[cfg(test)]
mod tests {
    use super::{Notified, notified};

    #[test]
    fn parses_row_in_notification() {
        let payload = r#"{"table":"c","action":"UPDATE","data":{"KEY":"k","value":"v","version":2,"metadata":{"a":"b"}}}"#;
        let Notified { key, item } = notified(payload).unwrap();
        let item = item.unwrap();
        assert_eq!(
            (key.as_str(), item.value.as_str(), item.version.as_str()),
            ("k", "v", "2")
        );
        assert_eq!(item.metadata["a"], "b");
        for wrong in ["", "[]", "{}", r#"{"data":[]}"#, r#"{"data":{"value":"v"}}"#] {
            assert!(notified(wrong).is_err(), "{wrong}");
        }
        // For the table's current content, only writes are conclusive.
        for unknown in [r#""action":"DELETE","#, r#""action":"delete","#, ""] {
            let payload = format!(r#"{{{unknown}"data":{{"key":"k","value":"old"}}}}"#);
            assert_eq!(notified(&payload).unwrap().item, None, "{payload}");
        }
    }
}
