//! `state.in-memory`: a map that is lost on restart.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Result, StateStore,
    catalog::Version,
    state::{
        Bounds, BulkItem, Concurrency, Delete, Feature, Get, Item, KeyPage, KeysLike, Operation, Set,
        Transaction,
    },
};
use outrigger_go_json::Html;
use tokio_util::task::AbortOnDropHandle;

mod expiry;
mod like;

/// Interval of deleting expired values; reads ignore them earlier.
const SWEEP: Duration = Duration::from_secs(1);

const FEATURES: &[Feature] = &[
    Feature::Etag,
    Feature::Transactional,
    Feature::Ttl,
    Feature::DeleteWithPrefix,
    Feature::KeysLike,
];

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .state
        .add(Entry::new(&["in-memory"], Version::Only, |_| async {
            Ok(InMemory::new() as Arc<dyn StateStore>)
        }));
}

struct Stored {
    data: Bytes,
    /// Sequence number of the write.
    version: u64,
    expires: Option<SystemTime>,
}

impl Stored {
    fn is_alive(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

#[derive(Default)]
struct Entries {
    values: HashMap<String, Stored>,
    writes: u64,
    closed: bool,
}

struct InMemory {
    entries: Arc<Mutex<Entries>>,
    /// Prefix of every ETag, so that ETags of an earlier run never match.
    run: u64,
    _sweeper: AbortOnDropHandle<()>,
}

impl InMemory {
    fn new() -> Arc<Self> {
        let entries = Arc::new(Mutex::new(Entries::default()));
        let swept = entries.clone();
        let sweeper = tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let now = SystemTime::now();
                lock(&swept).values.retain(|_, stored| stored.is_alive(now));
            }
        });
        Arc::new(Self {
            entries,
            run: rand::random(),
            _sweeper: AbortOnDropHandle::new(sweeper),
        })
    }

    fn open(&self) -> Result<MutexGuard<'_, Entries>> {
        let entries = lock(&self.entries);
        if entries.closed {
            Err(Error::closed())
        } else {
            Ok(entries)
        }
    }

    fn etag(&self, version: u64) -> String {
        format!("{:016x}-{version:x}", self.run)
    }

    fn item(&self, stored: &Stored) -> Item {
        Item {
            data: stored.data.clone(),
            etag: Some(self.etag(stored.version)),
            metadata: expiry::reported(stored.expires),
            content_type: None,
        }
    }

    fn find(&self, entries: &Entries, key: &str, now: SystemTime) -> Option<Item> {
        let stored = entries.values.get(key).filter(|stored| stored.is_alive(now))?;
        Some(self.item(stored))
    }

    /// Checks a write or deletion against the current value.
    fn check(
        &self,
        entries: &Entries,
        key: &str,
        etag: Option<&str>,
        concurrency: Concurrency,
    ) -> Result<()> {
        let current = entries
            .values
            .get(key)
            .filter(|stored| stored.is_alive(SystemTime::now()));
        // Dapr's texts, which callers see after the error's opening words.
        let cause = match (etag, current) {
            (Some(etag), Some(current)) => {
                let version = self.etag(current.version);
                if etag == version {
                    return Ok(());
                }
                format!("state etag not match for key={key}: current={version}, expect={etag}")
            }
            (Some(_), None) => format!("state not exist or expired for key={key}"),
            (None, Some(_)) if concurrency == Concurrency::FirstWrite => {
                "item already exists and no etag was passed".to_owned()
            }
            (None, _) => return Ok(()),
        };
        Err(Error::new(Kind::EtagMismatch, cause))
    }
}

fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    // Nothing panics while holding the lock.
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A write whose value and TTL are valid, so it cannot fail.
struct Prepared {
    data: Bytes,
    expires: Option<SystemTime>,
}

impl Prepared {
    fn of(set: &Set) -> Result<Self> {
        set.check()?;
        Ok(Self {
            expires: expiry::of(&set.metadata)?,
            data: set.value.stored(Html::Escape)?.into_owned(),
        })
    }

