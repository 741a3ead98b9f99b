//! A collection as it was last seen, and what changes in it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tokio::sync::broadcast;

use crate::kind::Kind;

/// Changes that wait for who follows them. Who falls further behind has to look at the collection again.
const CHANGES: usize = 1024;

/// What is read of objects of a kind.
pub trait Watched: PartialEq + Send + Sync + 'static {
    /// The kind.
    const KIND: Kind;

    /// Reads an object; nothing where it is of no interest.
    ///
    /// # Errors
    /// Why it cannot be used.
    fn read(meta: &Meta, object: Value) -> Result<Option<Self>, String>
    where
        Self: Sized;
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Meta {
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Meta {
    /// Of an object.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self {
            namespace: text("namespace"),
            name: text("name"),
        }
    }
}

/// Something happened to an object.
#[derive(Debug)]
pub struct Change<T> {
    /// Which.
    pub meta: Meta,
    /// As it was; nothing when it is new.
    pub old: Option<Arc<T>>,
    /// As it is; nothing when it is gone.
    pub new: Option<Arc<T>>,
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self {
            meta: self.meta.clone(),
            old: self.old.clone(),
            new: self.new.clone(),
        }
    }
}

/// The objects of a collection.
#[derive(Debug)]
pub struct Store<T> {
    objects: RwLock<HashMap<Meta, Arc<T>>>,
    changes: broadcast::Sender<Change<T>>,
}

impl<T: Watched> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: RwLock::default(),
            changes: broadcast::Sender::new(CHANGES),
        }
    }
}

impl<T: Watched> Store<T> {
    /// An object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let meta = Meta {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.read().get(&meta).cloned()
    }

    /// The objects of a namespace, by name.
    pub fn of_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let objects = self.read();
        let mut found: Vec<_> = objects
            .iter()
            .filter(|(meta, _)| meta.namespace == namespace)
            .collect();
        found.sort_by_key(|(meta, _)| &meta.name);
        found.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// All objects.
    pub fn all(&self) -> Vec<(Meta, Arc<T>)> {
        let objects = self.read();
        objects
            .iter()
            .map(|(meta, object)| (meta.clone(), Arc::clone(object)))
            .collect()
    }

    /// Follows changes from now on.
    pub fn follow(&self) -> broadcast::Receiver<Change<T>> {
        self.changes.subscribe()
    }

    /// The collection is this.
    pub(crate) fn replace(&self, items: Vec<Value>) {
        let mut objects = self.write();
        let mut gone = std::mem::take(&mut *objects);
        for item in items {
            let meta = Meta::of(&item);
            let old = gone.remove(&meta);
            match read::<T>(&meta, item) {
                Read::Object(new) => {
                    let same = old.as_ref().filter(|old| ***old == new).cloned();
                    if let Some(old) = same {
                        objects.insert(meta, old);
                        continue;
                    }
                    let new = Arc::new(new);
                    objects.insert(meta.clone(), Arc::clone(&new));
                    self.tell(meta, old, Some(new));
                }
                // What can no longer be read stays as it was.
                Read::Broken => drop(old.map(|old| objects.insert(meta, old))),
                Read::Nothing => {
                    if old.is_some() {
                        self.tell(meta, old, None);
                    }
                }
            }
        }
        for (meta, old) in gone {
            self.tell(meta, Some(old), None);
        }
    }

    /// An object was made, or changed.
    pub(crate) fn apply(&self, item: Value) {
        let meta = Meta::of(&item);
        match read::<T>(&meta, item) {
            Read::Object(new) => {
                let new = Arc::new(new);
                let old = match self.write().entry(meta.clone()) {
                    Entry::Occupied(entry) if *entry.get() == new => return,
                    Entry::Occupied(mut entry) => Some(entry.insert(Arc::clone(&new))),
                    Entry::Vacant(entry) => {
                        entry.insert(Arc::clone(&new));
                        None
                    }
                };
                self.tell(meta, old, Some(new));
            }
            Read::Broken => {}
            Read::Nothing => self.remove(meta),
        }
    }

    /// An object is gone.
    pub(crate) fn remove(&self, meta: Meta) {
        let old = self.write().remove(&meta);
        if old.is_some() {
            self.tell(meta, old, None);
        }
    }

    fn tell(&self, meta: Meta, old: Option<Arc<T>>, new: Option<Arc<T>>) {
        // Nobody may be following.
        let _ = self.changes.send(Change { meta, old, new });
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Meta, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Meta, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
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
                "cannot use {} {namespace}/{name}: {cause}; it stays as it was, correct it", T::KIND.plural
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

    fn told(changes: &mut broadcast::Receiver<Change<Thing>>) -> Vec<(String, Option<i64>, Option<i64>)> {
        let mut all = Vec::new();
        while let Ok(change) = changes.try_recv() {
            let number = |thing: Option<Arc<Thing>>| thing.map(|thing| thing.0);
            all.push((change.meta.name, number(change.old), number(change.new)));
        }
        all.sort();
        all
    }

    #[test]
    fn a_list_tells_only_what_is_different() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        store.replace(vec![thing("a", 1), thing("b", 2), thing("c", 3)]);
        assert_eq!(told(&mut changes).len(), 3);
        store.replace(vec![thing("a", 1), thing("b", 7), thing("d", 4)]);
        let expected = [
            ("b".to_owned(), Some(2), Some(7)),
            ("c".to_owned(), Some(3), None),
            ("d".to_owned(), None, Some(4)),
        ];
        assert_eq!(told(&mut changes), expected);
        assert_eq!(store.of_namespace("ns").len(), 3);
        assert!(store.of_namespace("other").is_empty());
    }

    #[test]
    fn what_cannot_be_read_any_more_stays_as_it_was() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        store.replace(vec![thing("a", 1)]);
        told(&mut changes);
        store.apply(thing("a", "x"));
        store.replace(vec![thing("a", "x")]);
        assert_eq!(told(&mut changes), []);
        assert_eq!(store.get("ns", "a").unwrap().0, 1);
    }

    #[test]
    fn single_changes_are_told_once() {
        let store = Store::<Thing>::default();
        let mut changes = store.follow();
        store.apply(thing("a", 1));
        store.apply(thing("a", 1));
        store.apply(thing("a", 2));
        store.apply(thing("a", Value::Null));
        store.remove(Meta::of(&thing("a", 2)));
        let expected = [
            ("a".to_owned(), None, Some(1)),
            ("a".to_owned(), Some(1), Some(2)),
            ("a".to_owned(), Some(2), None),
        ];
        assert_eq!(told(&mut changes), expected);
    }
}
