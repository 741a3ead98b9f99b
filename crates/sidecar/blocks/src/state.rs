//! State: key/value access to state stores. This module applies key prefixes, encryption and resiliency; both
//! APIs call the same operations with the app's keys.

mod actor;
mod bulk;
mod category;
mod cipher;
mod error;
mod key;
mod outbox;
mod query;
mod transact;

use std::sync::Arc;

use bytes::Bytes;
use outrigger_component::state::{Bounds, Consistency, Delete, Get, Item, QueryPage, Set, Value};
use outrigger_component::{Error, Kind, Pairs, StateStore};
use outrigger_offload::{INLINE, offload};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;

pub use cipher::{Cipher, CipherError, KeyError, NamedKey};
pub use error::StateError;
pub use key::{IllegalKey, Keys, SEPARATOR, original};
#[cfg(feature = "fuzzing")]
pub use query::fuzz_query;
pub use transact::StepKind;

use self::outbox::{Outbox, Relays, Settings, Transactions};
use super::outbound::{Cause, FamilyNames, Operation, Outbound};
use super::pubsub::PubSubs;

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_state_count",
    latencies: "component_state_latencies",
};

/// Bytes of data copied for each item of a request: its metadata, or the names of its actor.
const MAX_METADATA: usize = 64 << 20;

/// Bytes of all values of a query, and of a bulk get whose response has no other limit.
pub const MAX_BULK: usize = 64 << 20;

/// All state stores of the sidecar.
pub struct State {
    stores: Registry<Store>,
    resilience: Arc<Resilience>,
    /// The brokers of outboxes.
    pubsubs: Arc<PubSubs>,
    transactions: Arc<Transactions>,
    relays: Relays,
}

impl State {
    /// No stores yet; later ones are called under the policies and metrics of `resilience`.
    pub fn new(pubsubs: Arc<PubSubs>, resilience: Arc<Resilience>) -> Self {
        Self {
            stores: Registry::default(),
            resilience,
            pubsubs,
            transactions: Arc::default(),
            relays: Relays::default(),
        }
    }

    /// Adds or replaces a store.
    fn insert(
        &self,
        name: &str,
        component: Arc<dyn StateStore>,
        keys: Keys,
        cipher: Option<Cipher>,
        outbox: Option<Settings>,
        hidden: Secrets,
    ) -> Registration {
        let has_outbox = outbox.is_some();
        let outbox = outbox.map(|settings| {
            let transactions = Arc::clone(&self.transactions);
            let standing = self.relays.standing.clone();
            Outbox::new(settings, Arc::clone(&self.pubsubs), transactions, standing)
        });
        let store = Store {
            outbox,
            ..Store::new(name, component, keys, cipher, &self.resilience, hidden)
        };
        let registration = self.stores.insert(name, store);
        if !has_outbox {
            return registration;
        }
        self.relays.changes.send_replace(());
        let changes = Arc::clone(&self.relays.changes);
        registration.then(move || {
            changes.send_replace(());
        })
    }

    /// The store with this name.
    ///
    /// # Errors
    /// [`StateError::NotConfigured`], [`StateError::NotFound`].
    #[inline]
    pub fn store(&self, name: &str) -> Result<Arc<Store>, StateError> {
        self.stores.get(name).ok_or_else(|| {
            let store = name.to_owned();
            if self.stores.is_empty() {
                StateError::NotConfigured { store }
            } else {
                StateError::NotFound { store }
            }
        })
    }
}

/// A state store with its key prefix, encryption, policy and metrics.
pub struct Store {
    name: String,
    component: Arc<dyn StateStore>,
    keys: Keys,
    cipher: Option<Arc<Cipher>>,
    outbound: Outbound,
    operations: Operations,
    outbox: Option<Outbox>,
}

struct Operations {
    get: Operation,
    set: Operation,
    delete: Operation,
    query: Operation,
    transaction: Operation,
    bulk_get: Operation,
    bulk_delete: Operation,
}

