//! Following a store that tells of changes over a connection, beyond the end of that.

use std::time::Duration;

use async_trait::async_trait;
use outrigger_backoff::Backoff;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    Error, Kind, Result,
    configuration::{Item, Items, changes},
};

/// Before it is listened to again, from failure to failure.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// What a store that is listened to says.
#[derive(Debug)]
pub enum Heard {
    /// The item of this key is new, or gone.
    Change(String, Option<Item>),
    /// Nothing of interest.
    Nothing,
    /// Something changed that cannot be read now: all is to be read again.
    Missed,
}

/// Values of a store, as one subscription sees them.
#[async_trait]
pub trait Follow: Send + Sync {
    /// What is listened to.
    type Listener: Send;

    /// Listens, and reads after that: what changes in between is told twice rather than never.
    async fn resume(&self) -> Result<(Self::Listener, Items)>;

    /// What the store says next; `None` when the connection ended.
    async fn next(&self, listener: &mut Self::Listener) -> Option<Heard>;

    /// Logs why listening failed; it is tried again.
    fn failed(&self, error: &Error);
}

/// Tells of changes, and after a lost connection of what was missed, until nobody wants to know or the store is closed.
/// `known` is what the app knows.
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

    /// What each connection tells; `None` where it cannot be made.
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
    async fn what_was_missed_is_told_after_a_lost_connection() {
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
