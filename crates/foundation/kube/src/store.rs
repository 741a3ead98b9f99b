//! A copy of a collection and its change notifications.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::kind::Kind;

/// Maximum bytes of a collection. A larger one is rejected, and the copy stays stale.
pub(crate) const MAX_HELD: usize = 256 << 20;
/// Changes queued per receiver, where all changes of a list are one. A receiver that lags further must read
/// the collection again.
const CHANGES: usize = 1024;

/// The parsed form of objects of a kind.
pub trait Watched: PartialEq + Send + Sync + 'static {
    /// The kind.
    const KIND: Kind;

    /// Parses an object; `None` if it is irrelevant.
    ///
    /// # Errors
    /// Why it is invalid.
    fn read(meta: &Meta, object: Value) -> Result<Option<Self>, String>
    where
        Self: Sized;

    /// Approximate memory in bytes, bounded by [`Store`].
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The identity of an object of a kind: namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Meta {
    /// Its namespace; empty if cluster-scoped.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl Meta {
    /// Reads the identity of an object.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self {
            namespace: text("namespace"),
            name: text("name"),
        }
    }
}

/// A change to an object.
#[derive(Debug)]
pub struct Change<T> {
    /// Namespace and name of the object.
    pub meta: Meta,
    /// The previous state; `None` if the object is new.
    pub old: Option<Arc<T>>,
    /// The new state; `None` if the object was deleted.
    pub new: Option<Arc<T>>,
    /// Time of the notification, equal for all receivers.
    pub at: Instant,
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self {
            meta: self.meta.clone(),
            old: self.old.clone(),
            new: self.new.clone(),
            at: self.at,
        }
    }
}

/// All changes of a list or an event: one entry in a receiver's queue, whatever their number.
pub type Changes<T> = Arc<[Change<T>]>;

/// The objects of a collection.
#[derive(Debug)]
pub struct Store<T> {
    contents: RwLock<Contents<T>>,
    changes: broadcast::Sender<Changes<T>>,
    /// Limit in bytes.
    most: usize,
}

/// Objects, and their total size in bytes.
#[derive(Debug)]
struct Contents<T> {
    objects: HashMap<Meta, Arc<T>>,
    bytes: usize,
}

impl<T: Watched> Default for Contents<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            bytes: 0,
        }
    }
}

impl<T: Watched> Contents<T> {
    fn insert(&mut self, meta: Meta, object: Arc<T>) -> Option<Arc<T>> {
        self.bytes += size(&meta, &*object);
        let bytes = size_of_meta(&meta);
        let old = self.objects.insert(meta, object);
        if let Some(old) = &old {
            self.bytes -= bytes + old.size();
        }
        old
    }

    fn remove(&mut self, meta: &Meta) -> Option<Arc<T>> {
        let old = self.objects.remove(meta)?;
        self.bytes -= size(meta, &*old);
        Some(old)
    }
}

fn size_of_meta(meta: &Meta) -> usize {
    size_of::<Meta>() + meta.namespace.len() + meta.name.len()
}

fn size<T: Watched>(meta: &Meta, object: &T) -> usize {
    size_of_meta(meta) + object.size()
}

fn too_large<T: Watched>(most: usize) -> ApiError {
    ApiError::TooLarge {
        what: format!("the copy of {}", T::KIND.plural),
        most,
    }
}

/// A collection being listed page by page, in parsed form.
pub(crate) struct Relisted<T> {
    /// `None` for an invalid object.
    objects: Vec<(Meta, Option<T>)>,
    /// Remaining bytes.
    left: usize,
    most: usize,
}

impl<T: Watched> Relisted<T> {
    /// Adds an object.
    ///
    /// # Errors
    /// [`ApiError::TooLarge`] if the collection exceeds the limit.
    pub(crate) fn take(&mut self, item: Value) -> Result<(), ApiError> {
        let meta = Meta::of(&item);
        let (bytes, object) = match read::<T>(&meta, item) {
            Read::Object(object) => (size(&meta, &object), Some(object)),
            Read::Broken => (size_of_meta(&meta), None),
            Read::Nothing => return Ok(()),
        };
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| too_large::<T>(self.most))?;
        self.objects.push((meta, object));
        Ok(())
    }
}

impl<T: Watched> Default for Store<T> {
    fn default() -> Self {
        Self {
            contents: RwLock::default(),
            changes: broadcast::Sender::new(CHANGES),
            most: MAX_HELD,
        }
    }
}

impl<T: Watched> Store<T> {
    /// A store limited to `most` bytes.
    #[cfg(test)]
    pub(crate) fn bounded(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// An object by name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let meta = Meta {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.read().objects.get(&meta).cloned()
    }