/// The result for one key of a bulk get.
pub struct Found {
    /// The app's key.
    pub key: String,
    /// The value if it exists, or the error of reading it.
    pub item: Result<Option<Item>, String>,
}

impl Store {
    fn new(
        name: &str,
        component: Arc<dyn StateStore>,
        keys: Keys,
        cipher: Option<Cipher>,
        resilience: &Resilience,
        hidden: Secrets,
    ) -> Self {
        let registry = &resilience.metrics.all().registry;
        let operation = |operation| Operation::new(registry, FAMILIES, name, operation);
        Self {
            operations: Operations {
                get: operation("get"),
                set: operation("set"),
                delete: operation("delete"),
                query: operation("query"),
                transaction: operation("transaction"),
                bulk_get: operation("bulk_get"),
                bulk_delete: operation("bulk_delete"),
            },
            outbound: Outbound::new(name, ComponentKind::Statestore, resilience, hidden),
            name: name.to_owned(),
            component,
            keys,
            cipher: cipher.map(Arc::new),
            outbox: None,
        }
    }

    /// The component's name.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether values are encrypted: the store then keeps the caller's bytes verbatim.
    #[inline]
    pub fn encrypts(&self) -> bool {
        self.cipher.is_some()
    }

    /// Reads a value; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn get(
        &self,
        key: &str,
        consistency: Consistency,
        metadata: Pairs,
    ) -> Result<Option<Item>, StateError> {
        let request = &Get {
            key: self.stored(key)?,
            consistency,
            metadata,
        };
        let failed = |cause| StateError::Get {
            store: self.name.clone(),
            key: key.to_owned(),
            cause,
        };
        let component = &self.component;
        let attempt = || component.get(request);
        let found = self.outbound.run(&self.operations.get, attempt).await;
        match found.map_err(failed)? {
            None => Ok(None),
            Some(item) => match self.open(item).await {
                Ok(item) => Ok(Some(item)),
                Err(error) => Err(failed(Cause::Own(error.to_string()))),
            },
        }
    }

    /// Reads values, `parallelism` at a time (0 or less: the store decides), at most `bytes` in total.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn bulk_get(
        &self,
        keys: &[String],
        parallelism: i32,
        bytes: usize,
        metadata: &Pairs,
    ) -> Result<Vec<Found>, StateError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        check_metadata(keys.len(), metadata).map_err(|error| StateError::BulkGet(Cause::Component(error)))?;
        let request = |key: &String| {
            Ok(Get {
                key: self.stored(key)?,
                consistency: Consistency::Unspecified,
                metadata: metadata.clone(),
            })
        };
        let requests = &keys.iter().map(request).collect::<Result<Vec<_>, StateError>>()?;
        let opened = Bounds {
            parallelism: usize::try_from(parallelism).unwrap_or(0),
            bytes,
        };
        let bounds = match self.cipher {
            Some(_) => Bounds {
                bytes: sealed_size(bytes, keys.len()),
                ..opened
            },
            None => opened,
        };
        let opened = opened.tally();
        let component = &self.component;
        let attempt = || component.bulk_get(requests, bounds);
        let items = self.outbound.run(&self.operations.bulk_get, attempt).await;
        let mut found = Vec::with_capacity(requests.len());
        for item in items.map_err(StateError::BulkGet)? {
            let key = original(&item.key).to_owned();
            let item = match item.item {
                Ok(Some(item)) => self.open(item).await.map(Some).map_err(|error| error.to_string()),
                Ok(None) => Ok(None),
                Err(error) => Err(self.outbound.cleared(error).to_string()),
            };
            if let Ok(Some(item)) = &item {
                let counted = opened.count(item.data.len());
                counted.map_err(|error| StateError::BulkGet(Cause::Component(error)))?;
            }
            found.push(Found { key, item });
        }
        Ok(found)
    }

    /// Writes values independently of each other, by the app's keys.
    ///
    /// # Errors
    /// [`StateError`]; other values may have been written.
    pub async fn save(&self, mut sets: Vec<Set>) -> Result<(), StateError> {
        for set in &mut sets {
            set.key = self.stored(&set.key)?;
        }
        let size = sets.iter().map(|set| set.value.size()).sum();
        if self.prepares(size) {
            let values = sets.iter_mut().map(|set| &mut set.value).collect();
            self.prepare(values, size)
                .await
                .map_err(|cause| self.not_saved(cause))?;
        }
        let saved = match sets.as_slice() {
            [] => return Ok(()),
            [set] => {
                let component = &self.component;
                let attempt = || component.set(set);
                self.outbound.run(&self.operations.set, attempt).await
            }
            _ => {
                self.each(&self.operations.set, sets, |store, sets| store.bulk_set(sets, 0))
                    .await
            }
        };
        saved.map_err(|cause| self.not_saved(cause))
    }

    /// Deletes a value by the app's key.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn delete(&self, mut delete: Delete) -> Result<(), StateError> {
        let key = std::mem::take(&mut delete.key);
        delete.key = self.stored(&key)?;
        let (component, delete) = (&self.component, &delete);
        let attempt = || component.delete(delete);
        let deleted = self.outbound.run(&self.operations.delete, attempt).await;
        deleted.map_err(|cause| StateError::Delete { key, cause })
    }

    /// Deletes values independently of each other, by the app's keys.
    ///
    /// # Errors
    /// [`StateError`]; other values may have been deleted.
    pub async fn bulk_delete(&self, mut deletes: Vec<Delete>) -> Result<(), StateError> {
        for delete in &mut deletes {
            delete.key = self.stored(&delete.key)?;
        }
        let operation = &self.operations.bulk_delete;
        let deleted = match deletes.as_slice() {
            [] => return Ok(()),
            [delete] => {
                let component = &self.component;
                let attempt = || component.delete(delete);
                self.outbound.run(operation, attempt).await
            }
            _ => {
                self.each(operation, deletes, |store, deletes| store.bulk_delete(deletes, 0))
                    .await
            }
        };
        deleted.map_err(|cause| StateError::BulkDelete {
            store: self.name.clone(),
            cause,
        })
    }

    /// Values that match a JSON query.
    ///
    /// # Errors
    /// [`StateError`].
    pub async fn query(&self, text: Bytes, metadata: &Pairs) -> Result<QueryPage, StateError> {
        let store = || self.name.clone();
        if !self.component.can_query() {
            return Err(StateError::NoQueries { store: store() });
        }
        let failed = |cause| StateError::Query {
            store: store(),
            cause,
        };
        if self.encrypts() {
            return Err(failed(Cause::Own("cannot query encrypted store".to_owned())));
        }
        let mut query = query::read(text).await.map_err(failed)?;
        self.keys.prefix().clone_into(&mut query.prefix);
        let query = &query;
        let component = &self.component;
        let bounds = Bounds {
            bytes: MAX_BULK,
            ..Bounds::default()
        };
        let attempt = || component.query(query, metadata, bounds);
        let mut page = self
            .outbound
            .run(&self.operations.query, attempt)
            .await
            .map_err(failed)?;
        // Pluggable stores do not know the prefix.
        page.items.retain_mut(|item| {
            let own = query.own_key(&item.key).map(str::to_owned);
            own.map(|key| item.key = key).is_some()
        });
        Ok(page)
    }

    /// A write error of this store.
    pub fn not_saved(&self, cause: impl Into<Cause>) -> StateError {
        StateError::Save {
            store: self.name.clone(),
            cause: cause.into(),
        }
    }

    fn stored(&self, key: &str) -> Result<String, StateError> {
        self.keys.stored(key).map_err(|key| StateError::IllegalKey {
            store: self.name.clone(),
            key,
        })
    }

    /// Whether values of `size` bytes in total are processed before the store gets them.
    fn prepares(&self, size: usize) -> bool {
        self.cipher.is_some() || size > INLINE
    }

    /// Encrypts values or, if they are large and not encrypted, normalises their JSON.
    async fn prepare(&self, values: Vec<&mut Value>, size: usize) -> Result<(), Cause> {
        prepare(self.cipher.clone(), values, size).await
    }

    async fn open(&self, mut item: Item) -> Result<Item, CipherError> {
        if let Some(cipher) = &self.cipher {
            let stored = std::mem::take(&mut item.data);
            let (cipher, name) = (Arc::clone(cipher), self.name.clone());
            item.data = offload(stored.len(), move || cipher.open(&stored, &name)).await?;
        }
        Ok(item)
    }
}

