//! `state.redis` in Dapr's layout. A key is a hash with the fields `data` and `version`, which each write
//! increments, and `first-write` after a write with that option, except in a transaction.
//!
//! A transaction is one script and therefore atomic; in a cluster, only for the keys of each hash slot. JSON
//! values are stored like others: the layout for the JSON module, and with it the query API, is not
//! supported.

use std::{borrow::Cow, collections::BTreeSet};

use ::redis::cmd;
use async_trait::async_trait;
use bytes::Bytes;
use outrigger_component::{
    Error, Kind, Metadata, Pairs, Result, StateStore,
    state::{
        Concurrency, Consistency, Delete, Feature, Get, Item, KeyPage, KeysLike, Operation, Set, TTL,
        Transaction,
    },
};
use outrigger_go_json::Html;

use super::{
    link::{Link, Repeat},
    script::Script,
    settings::{Role, Topology},
};

mod glob;
mod slot;

const FEATURES: &[Feature] = &[
    Feature::Etag,
    Feature::Transactional,
    Feature::Ttl,
    Feature::KeysLike,
];
/// Cluster keys are spread over many servers, and a scan would query only one.
const CLUSTER_FEATURES: &[Feature] = &[Feature::Etag, Feature::Transactional, Feature::Ttl];

/// Five arguments per key: `s`et or `d`elete; the expected version (empty for any, `-` for an absent key,
/// else `=VERSION`); the value; `0` for first-write; the TTL (0 for none). Returns the number of the first
/// operation that must not happen, or 0 and each key's new version, 0 if deleted.
const OPERATE: &str = r#"
local function version_of(key)
  local version = redis.pcall("HGET", key, "version")
  if not version or type(version) == "table" or version == "" then return nil end
  return version
end
local function is_free(key, action, expected)
  if expected == "-" then return redis.call("EXISTS", key) == 0 end
  local version = version_of(key)
  if expected ~= "" then return version ~= nil and expected == "=" .. version end
  return action == "d" or not version or not redis.call("HGET", key, "first-write")
end
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 5
  if not is_free(key, ARGV[at + 1], ARGV[at + 2]) then return {i} end
end
local answer = {0}
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 5
  if ARGV[at + 1] == "d" then
    redis.call("DEL", key)
    answer[i + 1] = 0
  else
    local kind = redis.call("TYPE", key).ok
    if kind ~= "hash" and kind ~= "none" then redis.call("DEL", key) end
    redis.call("HSET", key, "data", ARGV[at + 3])
    if ARGV[at + 4] == "0" then redis.call("HSET", key, "first-write", 0) end
    answer[i + 1] = redis.call("HINCRBY", key, "version", 1)
    local ttl = ARGV[at + 5]
    if tonumber(ttl) > 0 then redis.call("EXPIRE", key, ttl) else redis.call("PERSIST", key) end
  end
end
return answer
"#;

/// Expected version of a key that must be absent.
const ABSENT: &str = "-";

pub(super) struct RedisState {
    link: Link,
    /// For writes that wait for replicas, which would block the shared connection.
    strong: Option<Link>,
    replicas: u32,
    operate: Script,
    /// Default TTL of writes.
    default_ttl: Option<i64>,
}

pub(super) async fn open(metadata: &Metadata) -> Result<RedisState> {
    if metadata.filled(&["queryIndexes"]).is_some() {
        let wrong = metadata.wrong(
            &["queryIndexes"],
            "this build has no query API for Redis; remove it",
        );
        return Err(wrong.into());
    }
    let default_ttl = metadata.number(&["ttlInSeconds"])?;
    let link = Link::open(metadata, Role::State).await?;
    let replicas = link.replicas().await?;
    let strong = if replicas > 0 { link.dedicated() } else { None };
    Ok(RedisState {
        link,
        strong,
        replicas,
        operate: Script::new(OPERATE),
        default_ttl,
    })
}

/// Maximum TTL in seconds, less a margin for the time since 1970: Redis counts milliseconds in 64 bits, and
/// rejects more only after writing the value.
const MAX_TTL: i64 = i64::MAX / 1000 - (1 << 40);

/// The `ttlInSeconds` of a request: any whole number, unlike in other stores. Zero and negative values mean
/// no expiry.
fn ttl_seconds(metadata: &Pairs) -> Result<Option<i64>> {
    let Some(text) = metadata.get(TTL).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(seconds) if seconds <= MAX_TTL => Ok(Some(seconds)),
        _ => Err(Error::invalid_request(format!(
            "error parsing TTL: incorrect value for metadata '{TTL}': {text:?} is not a whole number of seconds up to {MAX_TTL}"
        ))),
    }
}