    /// The objects of a namespace, by name.
    pub fn of_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let contents = self.read();
        let mut found: Vec<_> = contents
            .objects
            .iter()
            .filter(|(meta, _)| meta.namespace == namespace)
            .collect();
        found.sort_by_key(|(meta, _)| &meta.name);
        found.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// All objects.
    pub fn all(&self) -> Vec<(Meta, Arc<T>)> {
        let contents = self.read();
        let objects = contents.objects.iter();
        objects
            .map(|(meta, object)| (meta.clone(), Arc::clone(object)))
            .collect()
    }

    /// An object that matches.
    pub fn find(&self, matches: impl Fn(&Meta, &T) -> bool) -> Option<(Meta, Arc<T>)> {
        let contents = self.read();
        let mut objects = contents.objects.iter();
        let (meta, object) = objects.find(|(meta, object)| matches(meta, object))?;
        Some((meta.clone(), Arc::clone(object)))
    }

    /// Subscribes to changes from now on.
    pub fn follow(&self) -> broadcast::Receiver<Changes<T>> {
        self.changes.subscribe()
    }

    /// Starts a list for [`Store::replace`].
    pub(crate) fn fresh(&self) -> Relisted<T> {
        Relisted {
            objects: Vec::new(),
            left: self.most,
            most: self.most,
        }
    }

    /// Replaces the collection.
    pub(crate) fn replace(&self, fresh: Relisted<T>) {
        let at = Instant::now();
        let mut contents = self.write();
        let mut gone = std::mem::take(&mut *contents).objects;
        let mut changes = Vec::new();
        for (meta, new) in fresh.objects {
            let old = gone.remove(&meta);
            match (new, old) {
                (None, None) => {}
                // An object that became invalid keeps its last valid state.
                (None, Some(old)) => drop(contents.insert(meta, old)),
                (Some(new), Some(old)) if *old == new => drop(contents.insert(meta, old)),
                (Some(new), old) => {
                    let new = Arc::new(new);
                    contents.insert(meta.clone(), Arc::clone(&new));
                    let new = Some(new);
                    changes.push(Change { meta, old, new, at });
                }
            }
        }
        for (meta, old) in gone {
            let (old, new) = (Some(old), None);
            changes.push(Change { meta, old, new, at });
        }
        if !changes.is_empty() {
            self.notify(changes.into());
        }
    }

    /// Adds or updates an object.
    ///
    /// # Errors
    /// [`ApiError::TooLarge`] if the collection would exceed the limit; it is then unchanged.
    pub(crate) fn apply(&self, item: Value) -> Result<(), ApiError> {
        let meta = Meta::of(&item);
        match read::<T>(&meta, item) {
            Read::Object(new) => {
                let mut contents = self.write();
                let old = contents.objects.get(&meta);
                if old.is_some_and(|old| **old == new) {
                    return Ok(());
                }
                let before = old.map_or(0, |old| size(&meta, &**old));
                if contents.bytes - before + size(&meta, &new) > self.most {
                    return Err(too_large::<T>(self.most));
                }
                let new = Arc::new(new);
                let old = contents.insert(meta.clone(), Arc::clone(&new));
                drop(contents);
                let (new, at) = (Some(new), Instant::now());
                self.notify([Change { meta, old, new, at }].into());
            }
            Read::Broken => {}
            Read::Nothing => self.remove(&meta),
        }
        Ok(())
    }

    /// Removes an object.
    pub(crate) fn remove(&self, meta: &Meta) {
        let old = self.write().remove(meta);
        if old.is_some() {
            let (meta, new, at) = (meta.clone(), None, Instant::now());
            self.notify([Change { meta, old, new, at }].into());
        }
    }

    fn notify(&self, changes: Changes<T>) {
        // There may be no receiver.
        let _ = self.changes.send(changes);
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents<T>> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Contents<T>> {
        self.contents.write().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Read<T> {
    Object(T),
    Nothing,
    Broken,
}

fn read<T: Watched>(meta: &Meta, item: Value) -> Read<T> {
    match T::read(meta, item) {
        Ok(Some(object)) => Read::Object(object),
        Ok(None) => Read::Nothing,
        Err(cause) => {
            let Meta { namespace, name } = meta;
            tracing::error!(
                target: "dapr.kubernetes",
                "cannot use {} {namespace}/{name}: {cause}; the last valid version stays in use, correct it", T::KIND.plural
            );
            Read::Broken
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq)]
    pub(crate) struct Thing(pub(crate) i64);

    impl Watched for Thing {
        const KIND: Kind = Kind::CONFIG_MAPS;

        fn read(_: &Meta, object: Value) -> Result<Option<Self>, String> {
            match &object["spec"] {
                Value::Null => Ok(None),
                value => value
                    .as_i64()
                    .map(|n| Some(Self(n)))
                    .ok_or_else(|| "no number".to_owned()),
            }
        }
    }

    pub(crate) fn thing(name: &str, spec: impl Into<Value>) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec.into()})
    }