    fn put(self, entries: &mut Entries, key: &str) {
        entries.writes += 1;
        let stored = Stored {
            data: self.data,
            version: entries.writes,
            expires: self.expires,
        };
        match entries.values.get_mut(key) {
            Some(present) => *present = stored,
            None => drop(entries.values.insert(key.to_owned(), stored)),
        }
    }
}

fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid_request("missing key in get operation"));
    }
    Ok(())
}

#[async_trait]
impl StateStore for InMemory {
    fn features(&self) -> &[Feature] {
        FEATURES
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        check_key(&request.key)?;
        Ok(self.find(&*self.open()?, &request.key, SystemTime::now()))
    }

    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        let (entries, now, tally) = (self.open()?, SystemTime::now(), bounds.tally());
        let answer = |request: &Get| {
            let item = check_key(&request.key).map(|()| self.find(&entries, &request.key, now));
            tally.answer(request.key.as_str(), item)
        };
        requests.iter().map(answer).collect()
    }

    async fn set(&self, request: &Set) -> Result<()> {
        let prepared = Prepared::of(request)?;
        let mut entries = self.open()?;
        self.check(&entries, &request.key, request.etag(), request.concurrency)?;
        prepared.put(&mut entries, &request.key);
        Ok(())
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        request.check()?;
        let mut entries = self.open()?;
        self.check(&entries, &request.key, request.etag(), request.concurrency)?;
        entries.values.remove(&request.key);
        Ok(())
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.transact_etag(transaction, "").await.map(drop)
    }

    async fn transact_etag(&self, transaction: &Transaction, key: &str) -> Result<Option<String>> {
        let prepared = transaction.operations.iter().map(|operation| match operation {
            Operation::Set(set) => Prepared::of(set).map(Some),
            Operation::Delete(delete) => delete.check().map(|()| None),
        });
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let mut entries = self.open()?;
        for operation in &transaction.operations {
            let (etag, concurrency) = match operation {
                Operation::Set(set) => (set.etag(), set.concurrency),
                Operation::Delete(delete) => (delete.etag(), delete.concurrency),
            };
            self.check(&entries, operation.key(), etag, concurrency)?;
        }
        for (operation, prepared) in transaction.operations.iter().zip(prepared) {
            match prepared {
                Some(prepared) => prepared.put(&mut entries, operation.key()),
                None => drop(entries.values.remove(operation.key())),
            }
        }
        Ok(entries.values.get(key).map(|stored| self.etag(stored.version)))
    }

    async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage> {
        let pattern = like::Pattern::parse(&request.pattern)?;
        let after = request.token.as_deref();
        let (entries, now) = (self.open()?, SystemTime::now());
        let mut keys: Vec<String> = entries
            .values
            .iter()
            .filter(|(key, stored)| {
                stored.is_alive(now) && after.is_none_or(|after| key.as_str() > after) && pattern.matches(key)
            })
            .map(|(key, _)| key.clone())
            .collect();
        drop(entries);
        keys.sort_unstable();
        let limit = request.page_size.map_or(usize::MAX, |size| size as usize).max(1);
        let more = keys.len() > limit;
        keys.truncate(limit);
        let token = keys.last().filter(|_| more).cloned();
        Ok(KeyPage { keys, token })
    }

    async fn delete_with_prefix(&self, prefix: &str) -> Result<u64> {
        if prefix.is_empty() || prefix == "||" {
            return Err(Error::invalid_request(
                "a prefix is required for deleteWithPrefix request",
            ));
        }
        let prefix = format!("{}||", prefix.strip_suffix("||").unwrap_or(prefix));
        let mut entries = self.open()?;
        let before = entries.values.len();
        entries
            .values
            .retain(|key, _| key.strip_prefix(&prefix).is_none_or(|rest| rest.contains("||")));
        Ok((before - entries.values.len()) as u64)
    }

    async fn ping(&self) -> Result<()> {
        self.open().map(drop)
    }

    async fn close(&self) {
        let mut entries = lock(&self.entries);
        entries.closed = true;
        entries.values.clear();
    }
}