/// Script arguments of one operation.
struct Step<'a> {
    key: &'a str,
    action: &'static [u8],
    /// In the script's notation.
    expected: String,
    value: Cow<'a, [u8]>,
    first: &'static [u8],
    ttl: String,
}

impl<'a> Step<'a> {
    fn set(set: &'a Set, default_ttl: Option<i64>) -> Result<Self> {
        set.check()?;
        let ttl = ttl_seconds(&set.metadata)?.or(default_ttl);
        let expected = match set.etag() {
            Some(etag) if set.concurrency != Concurrency::LastWrite => {
                let version = etag.parse::<i64>();
                version
                    .map(|version| format!("={version}"))
                    .map_err(|error| Error::invalid_etag(format!("{etag:?} is not a number: {error}")))?
            }
            None if set.concurrency == Concurrency::FirstWrite => ABSENT.to_owned(),
            _ => String::new(),
        };
        let value = match set.value.stored(Html::Keep)? {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..]),
            Cow::Owned(bytes) => Cow::Owned(bytes.to_vec()),
        };
        Ok(Self {
            key: &set.key,
            action: b"s",
            expected,
            value,
            first: if set.concurrency == Concurrency::FirstWrite {
                b"0"
            } else {
                b"1"
            },
            ttl: ttl.unwrap_or(0).to_string(),
        })
    }

    fn delete(delete: &'a Delete) -> Result<Self> {
        delete.check()?;
        Ok(Self {
            key: &delete.key,
            action: b"d",
            expected: delete.etag().map_or_else(String::new, |etag| format!("={etag}")),
            value: Cow::Borrowed(b""),
            first: b"1",
            ttl: String::new(),
        })
    }

    /// Arguments in a transaction, where no write sets `first-write`: later plain writes would fail.
    fn of(operation: &'a Operation, default_ttl: Option<i64>) -> Result<Self> {
        let step = match operation {
            Operation::Set(set) => Self::set(set, default_ttl)?,
            Operation::Delete(delete) => Self::delete(delete)?,
        };
        Ok(Self { first: b"1", ..step })
    }
}

impl RedisState {
    /// Runs the steps atomically and waits for replicas if requested. Returns each key's new version, 0 if
    /// deleted.
    async fn operate(&self, steps: &[&Step<'_>], consistency: Consistency) -> Result<Vec<i64>> {
        let strong = consistency == Consistency::Strong && self.replicas > 0;
        let link = match &self.strong {
            Some(dedicated) if strong => dedicated,
            _ => &self.link,
        };
        let keys: Vec<&str> = steps.iter().map(|step| step.key).collect();
        let mut arguments: Vec<&[u8]> = Vec::with_capacity(steps.len() * 5);
        for step in steps {
            arguments.extend([
                step.action,
                step.expected.as_bytes(),
                &step.value,
                step.first,
                step.ttl.as_bytes(),
            ]);
        }
        // Repeating is safe unless the first run changes the outcome of the second.
        let unguarded = steps
            .iter()
            .all(|step| step.expected.is_empty() && step.first == b"1");
        let repeat = if unguarded { Repeat::Yes } else { Repeat::No };
        let mut answer: Vec<i64> = self.operate.run(link, &keys, &arguments, repeat).await?;
        let versions = answer.split_off(answer.len().min(1));
        let refused = answer.first().and_then(|number| usize::try_from(*number).ok());
        if let Some(before) = refused.and_then(|number| number.checked_sub(1)) {
            let key = steps.get(before).map_or("", |step| step.key);
            let text = format!("failed to write key {key}");
            return Err(Error::new(Kind::EtagMismatch, text));
        }
        if strong {
            let mut wait = cmd("WAIT");
            wait.arg(self.replicas).arg(1000);
            link.call::<u32>(&wait, Repeat::No).await?;
        }
        Ok(versions)
    }

    /// Values of Dapr's first releases are plain strings.
    async fn plain(&self, key: &str) -> Result<Option<Item>> {
        let data: Option<Vec<u8>> = self.link.call(cmd("GET").arg(key), Repeat::Yes).await?;
        Ok(data.map(|data| Item {
            data: data.into(),
            ..Item::default()
        }))
    }
}

fn is_wrong_type(error: &::redis::RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
}

#[async_trait]
impl StateStore for RedisState {
    fn features(&self) -> &[Feature] {
        match self.link.settings.topology {
            Topology::Cluster => CLUSTER_FEATURES,
            _ => FEATURES,
        }
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        if request.key.is_empty() {
            return Err(Error::invalid_request("missing key in get operation"));
        }
        let mut fields = cmd("HMGET");
        fields.arg(&request.key).arg("data").arg("version");
        let answer = self.link.attempt(&fields, Repeat::Yes).await?;
        let value = match answer {
            Err(error) if is_wrong_type(&error) => return self.plain(&request.key).await,
            Err(error) => return Err(self.link.failure(error)),
            Ok(value) => value,
        };
        let fields: (Option<Vec<u8>>, Option<String>) =
            ::redis::from_redis_value(value).map_err(|error| self.link.failure(error.into()))?;
        match fields {
            (Some(data), Some(version)) => Ok(Some(Item {
                data: Bytes::from(data),
                etag: Some(version),
                metadata: Pairs::new(),
                content_type: None,
            })),
            (None, None) => Ok(None),
            _ => Err(Error::new(
                Kind::Internal,
                "required hash field 'data' or 'version' was not found",
            )),
        }
    }

