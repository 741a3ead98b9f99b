//! Follows a store's change notifications across lost connections.

use std::time::Duration;

use async_trait::async_trait;
use outrigger_backoff::Backoff;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    Error, Kind, Result,
    configuration::{Item, Items, changes},
};

/// Backoff between attempts to listen.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A notification from the store.
#[derive(Debug)]
pub enum Heard {
    /// The item of this key was set, or removed if `None`.
    Change(String, Option<Item>),
    /// Nothing relevant.
    Nothing,
    /// A change that cannot be read now: read all values again.
    Missed,
}

/// The values that one subscription follows.
#[async_trait]
pub trait Follow: Send + Sync {
    /// The connection that notifications arrive on.
    type Listener: Send;

    /// Listens first and then reads, so that a change in between is reported twice rather than lost.
    async fn resume(&self) -> Result<(Self::Listener, Items)>;

    /// The next notification; `None` if the connection ended.
    async fn next(&self, listener: &mut Self::Listener) -> Option<Heard>;

    /// Logs why listening failed. The caller retries.
    fn failed(&self, error: &Error);
}

/// Reports changes, including those missed while disconnected, until the subscriber leaves or the store
/// closes. `known` are the values the app has.
pub async fn follow<F: Follow>(
    followed: &F,
    mut listener: F::Listener,
    mut known: Items,
    updates: mpsc::Sender<Items>,
) {
    let mut pauses = PAUSES;
    loop {
        while let Some(heard) = followed.next(&mut listener).await {
            pauses.reset();
            let (key, item) = match heard {
                Heard::Change(key, item) => (key, item),
                Heard::Nothing => continue,
                Heard::Missed => break,
            };
            match &item {
                Some(item) => known.insert(key.clone(), item.clone()),
                None => known.remove(&key),
            };
            let changed = Items::from([(key, item.unwrap_or_default())]);
            if updates.send(changed).await.is_err() {
                return;
            }
        }
        let current = loop {
            sleep(pauses.pause()).await;
            match followed.resume().await {
                Ok((again, current)) => {
                    listener = again;
                    break current;
                }
                Err(error) if error.kind() == Kind::Closed => return,
                Err(error) => followed.failed(&error),
            }
        };
        let missed = changes(&known, &current);
        known = current;
        if !missed.is_empty() && updates.send(missed).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::Mutex};

    use super::*;

    /// The notifications of each connection; `None` if it cannot be opened.
    struct Scripted(Mutex<VecDeque<Option<Script>>>);

    struct Script {
        items: Items,
        heard: VecDeque<Heard>,
    }

    #[async_trait]
    impl Follow for Scripted {
        type Listener = VecDeque<Heard>;

        async fn resume(&self) -> Result<(Self::Listener, Items)> {
            match self.0.lock().unwrap().pop_front() {
                Some(Some(script)) => Ok((script.heard, script.items)),
                Some(None) => Err(Error::new(Kind::Unavailable, "not now")),
                None => Err(Error::closed()),
            }
        }

        async fn next(&self, listener: &mut Self::Listener) -> Option<Heard> {
            listener.pop_front()
        }

        fn failed(&self, error: &Error) {
            assert_eq!(error.kind(), Kind::Unavailable);
        }
    }

    fn item(value: &str) -> Item {
        Item {
            value: value.to_owned(),
            ..Item::default()
        }
    }

    fn items<const N: usize>(all: [(&str, &str); N]) -> Items {
        let all = all.map(|(key, value)| (key.to_owned(), item(value)));
        Items::from(all)
    }

    #[tokio::test(start_paused = true)]
    async fn reports_changes_missed_while_disconnected() {
        let change = |key: &str, value: &str| Heard::Change(key.to_owned(), Some(item(value)));
        let heard = VecDeque::from([
            change("a", "2"),
            Heard::Nothing,
            Heard::Change("b".to_owned(), None),
            Heard::Missed,
            change("a", "never"),
        ]);
        let followed = Scripted(Mutex::new(VecDeque::from([
            None,
            Some(Script {
                items: items([("a", "2"), ("c", "1")]),
                heard: VecDeque::from([change("c", "2")]),
            }),
            Some(Script {
                items: items([("c", "2")]),
                heard: VecDeque::new(),
            }),
        ])));
        let (sender, mut updates) = mpsc::channel(8);
        follow(&followed, heard, items([("a", "1"), ("b", "1")]), sender).await;
        let mut told = Vec::new();
        while let Some(changed) = updates.recv().await {
            told.push(changed);
        }
        let expected = [
            items([("a", "2")]),
            items([("b", "")]),
            items([("c", "1")]),
            items([("c", "2")]),
            items([("a", "")]),
        ];
        assert_eq!(told, expected);
    }
}