/// Like [`Store::prepare`], with an optional cipher.
async fn prepare(cipher: Option<Arc<Cipher>>, mut values: Vec<&mut Value>, size: usize) -> Result<(), Cause> {
    let given: Vec<Value> = values.iter_mut().map(|value| std::mem::take(*value)).collect();
    let prepare = move |value: Value| match &cipher {
        Some(cipher) => cipher.seal(&value).map_err(|error| Cause::Own(error.to_string())),
        None => value.canonical().map_err(Cause::from),
    };
    let work = move || given.into_iter().map(prepare).collect::<Result<Vec<_>, _>>();
    let prepared = offload(size, work).await?;
    for (value, prepared) in values.into_iter().zip(prepared) {
        *value = prepared;
    }
    Ok(())
}

/// Upper bound of the stored size of `bytes` bytes of values: base64, plus nonce, tag and key name for each.
fn sealed_size(bytes: usize, keys: usize) -> usize {
    bytes
        .saturating_add(bytes / 2)
        .saturating_add(keys.saturating_mul(1024))
}

/// # Errors
/// [`Kind::TooLarge`] if a copy of `metadata` for each item would take too much memory.
pub fn check_metadata(items: usize, metadata: &Pairs) -> Result<(), Error> {
    let size = |(name, value): (&String, &String)| name.len() + value.len();
    let size: usize = metadata.iter().map(size).sum();
    if is_small(size, items) {
        return Ok(());
    }
    Err(Error::new(
        Kind::TooLarge,
        format!(
            "the metadata of the request have {size} bytes, which for {items} items is more than {MAX_METADATA}, the limit: \
             send fewer items at once, or less metadata"
        ),
    ))
}