    async fn set(&self, request: &Set) -> Result<()> {
        let step = Step::set(request, self.default_ttl)?;
        self.operate(&[&step], request.consistency).await.map(drop)
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        let step = Step::delete(request)?;
        self.operate(&[&step], request.consistency).await.map(drop)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.transact_etag(transaction, "").await.map(drop)
    }

    async fn transact_etag(&self, transaction: &Transaction, key: &str) -> Result<Option<String>> {
        let steps = transaction
            .operations
            .iter()
            .map(|operation| Step::of(operation, self.default_ttl))
            .collect::<Result<Vec<_>>>()?;
        let etag_in = |group: &[&Step<'_>], versions: &[i64]| {
            let at = group.iter().rposition(|step| step.key == key)?;
            let version = versions.get(at).filter(|version| **version > 0)?;
            Some(version.to_string())
        };
        if self.link.settings.topology != Topology::Cluster {
            let all: Vec<&Step<'_>> = steps.iter().collect();
            if all.is_empty() {
                return self.link.check_open().map(|()| None);
            }
            let versions = self.operate(&all, Consistency::Unspecified).await?;
            return Ok(etag_in(&all, &versions));
        }
        let mut slots: Vec<(u16, Vec<&Step<'_>>)> = Vec::new();
        for step in &steps {
            let slot = slot::slot(step.key.as_bytes());
            match slots.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, group)) => group.push(step),
                None => slots.push((slot, vec![step])),
            }
        }
        let mut etag = None;
        for (_, group) in slots {
            let versions = self.operate(&group, Consistency::Unspecified).await?;
            etag = etag.or_else(|| etag_in(&group, &versions));
        }
        Ok(etag)
    }

    fn splits_transactions(&self) -> Option<&'static str> {
        let is_cluster = self.link.settings.topology == Topology::Cluster;
        is_cluster.then_some(
            "a cluster of Redis stores a transaction slot by slot; use a single Redis, one with Sentinels, or another store",
        )
    }

    async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage> {
        if self.link.settings.topology == Topology::Cluster {
            return Err(Error::unsupported("redis: a cluster cannot list keys"));
        }
        let pattern = glob::from_like(&request.pattern)?;
        let from: usize = request.position()?.unwrap_or_default();
        let mut keys = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(1000);
            let (next, found): (String, Vec<String>) = self.link.call(&scan, Repeat::Yes).await?;
            keys.extend(found);
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        let size = request
            .page_size
            .filter(|size| *size > 0)
            .map_or(usize::MAX, |size| size as usize);
        let total = keys.len();
        let keys: Vec<String> = keys.into_iter().skip(from).take(size).collect();
        let end = from + keys.len();
        let token = (end < total && !keys.is_empty()).then(|| end.to_string());
        Ok(KeyPage { keys, token })
    }

    async fn ping(&self) -> Result<()> {
        self.link
            .call::<String>(&cmd("PING"), Repeat::Yes)
            .await
            .map(drop)
    }

    async fn close(&self) {
        self.link.close();
        if let Some(strong) = &self.strong {
            strong.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ttl_to_redis_range() {
        let read = |text: &str| ttl_seconds(&Pairs::from([(TTL.to_owned(), text.to_owned())]));
        for (text, seconds) in [
            ("10", 10),
            ("+5", 5),
            ("-1", -1),
            ("-2", -2),
            ("2147483648", 1 << 31),
            ("99999999999", 99_999_999_999),
        ] {
            assert_eq!(read(text).unwrap(), Some(seconds));
        }
        assert_eq!(read("").unwrap(), None);
        assert_eq!(ttl_seconds(&Pairs::new()).unwrap(), None);
        for wrong in ["1.5", "x", " 5", "9223372036854775807", "99999999999999999999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
