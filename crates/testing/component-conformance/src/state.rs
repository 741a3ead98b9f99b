mod bulk;
mod etag;
mod keys;
mod transaction;
mod ttl;
mod values;

use std::sync::Arc;

use bytes::Bytes;
use outrigger_component::{
    Kind, StateStore,
    state::{Delete, Feature, Get, Item, Set, Value},
};

use super::{Findings, Outcome, Step, ensure, unique};

/// Behaviour that differs between Dapr's stores.
#[derive(Debug, Clone, Copy)]
pub struct StateRules {
    /// Error kind of a write with a malformed ETag.
    pub alien_etag: Kind,
    /// Whether the store reports `ttlExpireTime`.
    pub reports_expiry: bool,
    /// Whether the store accepts JSON `null` as a value.
    pub takes_null: bool,
    /// Whether a failed bulk write reports only one error for all operations.
    pub bulk_fails_whole: bool,
    /// Whether a write with `only_new` is rejected for an existing key. (Pluggable stores do not receive the
    /// option.)
    pub rejects_existing_key: bool,
}

impl Default for StateRules {
    fn default() -> Self {
        Self {
            alien_etag: Kind::EtagMismatch,
            reports_expiry: true,
            takes_null: true,
            bulk_fails_whole: false,
            rejects_existing_key: true,
        }
    }
}

/// A store under test, with a key prefix for one rule.
struct Subject<'a> {
    store: &'a Arc<dyn StateStore>,
    rules: StateRules,
    corner: String,
}

impl Subject<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}||{name}", self.corner)
    }

    fn has(&self, feature: Feature) -> bool {
        self.store.features().contains(&feature)
    }

    fn write(&self, name: &str, value: &str) -> Set {
        Set {
            key: self.key(name),
            value: Value::Bytes(Bytes::copy_from_slice(value.as_bytes())),
            ..Set::default()
        }
    }

    fn removal(&self, name: &str, etag: Option<&str>) -> Delete {
        Delete {
            key: self.key(name),
            etag: etag.map(str::to_owned),
            ..Delete::default()
        }
    }

    async fn put(&self, name: &str, value: &str) -> Outcome {
        self.store.set(&self.write(name, value)).await.step("set")
    }

    async fn item(&self, name: &str) -> Result<Option<Item>, String> {
        self.store.get(&Get::key(self.key(name))).await.step("get")
    }

    async fn text(&self, name: &str) -> Result<Option<String>, String> {
        let item = self.item(name).await?;
        Ok(item.map(|item| String::from_utf8_lossy(&item.data).into_owned()))
    }

    async fn etag(&self, name: &str) -> Result<String, String> {
        let item = self
            .item(name)
            .await?
            .ok_or_else(|| format!("{name} is absent"))?;
        item.etag.ok_or_else(|| format!("{name} has no etag"))
    }

    /// Checks that `name` has `value`, or is absent.
    async fn holds(&self, name: &str, value: Option<&str>) -> Outcome {
        let found = self.text(name).await?;
        ensure!(
            found.as_deref() == value,
            "{name} holds {found:?}, expected {value:?}"
        );
        Ok(())
    }
}

/// Checks that the call failed with this kind.
fn refused<T>(what: &str, result: outrigger_component::Result<T>, kind: Kind) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what} succeeded, expected {kind:?}")),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(format!("{what} failed with {error:?}, expected {kind:?}")),
    }
}

macro_rules! run {
    ($findings:ident, $subject:expr, $($module:ident :: $rule:ident),+ $(,)?) => {
        $( $findings.note(stringify!($rule), $module::$rule(&$subject(stringify!($rule))).await); )+
    };
}

/// Runs all rules for state stores. The store may hold other data.
///
/// # Panics
/// If a rule is broken.
pub async fn state(store: &Arc<dyn StateStore>, rules: StateRules) {
    let mut findings = Findings::new("state store");
    let run = unique();
    let subject = |rule: &str| Subject {
        store,
        rules,
        // The braces keep a rule on one cluster node, where transactions are atomic.
        corner: format!("{{{run}}}-{rule}"),
    };
    run!(
        findings,
        subject,
        values::absent_is_none,
        values::bytes_come_back,
        values::json_comes_back,
        values::a_write_replaces,
        values::large_values,
        values::a_delete_removes,
        values::store_responds,
        keys::unusual_keys,
        keys::keys_are_exact,
        keys::an_empty_key_is_refused,
        keys::patterns_find_keys,
        keys::patterns_page,
        keys::a_prefix_deletes,
        bulk::bulk_get_answers_in_order,
        bulk::bulk_get_stops_at_bound,
        bulk::bulk_set_reports_failures,
        bulk::bulk_delete_reports_failures,
    );
    if store.features().contains(&Feature::Etag) {
        run!(
            findings,
            subject,
            etag::each_write_has_its_etag,
            etag::a_write_needs_the_current_etag,
            etag::a_delete_needs_the_current_etag,
            etag::an_alien_etag_is_refused,
            etag::first_write_wins,
            etag::concurrent_writers_lose_nothing,
            etag::one_of_many_first_writers_wins,
        );
    }
    if store.features().contains(&Feature::Ttl) {
        run!(
            findings,
            subject,
            ttl::values_expire,
            ttl::a_write_without_ttl_stays,
            ttl::an_expired_value_is_gone_for_etags,
            ttl::a_wrong_ttl_is_refused,
        );
    }
    if store.features().contains(&Feature::Transactional) {
        run!(
            findings,
            subject,
            transaction::applies_all_operations,
            transaction::one_failure_aborts_all,
            transaction::only_new_writes_once,
            transaction::operations_keep_their_order,
            transaction::returns_new_etag,
            transaction::empty_transaction_succeeds,
            transaction::values_expire,
            transaction::readers_see_all_or_nothing,
        );
    } else {
        run!(findings, subject, transaction::unsupported_is_reported);
    }
    findings.finish();
}

/// Closes the store and checks that later calls fail at once.
///
/// # Panics
/// If a rule is broken.
pub async fn state_after_close(store: &Arc<dyn StateStore>) {
    let mut findings = Findings::new("closed state store");
    store.close().await;
    store.close().await;
    let get = store.get(&Get::key("key")).await;
    findings.note("get fails", refused("get", get, Kind::Closed));
    let set = store
        .set(&Set {
            key: "key".to_owned(),
            ..Set::default()
        })
        .await;
    findings.note("set fails", refused("set", set, Kind::Closed));
    findings.finish();
}