    /// Size of an object with a one-letter name.
    pub(crate) fn thing_size() -> usize {
        size(&Meta::of(&thing("a", 1)), &Thing(1))
    }

    fn replace(store: &Store<Thing>, items: Vec<Value>) {
        let mut fresh = store.fresh();
        items.into_iter().for_each(|item| fresh.take(item).unwrap());
        store.replace(fresh);
    }

    fn received(
        changes: &mut broadcast::Receiver<Changes<Thing>>,
    ) -> Vec<(String, Option<i64>, Option<i64>)> {
        let mut all = Vec::new();
        while let Ok(changes) = changes.try_recv() {
            let number = |thing: &Option<Arc<Thing>>| thing.as_ref().map(|thing| thing.0);
            let each = changes.iter();
            all.extend(each.map(|one| (one.meta.name.clone(), number(&one.old), number(&one.new))));
        }
        all.sort();
        all
    }

    #[test]
    fn list_reports_differences_only() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        replace(&store, vec![thing("a", 1), thing("b", 2), thing("c", 3)]);
        assert_eq!(received(&mut changes).len(), 3);
        replace(&store, vec![thing("a", 1), thing("b", 7), thing("d", 4)]);
        let expected = [
            ("b".to_owned(), Some(2), Some(7)),
            ("c".to_owned(), Some(3), None),
            ("d".to_owned(), None, Some(4)),
        ];
        assert_eq!(received(&mut changes), expected);
        assert_eq!(store.of_namespace("ns").len(), 3);
        assert!(store.of_namespace("other").is_empty());
    }

    #[test]
    fn large_list_does_not_lag_receivers() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        let things = |number: usize| (0..number).map(|n| thing(&format!("n{n}"), 1)).collect();
        replace(&store, things(2 * CHANGES));
        assert_eq!(received(&mut changes).len(), 2 * CHANGES);
        replace(&store, things(2 * CHANGES));
        assert!(changes.is_empty(), "nothing is different");
        for n in 0..=CHANGES {
            store.apply(thing("a", n)).unwrap();
        }
        let behind = changes.try_recv();
        assert!(matches!(behind, Err(broadcast::error::TryRecvError::Lagged(1))));
    }

    #[test]
    fn invalid_update_keeps_last_state() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        replace(&store, vec![thing("a", 1)]);
        received(&mut changes);
        store.apply(thing("a", "x")).unwrap();
        replace(&store, vec![thing("a", "x")]);
        assert_eq!(received(&mut changes), []);
        assert_eq!(store.get("ns", "a").unwrap().0, 1);
    }

    #[test]
    fn reports_single_changes_once() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        store.apply(thing("a", 1)).unwrap();
        store.apply(thing("a", 1)).unwrap();
        store.apply(thing("a", 2)).unwrap();
        store.apply(thing("a", Value::Null)).unwrap();
        store.remove(&Meta::of(&thing("a", 2)));
        let expected = [
            ("a".to_owned(), None, Some(1)),
            ("a".to_owned(), Some(1), Some(2)),
            ("a".to_owned(), Some(2), None),
        ];
        assert_eq!(received(&mut changes), expected);
    }

    #[test]
    fn oversized_collection_is_unchanged() {
        let one = thing_size();
        let store = Store::<Thing>::bounded(2 * one);
        let mut changes = store.follow();
        replace(&store, vec![thing("a", 1), thing("b", 1)]);
        received(&mut changes);
        let too_large = |result| matches!(result, Err(ApiError::TooLarge { most, .. }) if most == 2 * one);
        assert!(too_large(store.apply(thing("c", 1))));
        let mut fresh = store.fresh();
        fresh.take(thing("a", 2)).unwrap();
        fresh.take(thing("b", 2)).unwrap();
        assert!(too_large(fresh.take(thing("c", 2))));
        assert_eq!(received(&mut changes), []);
        assert_eq!(store.get("ns", "a").unwrap().0, 1);
        // Replacements and deletions have room.
        store.apply(thing("a", 3)).unwrap();
        store.remove(&Meta::of(&thing("b", 1)));
        store.apply(thing("c", 1)).unwrap();
        assert!(too_large(store.apply(thing("b", 1))));
        replace(&store, vec![thing("d", 1)]);
        store.apply(thing("e", 1)).unwrap();
        assert_eq!(store.all().len(), 2);
    }
}
