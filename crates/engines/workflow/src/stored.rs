//! The state-store layout of an instance, shared by all sidecars of a deployment.

use std::collections::BTreeSet;

use bytes::Bytes;
use outrigger_wire::durabletask::backend::v1::BackendWorkflowStateMetadata;
use outrigger_wire::durabletask::{HistoryEvent, PropagatedHistory};
use prost::Message as _;
use serde::Deserialize;

use crate::error::StoredError;
use crate::instance::Instance;
use crate::names::{CUSTOM_STATUS, METADATA, PROPAGATED_HISTORY, history_key, inbox_key};
use crate::signing::{MAX_ROWS, RowCounts, Tables};

/// Maximum entries of a history and of an inbox: keys have six digits.
pub(crate) const MAX_ENTRIES: usize = 999_999;

/// A change to store in one transaction. Keys are relative to the actor's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Keys to set.
    pub upserts: Vec<(String, Bytes)>,
    /// Keys to delete.
    pub deletes: Vec<String>,
    /// Counts stored before; `None` if nothing was.
    before: Option<Counts>,
    /// Counts stored afterwards; empty for a removal.
    after: Counts,
    /// For a removal: the entry with the end event.
    end: Option<String>,
}

impl Change {
    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.upserts.len() + self.deletes.len()
    }

    /// Whether there is nothing to store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits the change into transactions of at most `most` operations, to be stored in this order. A reader
    /// in between, or after a crash, finds the instance as before or as after the change.
    ///
    /// Entries that [`METADATA`] does not count yet come first, then one transaction with all visible
    /// changes, then the deletion of entries no longer counted. Each transaction writes [`METADATA`]. Its
    /// ETag locks out a host that has lost the instance. It also records how far uncounted entries reach; the
    /// next change or a purge deletes them.
    ///
    /// A removal has no atomic moment: [`METADATA`] and the end event are deleted last. The remainder after a
    /// crash is unreadable, but [`Instance::salvage`] finds all its keys and that it may be removed.
    ///
    /// Visible changes are never split: a transaction may exceed `most` if a workflow continues as new with
    /// more events than that.
    #[must_use]
    pub fn split(self, most: usize) -> Vec<Self> {
        if self.len() <= most {
            return vec![self];
        }
        let at_once = most.saturating_sub(1).max(1);
        let mut changes = Vec::new();
        let is_metadata = |key: &String| key == METADATA;
        let before = self.before.unwrap_or_default();
        let metadata = |counts: Counts| (METADATA.to_owned(), counts.encoded());
        if self.deletes.iter().any(is_metadata) {
            let is_last = |key: &String| is_metadata(key) || Some(key) == self.end.as_ref();
            let (last, first): (Vec<_>, Vec<_>) = self.deletes.into_iter().partition(is_last);
            let parts = first
                .chunks(at_once)
                .map(|part| (vec![metadata(before)], part.to_vec()));
            let parts = parts.chain([(Vec::new(), last)]);
            return parts
                .map(|(upserts, deletes)| Self::of(upserts, deletes))
                .collect();
        }
        let reach = before.reaches().max(self.after.reaches());
        let old = metadata(Counts { reach, ..before });
        let new = metadata(Counts { reach, ..self.after });
        let is_hidden = |(key, _): &(String, Bytes)| !before.has(key);
        let (hidden, mut seen): (Vec<_>, Vec<_>) = self.upserts.into_iter().partition(is_hidden);
        for part in hidden.chunks(at_once) {
            let upserts = part.iter().chain([&old]).cloned().collect();
            changes.push(Self::of(upserts, Vec::new()));
        }
        // The received history of an earlier execution is visible: its deletion comes first.
        let are_visible = usize::from(self.deletes.first().is_some_and(|key| key == PROPAGATED_HISTORY));
        let mut deletes = self.deletes.into_iter();
        let room = most.saturating_sub(seen.len()).max(are_visible);
        let first = deletes.by_ref().take(room).collect();
        let deletes: Vec<_> = deletes.collect();
        if !deletes.is_empty() {
            seen.retain(|(key, _)| !is_metadata(key));
            seen.push(new.clone());
        }
        changes.push(Self::of(seen, first));
        let mut parts = deletes.chunks(at_once).peekable();
        while let Some(part) = parts.next() {
            let metadata = match parts.peek() {
                Some(_) => new.clone(),
                None => metadata(self.after),
            };
            changes.push(Self::of(vec![metadata], part.to_vec()));
        }
        changes
    }

    fn of(upserts: Vec<(String, Bytes)>, deletes: Vec<String>) -> Self {
        Self {
            upserts,
            deletes,
            ..Self::default()
        }
    }
}