/// Whether `size` bytes for each of `items` items fit in memory.
pub fn is_small(size: usize, items: usize) -> bool {
    size.saturating_mul(items) <= MAX_METADATA
}

#[cfg(test)]
mod tests {
    use outrigger_component::state::{Feature, Operation as Step, Query, QueryItem};
    use outrigger_component::{Metadata, Setup};
    use outrigger_offload::done_at_once;
    use outrigger_policy::resiliency::Resiliency;
    use outrigger_runtime::metrics::SidecarMetrics;
    use outrigger_telemetry::metrics::Metrics;

    use super::*;

    /// A store with encryption.
    async fn store() -> Store {
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let resilience = Resilience::new(Resiliency::none(), metrics);
        let setup = Setup {
            metadata: Metadata::new("store", []).unwrap(),
            app_id: "app".to_owned(),
        };
        let catalog = outrigger_components::builtin();
        let entry = catalog.state.find("state.in-memory", "v1").unwrap();
        let component = entry.build(setup).await.unwrap();
        let keys = Keys::parse(None, "store", "app", None).unwrap();
        let key = NamedKey::parse("key", &"0f".repeat(32)).unwrap();
        let cipher = Some(Cipher::new(key, None));
        Store::new("store", component, keys, cipher, &resilience, Secrets::default())
    }

