//! `secrets.scopes`: the secrets an app may read.

use std::collections::HashSet;
use std::path::Path;

use outrigger_nearest::hint;
use serde::Deserialize;

use super::mistakes::items;
use crate::problem::Problem;
use crate::yaml::{self, Flavour, Node};

const ACCESS: [&str; 2] = ["allow", "deny"];

/// Rules for one secret store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretScope {
    /// The store; unique.
    pub store_name: String,
    /// `allow` (default) or `deny`, in any case.
    pub default_access: String,
    /// If not empty, only these may be read.
    pub allowed_secrets: Vec<String>,
    /// These must not be read; used only if `allowed_secrets` is empty.
    pub denied_secrets: Vec<String>,
}

impl SecretScope {
    /// Whether a secret may be read.
    pub fn allows(&self, secret: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|name| name == secret);
        if self.allowed_secrets.is_empty() {
            !listed(&self.denied_secrets) && !self.default_access.eq_ignore_ascii_case("deny")
        } else {
            listed(&self.allowed_secrets)
        }
    }
}

/// An error in a scope.
pub(super) struct ScopeError {
    /// Index of the scope.
    index: usize,
    key: &'static str,
    /// The text is Dapr's.
    pub(super) what: String,
    remedy: String,
}

/// Checks that stores are unique and access values are valid.
pub(super) fn check(scopes: &[SecretScope]) -> Vec<ScopeError> {
    let mut wrong = Vec::new();
    let mut seen = HashSet::new();
    for (index, scope) in scopes.iter().enumerate() {
        let SecretScope {
            store_name,
            default_access: access,
            ..
        } = scope;
        if !seen.insert(store_name) {
            wrong.push(ScopeError {
                index,
                key: "storeName",
                what: format!("{store_name} storeName is repeated in secrets configuration"),
                remedy: "write one scope for each store".to_owned(),
            });
        }
        let is_word = |word: &&str| access.eq_ignore_ascii_case(word);
        if !access.is_empty() && !ACCESS.iter().any(is_word) {
            wrong.push(ScopeError {
                index,
                key: "defaultAccess",
                what: format!("defaultAccess {access} can be either allow or deny"),
                remedy: format!("{}write allow or deny", hint(access, ACCESS)),
            });
        }
    }
    wrong
}

/// The errors in the scopes of a file, with their lines; `None` if it has no list of scopes.
pub(super) fn problems(file: &Path, document: &Node) -> Option<Vec<Problem>> {
    let list = document.get("spec")?.get("secrets")?.get("scopes")?;
    if list.is_null() {
        return None;
    }
    // Decoding the document reports undecodable scopes.
    let scopes = yaml::decode::<Vec<SecretScope>>(list, Flavour::Text).ok()?.value;
    let place = |wrong: ScopeError| {
        let scope = items(Some(list)).nth(wrong.index).map(|(_, scope)| scope);
        let value = scope.and_then(|scope| scope.get(wrong.key).or(Some(scope)));
        Problem::new(
            file,
            value.map_or(list.line, |value| value.line),
            wrong.what,
            wrong.remedy,
        )
    };
    Some(check(&scopes).into_iter().map(place).collect())
}