/// The number of stored entries of an instance; the value of [`METADATA`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inbox entries.
    pub inbox: usize,
    /// History entries.
    pub history: usize,
    /// Number of the execution.
    pub generation: u64,
    /// Rows of a signed instance.
    pub rows: RowCounts,
    /// An impossible row count in the metadata of a signed instance: the kind of row and the count.
    pub flaw: Option<(&'static str, u64)>,
    /// How far uncounted entries may reach after an interrupted multi-transaction change.
    pub reach: Reach,
    /// Its end terminates children; see [`Instance::cascade`].
    pub cascades: bool,
}

/// Upper bounds of entries, counted or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    inbox: usize,
    history: usize,
    rows: RowCounts,
}

impl Reach {
    fn max(self, other: Self) -> Self {
        Self {
            inbox: self.inbox.max(other.inbox),
            history: self.history.max(other.history),
            rows: self.rows.max(other.rows),
        }
    }
}

/// Our fields in the value of [`METADATA`]; Dapr's sidecars skip them.
#[derive(Clone, PartialEq, prost::Message)]
struct OwnFields {
    #[prost(uint64, tag = "1001")]
    inbox: u64,
    #[prost(uint64, tag = "1002")]
    history: u64,
    #[prost(bool, tag = "1003")]
    cascades: bool,
    #[prost(uint64, tag = "1004")]
    signatures: u64,
    #[prost(uint64, tag = "1005")]
    certificates: u64,
    #[prost(uint64, tag = "1006")]
    external: u64,
}

/// The format before protobuf.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct OldMetadata {
    inbox_length: u64,
    history_length: u64,
    generation: u64,
}

