//! A map that is cheap to clone at any size: clones share a lower layer, and each keeps its own changes.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A map in two layers: one shared by clones, and the changes of this clone.
#[derive(Clone, Debug)]
pub(crate) struct Layered<K, V> {
    shared: Arc<BTreeMap<K, V>>,
    /// `None`: removed.
    own: BTreeMap<K, Option<V>>,
    len: usize,
}

impl<K, V> Default for Layered<K, V> {
    fn default() -> Self {
        Self {
            shared: Arc::default(),
            own: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<K: Ord + Clone, V: Clone> Layered<K, V> {
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match self.own.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.shared.get(key),
        }
    }

    pub(crate) fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.len += usize::from(!self.contains(&key));
        match Arc::get_mut(&mut self.shared) {
            Some(shared) if self.own.is_empty() => {
                shared.insert(key, value);
            }
            _ => {
                self.own.insert(key, Some(value));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if !self.contains(key) {
            return;
        }
        self.len -= 1;
        match Arc::get_mut(&mut self.shared) {
            Some(shared) if self.own.is_empty() => {
                shared.remove(key);
            }
            _ => {
                self.own.insert(key.clone(), None);
            }
        }
    }

    /// Merges both layers. Costs as much as the changes if no clone shares the lower layer, and as much as
    /// the whole map otherwise.
    pub(crate) fn settle(&mut self) {
        if self.own.is_empty() {
            return;
        }
        let shared = Arc::make_mut(&mut self.shared);
        for (key, changed) in std::mem::take(&mut self.own) {
            match changed {
                Some(value) => shared.insert(key, value),
                None => shared.remove(&key),
            };
        }
    }

    /// All entries in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.range(..)
    }

    /// The entries of a key range, in order.
    pub(crate) fn range<R: RangeBounds<K> + Clone>(
        &self,
        keys: R,
    ) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V, R> {
        let mut shared = self.shared.range(keys.clone()).peekable();
        let mut own = self.own.range(keys).peekable();
        std::iter::from_fn(move || {
            loop {
                let is_own = match (shared.peek(), own.peek()) {
                    (None, None) => return None,
                    (None, Some(_)) => true,
                    (Some(_), None) => false,
                    (Some((lower, _)), Some((upper, _))) => upper <= lower,
                };
                if !is_own {
                    return shared.next();
                }
                let (key, changed) = own.next()?;
                shared.next_if(|(lower, _)| *lower == key);
                if let Some(value) = changed {
                    return Some((key, value));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random changes of clones, compared with a standard map.
    #[test]
    fn clones_are_independent() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut pairs = vec![(Layered::default(), BTreeMap::new())];
        for _ in 0..20_000 {
            let index = usize::try_from(random(pairs.len() as u64)).unwrap();
            let (layered, plain) = &mut pairs[index];
            let key = random(40);
            match random(8) {
                0..=3 => {
                    let value = random(1000);
                    layered.insert(key, value);
                    plain.insert(key, value);
                }
                4 | 5 => {
                    layered.remove(&key);
                    plain.remove(&key);
                }
                6 => layered.settle(),
                _ => {
                    let copy = pairs[index].clone();
                    if pairs.len() < 6 {
                        pairs.push(copy);
                    } else {
                        pairs.remove(0);
                    }
                    continue;
                }
            }
            assert_eq!(layered.get(&key), plain.get(&key));
            assert_eq!(layered.len(), plain.len());
            assert!(layered.iter().eq(plain.iter()));
            assert!(layered.range(10..30).eq(plain.range(10..30)));
        }
    }

    #[test]
    fn settle_reuses_unshared_layer() {
        let mut first: Layered<i32, ()> = Layered::default();
        (0..1000).for_each(|key| first.insert(key, ()));
        let mut next = first.clone();
        next.insert(1000, ());
        assert_eq!(next.own.len(), 1);
        let shared = Arc::as_ptr(&next.shared);
        drop(first);
        next.settle();
        assert_eq!((next.own.len(), next.len()), (0, 1001));
        assert_eq!(Arc::as_ptr(&next.shared), shared, "it was not copied");
    }
}