    #[tokio::test]
    async fn encrypts_large_values_off_thread() {
        let store = store().await;
        // Half of the limit is still below it after encryption.
        for (size, at_once) in [(INLINE / 2, true), (INLINE + 1, false)] {
            let given = Bytes::from(vec![b'x'; size]);
            let set = Set {
                key: "k".to_owned(),
                value: Value::Bytes(given.clone()),
                ..Set::default()
            };
            let (was_at_once, saved) = done_at_once(store.save(vec![set])).await;
            assert_eq!(was_at_once, at_once, "{size} bytes to encrypt");
            saved.unwrap();
            let getting = store.get("k", Consistency::Unspecified, Pairs::new());
            let (was_at_once, found) = done_at_once(getting).await;
            assert_eq!(was_at_once, at_once, "{size} bytes to decrypt");
            assert!(found.unwrap().unwrap().data == given);
        }
    }

    #[tokio::test]
    async fn parses_large_actor_json_off_thread() {
        let store = store().await;
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let given = Bytes::from(format!("\"{}\"", "x".repeat(size - 2)));
            let set = Set {
                key: "k".to_owned(),
                value: Value::Json(given.clone()),
                ..Set::default()
            };
            let saving = store.transact_whole(vec![Step::Set(set)], Pairs::new(), None);
            let (was_at_once, saved) = done_at_once(saving).await;
            assert_eq!(was_at_once, at_once, "{size} bytes of JSON");
            saved.unwrap();
            let getting = store.get_whole("k".to_owned(), Consistency::Unspecified, Pairs::new());
            assert!(getting.await.unwrap().unwrap().data == given);
        }
    }

    /// A store that answers every query with all its keys, like a pluggable store that does not know the
    /// prefix.
    struct Shared;

    #[async_trait::async_trait]
    impl StateStore for Shared {
        fn features(&self) -> &[Feature] {
            &[Feature::Query]
        }

        async fn get(&self, _: &Get) -> outrigger_component::Result<Option<Item>> {
            Ok(None)
        }

        async fn set(&self, _: &Set) -> outrigger_component::Result<()> {
            Ok(())
        }

        async fn delete(&self, _: &Delete) -> outrigger_component::Result<()> {
            Ok(())
        }

        async fn query(&self, query: &Query, _: &Pairs, _: Bounds) -> outrigger_component::Result<QueryPage> {
            let keys = ["app||a", "other||b", "app||type||id||c", "d"];
            let keys = keys.into_iter().chain([query.prefix.as_str()]);
            let items = keys.map(|key| QueryItem {
                key: key.to_owned(),
                ..QueryItem::default()
            });
            Ok(QueryPage {
                items: items.collect(),
                ..QueryPage::default()
            })
        }

        async fn ping(&self) -> outrigger_component::Result<()> {
            Ok(())
        }

        async fn close(&self) {}
    }

    #[tokio::test]
    async fn query_filters_and_strips_prefix() {
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let resilience = Resilience::new(Resiliency::none(), metrics);
        for (strategy, found) in [(None, &["a", ""][..]), (Some("none"), &["d", ""])] {
            let keys = Keys::parse(strategy, "store", "app", None).unwrap();
            let store = Store::new(
                "store",
                Arc::new(Shared),
                keys,
                None,
                &resilience,
                Secrets::default(),
            );
            let page = store.query("{}".into(), &Pairs::new()).await.unwrap();
            let keys: Vec<_> = page.items.iter().map(|item| item.key.as_str()).collect();
            assert_eq!(keys, found, "{strategy:?}");
        }
    }

    #[test]
    fn bulk_get_counts_metadata_per_key() {
        let metadata = Pairs::from([("a".to_owned(), "x".repeat(1023))]);
        assert!(check_metadata(MAX_METADATA / 1024, &metadata).is_ok());
        let refused = check_metadata(MAX_METADATA / 1024 + 1, &metadata).unwrap_err();
        assert_eq!(refused.kind(), Kind::TooLarge);
        assert!(check_metadata(1 << 20, &Pairs::new()).is_ok());
    }
}