impl Counts {
    /// Decodes the value of [`METADATA`], in the current or the old format.
    ///
    /// # Errors
    /// [`StoredError::Malformed`].
    pub fn read(instance: &str, value: &[u8]) -> Result<Self, StoredError> {
        let malformed = |why: String| StoredError::Malformed {
            instance: instance.to_owned(),
            key: METADATA.to_owned(),
            why,
        };
        let mut own = OwnFields::default();
        let stored = if value.first() == Some(&b'{') {
            let old: OldMetadata =
                serde_json::from_slice(value).map_err(|error| malformed(error.to_string()))?;
            BackendWorkflowStateMetadata {
                inbox_length: old.inbox_length,
                history_length: old.history_length,
                generation: old.generation,
                ..BackendWorkflowStateMetadata::default()
            }
        } else {
            let unread = |error: prost::DecodeError| malformed(error.to_string());
            own = OwnFields::decode(value).map_err(unread)?;
            BackendWorkflowStateMetadata::decode(value).map_err(unread)?
        };
        let count = |length: u64| match usize::try_from(length) {
            Ok(length) if length <= MAX_ENTRIES => Ok(length),
            _ => Err(malformed(format!("{length} entries, more than {MAX_ENTRIES}"))),
        };
        let mut flaw = None;
        let mut rows = |name: &'static str, length: u64| {
            let bounded = usize::try_from(length).ok().filter(|length| *length <= MAX_ROWS);
            bounded.unwrap_or_else(|| {
                flaw = Some((name, length));
                0
            })
        };
        Ok(Self {
            inbox: count(stored.inbox_length)?,
            history: count(stored.history_length)?,
            generation: stored.generation,
            rows: RowCounts {
                signatures: rows("signatures", stored.signature_length),
                certificates: rows("signing certificates", stored.signing_certificate_length),
                external: rows(
                    "external signing certificates",
                    stored.external_signing_certificate_length,
                ),
            },
            reach: Reach {
                inbox: count(own.inbox)?,
                history: count(own.history)?,
                rows: RowCounts {
                    signatures: count(own.signatures)?,
                    certificates: count(own.certificates)?,
                    external: count(own.external)?,
                },
            },
            cascades: own.cascades,
            flaw,
        })
    }

    /// Whether a key belongs to the instance or is written with each change.
    fn has(&self, key: &str) -> bool {
        let within = |prefix: &str, len: usize| {
            let index = key
                .strip_prefix(prefix)
                .and_then(|index| index.parse::<usize>().ok());
            index.map(|index| index < len)
        };
        let tables = [
            ("history-", self.history),
            ("inbox-", self.inbox),
            ("signature-", self.rows.signatures),
            ("sigcert-", self.rows.certificates),
            ("ext-sigcert-", self.rows.external),
        ];
        let mut tables = tables.into_iter();
        tables
            .find_map(|(prefix, len)| within(prefix, len))
            .unwrap_or(true)
    }

    /// Encodes the value of [`METADATA`].
    #[must_use]
    pub fn encoded(&self) -> Bytes {
        let length = |entries: usize| u64::try_from(entries).unwrap_or(u64::MAX);
        let metadata = BackendWorkflowStateMetadata {
            inbox_length: length(self.inbox),
            history_length: length(self.history),
            generation: self.generation,
            signature_length: length(self.rows.signatures),
            signing_certificate_length: length(self.rows.certificates),
            external_signing_certificate_length: length(self.rows.external),
        };
        let own = OwnFields {
            inbox: length(self.reach.inbox),
            history: length(self.reach.history),
            cascades: self.cascades,
            signatures: length(self.reach.rows.signatures),
            certificates: length(self.reach.rows.certificates),
            external: length(self.reach.rows.external),
        };
        // Concatenated protobuf messages are merged.
        let mut encoded = metadata.encode_to_vec();
        encoded.extend(own.encode_to_vec());
        encoded.into()
    }

    /// Upper bounds of the entries in the store.
    fn reaches(&self) -> Reach {
        let counted = Reach {
            inbox: self.inbox,
            history: self.history,
            rows: self.rows,
        };
        counted.max(self.reach)
    }

    /// Whether only uncounted entries exist.
    fn is_left_over(&self) -> bool {
        self.inbox == 0 && self.history == 0 && self.reach != Reach::default()
    }

    /// The possible keys of the instance, history before inbox.
    pub fn keys(&self) -> impl Iterator<Item = String> + use<> {
        let Reach { inbox, history, rows } = self.reaches();
        let entries = (0..history).map(history_key).chain((0..inbox).map(inbox_key));
        let rows = rows.keys_after(RowCounts::default());
        let single = [CUSTOM_STATUS, PROPAGATED_HISTORY].map(str::to_owned);
        entries.chain(single).chain(rows)
    }
}

