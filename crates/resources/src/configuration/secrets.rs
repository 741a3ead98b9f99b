//! `secrets.scopes`: which secrets an app may read.

use std::collections::HashSet;

use serde::Deserialize;

/// Rules for one secret store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretScope {
    /// The store; unique.
    pub store_name: String,
    /// `allow` (default) or `deny`, in any case.
    pub default_access: String,
    /// When not empty, only these may be read.
    pub allowed_secrets: Vec<String>,
    /// These may not be read; consulted only when `allowed_secrets` is empty.
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

/// Every store once, every access a known word.
pub(super) fn check(scopes: &[SecretScope]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for scope in scopes {
        let access = &scope.default_access;
        if !seen.insert(&scope.store_name) {
            return Err(format!(
                "{} storeName is repeated in secrets configuration",
                scope.store_name
            ));
        }
        if !(access.is_empty() || access.eq_ignore_ascii_case("allow") || access.eq_ignore_ascii_case("deny"))
        {
            return Err(format!("defaultAccess {access} can be either allow or deny"));
        }
    }
    Ok(())
}