impl Instance {
    /// Reads an instance. `value` returns the values of [`Counts::keys`].
    ///
    /// # Errors
    /// [`StoredError`].
    pub fn read(
        id: &str,
        counts: Counts,
        value: impl FnMut(&str) -> Option<Bytes>,
    ) -> Result<Self, StoredError> {
        let mut values = Values::new(value);
        let mut entry = |table: &'static str, length: usize, key: String| {
            let encoded = values.get(&key).ok_or_else(|| StoredError::Missing {
                instance: id.to_owned(),
                table,
                key: key.clone(),
                length,
            })?;
            let event = HistoryEvent::decode(encoded.clone()).map_err(|error| StoredError::Malformed {
                instance: id.to_owned(),
                key,
                why: error.to_string(),
            })?;
            Ok((event, encoded))
        };
        let mut instance = Self::new(id);
        instance.generation = counts.generation;
        for index in 0..counts.history {
            let (event, encoded) = entry("history", counts.history, history_key(index))?;
            instance.facts.add(&event);
            instance.history.push(&encoded);
        }
        for index in 0..counts.inbox {
            instance
                .inbox
                .push(entry("inbox", counts.inbox, inbox_key(index))?.0);
        }
        instance.custom_status = values
            .get(CUSTOM_STATUS)
            .and_then(|status| custom_status(id, &status).transpose())
            .transpose()?;
        instance.received = values
            .get(PROPAGATED_HISTORY)
            .filter(|received| !received.is_empty());
        if let Some(received) = &instance.received {
            PropagatedHistory::decode(received.clone()).map_err(|error| StoredError::Malformed {
                instance: id.to_owned(),
                key: PROPAGATED_HISTORY.to_owned(),
                why: error.to_string(),
            })?;
        }
        instance.signing = Tables::read(counts.rows, |key| values.get(key));
        let Reach { inbox, history, rows } = counts.reaches();
        let uncounted = (counts.history..history).map(history_key);
        let uncounted = uncounted.chain((counts.inbox..inbox).map(inbox_key));
        let uncounted = uncounted.chain(rows.keys_after(counts.rows));
        uncounted.for_each(|key| drop(values.get(&key)));
        instance.absent = values.absent;
        instance.stored = Some(counts);
        Ok(instance)
    }

    /// Reads what is needed to remove an instance with broken state, from its readable entries.
    #[must_use]
    pub fn salvage(id: &str, counts: Counts, value: impl FnMut(&str) -> Option<Bytes>) -> Self {
        let mut values = Values::new(value);
        let mut instance = Self::new(id);
        instance.generation = counts.generation;
        let mut keys = counts.keys();
        for key in keys.by_ref().take(counts.history) {
            match values
                .get(&key)
                .and_then(|encoded| HistoryEvent::decode(encoded).ok())
            {
                Some(event) => drop(instance.facts.add(&event)),
                None => instance.facts.len += 1,
            }
        }
        keys.for_each(|key| drop(values.get(&key)));
        instance.absent = values.absent;
        instance.stored = Some(counts);
        instance
    }

    /// The changes since the last store; assumes they will be stored. If storing fails, the instance must be
    /// read again.
    pub(crate) fn change(&mut self) -> Change {
        self.change_from(
            self.stored().history.min(self.history.len()),
            self.stored().inbox.min(self.inbox.len()),
        )
    }

    /// As [`Instance::change`], with entries replaced from these indexes on.
    pub(crate) fn change_from(&mut self, history: usize, inbox: usize) -> Change {
        let mut change = Change {
            before: self.stored,
            ..Change::default()
        };
        let new_history = history < self.history.len() || self.history.len() != self.stored().history;
        for index in history..self.history.len() {
            let encoded = self.history.get(index).unwrap_or_default();
            change.upserts.push((history_key(index), encoded));
        }
        for (index, event) in self.inbox.iter().enumerate().skip(inbox) {
            change
                .upserts
                .push((inbox_key(index), event.encode_to_vec().into()));
        }
        if new_history {
            let status = self.custom_status.clone().unwrap_or_default();
            change
                .upserts
                .push((CUSTOM_STATUS.to_owned(), status.encode_to_vec().into()));
        }
        let had = |key: &str| self.stored.is_some() && !self.absent.contains(key);
        let (had_status, had_received) = (had(CUSTOM_STATUS), had(PROPAGATED_HISTORY));
        let received = self.received.clone().filter(|_| self.received_anew);
        let drops_received = self.received_anew && self.received.is_none() && had_received;
        change
            .upserts
            .extend(received.map(|received| (PROPAGATED_HISTORY.to_owned(), received)));
        let reach = self.stored().reaches();
        let surplus = (self.history.len()..reach.history).map(history_key);
        let surplus = surplus.chain((self.inbox.len()..reach.inbox).map(inbox_key));
        let surplus = surplus.chain(reach.rows.keys_after(self.signing.counts()));
        let surplus = surplus.filter(|key| !self.absent.contains(key));
        let received = drops_received.then(|| PROPAGATED_HISTORY.to_owned());
        change.deletes = received.into_iter().chain(surplus).collect();
        // After this change the store has all other counted keys.
        let has_received = match self.received_anew {
            true => self.received.is_some(),
            false => had_received,
        };
        self.received_anew = false;
        self.absent.clear();
        let absent = [
            (CUSTOM_STATUS, new_history || had_status),
            (PROPAGATED_HISTORY, has_received),
        ];
        let absent = absent.into_iter().filter(|(_, is_stored)| !is_stored);
        self.absent.extend(absent.map(|(key, _)| key.to_owned()));
        let counts = Counts {
            inbox: self.inbox.len(),
            history: self.history.len(),
            generation: self.generation,
            rows: self.signing.counts(),
            cascades: self.cascades(),
            ..Counts::default()
        };
        change.upserts.extend(self.signing.take_unstored());
        change.after = counts;
        change.upserts.push((METADATA.to_owned(), counts.encoded()));
        self.stored = Some(counts);
        change
    }

    /// Adds the rows that the store lacks to a change. The metadata stay last.
    pub(crate) fn add_rows(&mut self, change: &mut Change) {
        let rows = self.signing.take_unstored();
        change.upserts.pop();
        change
            .deletes
            .retain(|key| rows.iter().all(|(row, _)| row != key));
        change.upserts.extend(rows);
        change.after.rows = self.signing.counts();
        change.upserts.push((METADATA.to_owned(), change.after.encoded()));
        self.stored = Some(change.after);
    }

    /// As [`Instance::change_from`], with these inbox entries replaced too.
    pub(crate) fn change_with(&mut self, history: usize, inbox: usize, replaced: &BTreeSet<usize>) -> Change {
        let mut change = self.change_from(history, inbox);
        let mut upserts: Vec<(String, Bytes)> = replaced
            .range(..inbox)
            .filter_map(|index| Some((inbox_key(*index), self.inbox.get(*index)?.encode_to_vec().into())))
            .collect();
        // The metadata stay last.
        upserts.append(&mut change.upserts);
        change.upserts = upserts;
        change
    }

    /// Whether only remains of an interrupted first change exist.
    #[must_use]
    pub fn is_left_over(&self) -> bool {
        self.stored().is_left_over()
    }

    /// Removes all stored entries, [`METADATA`] last. Absent keys are skipped, because some stores fail to
    /// delete them.
    #[must_use]
    pub fn removal(&self) -> Change {
        let stored = self.stored();
        let keys = stored.keys().filter(|key| !self.absent.contains(key));
        let end = self.facts.completed.as_ref().map(|completed| completed.entry);
        Change {
            before: Some(stored),
            end: end.map(history_key),
            ..Change::of(Vec::new(), keys.chain([METADATA.to_owned()]).collect())
        }
    }
}

/// Values read from the store, and requested keys that are absent.
struct Values<F> {
    value: F,
    absent: BTreeSet<String>,
}

impl<F: FnMut(&str) -> Option<Bytes>> Values<F> {
    fn new(value: F) -> Self {
        let absent = BTreeSet::new();
        Self { value, absent }
    }

    fn get(&mut self, key: &str) -> Option<Bytes> {
        let found = (self.value)(key);
        if found.is_none() {
            self.absent.insert(key.to_owned());
        }
        found
    }
}

/// Decodes the value of [`CUSTOM_STATUS`], in the current format or the old one, JSON.
fn custom_status(instance: &str, value: &[u8]) -> Result<Option<String>, StoredError> {
    let malformed = |why: String| StoredError::Malformed {
        instance: instance.to_owned(),
        key: CUSTOM_STATUS.to_owned(),
        why,
    };
    let text = match value.first() {
        // The message's only field has tag 10, and no JSON value starts with that byte: the status is empty.
        None => return Ok(None),
        Some(b'"') => serde_json::from_slice(value).map_err(|error| malformed(error.to_string()))?,
        Some(b'n') if value == b"null" => return Ok(None),
        Some(_) => String::decode(value).map_err(|error| malformed(error.to_string()))?,
    };
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests;
