//! `envRef`: values from the environment, with restrictions.

use crate::meta::NameValue;

/// An item without a value, or with an empty one, because of its variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The item's name.
    pub item: String,
    /// The variable.
    pub variable: String,
    /// Why it has no value.
    pub reason: Reason,
}

/// Why a variable has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Unset: the value is empty.
    Unset,
    /// Never available to resources.
    Reserved,
    /// Not on the allow list.
    NotListed,
}

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            item,
            variable,
            reason,
        } = self;
        let text = match reason {
            Reason::Unset => "is not set: the value is empty; set it, or correct envRef",
            Reason::Reserved => {
                "may not be read by resources: APP_API_TOKEN, what begins with DAPR_ and names with spaces are not \
                 for them; use another one"
            }
            Reason::NotListed => "may not be read by resources: DAPR_ENV_KEYS does not have it; add it there",
        };
        write!(f, "{item}: the environment variable {variable:?} {text}")
    }
}

/// Sets the values of items with an `envRef` and no value. Returns items whose variable is not allowed,
/// which stay without a value, and items whose variable is unset, which are empty.
///
/// `allowlist` is the content of `DAPR_ENV_KEYS`.
pub fn resolve(
    items: &mut [NameValue],
    allowlist: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Vec<Unresolved> {
    let mut unresolved = Vec::new();
    for item in items.iter_mut().filter(|item| item.value.is_none()) {
        let Some(variable) = item.env.take() else { continue };
        let reason = if !allowed(&variable, "") {
            Reason::Reserved
        } else if !allowed(&variable, allowlist) {
            Reason::NotListed
        } else if let Some(value) = env(&variable) {
            item.value = Some(value);
            continue;
        } else {
            item.value = Some(String::new());
            Reason::Unset
        };
        let item = item.name.clone();
        unresolved.push(Unresolved {
            item,
            variable,
            reason,
        });
    }
    unresolved
}

/// Whether resources may read a variable: not Dapr's own, no tokens, and on the space-separated allow list
/// if there is one. Compares the name in upper case.
pub fn allowed(name: &str, allowlist: &str) -> bool {
    let name = name.to_uppercase();
    let reserved =
        name.is_empty() || name == "APP_API_TOKEN" || name.starts_with("DAPR_") || name.contains(' ');
    !reserved && (allowlist.is_empty() || allowlist.split(' ').any(|word| word == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_reserved_names() {
        for bad in [
            "",
            "APP_API_TOKEN",
            "app_api_token",
            "DAPR_API_TOKEN",
            "dapr_x",
            "A B",
        ] {
            assert!(!allowed(bad, ""), "{bad}");
        }
        assert!(allowed("MY_VAR", ""));
    }

    #[test]
    fn allow_list_matches_whole_words() {
        assert!(allowed("MY_VAR", "OTHER MY_VAR"));
        assert!(allowed("my_var", "MY_VAR"));
        assert!(!allowed("VAR", "OTHER MY_VAR"));
        assert!(!allowed("MY", "MY_VAR"));
    }

    #[test]
    fn values_override_references() {
        let item = |value: Option<&str>, env: &str| NameValue {
            name: "x".into(),
            value: value.map(Into::into),
            secret: None,
            env: Some(env.into()),
        };
        let mut items = [
            item(None, "SET"),
            item(Some("kept"), "SET"),
            item(None, "UNSET"),
            item(None, "DAPR_X"),
        ];
        let unresolved = resolve(&mut items, "", |name| (name == "SET").then(|| "found".to_owned()));
        let values: Vec<_> = items.iter().map(|i| i.value.as_deref()).collect();
        assert_eq!(values, [Some("found"), Some("kept"), Some(""), None]);
        let of: Vec<_> = unresolved.iter().map(|it| (&*it.variable, it.reason)).collect();
        assert_eq!(of, [("UNSET", Reason::Unset), ("DAPR_X", Reason::Reserved)]);
    }

    #[test]
    fn reports_unresolved_variables() {
        let mut items = ["UNSET", "dapr_x", "OTHER"].map(|variable| NameValue {
            name: "redisHost".into(),
            env: Some(variable.into()),
            ..NameValue::default()
        });
        let unresolved = resolve(&mut items, "UNSET", |_| None);
        let told: Vec<_> = unresolved.iter().map(ToString::to_string).collect();
        for (told, (variable, cause)) in told.iter().zip([
            ("UNSET", "is not set: the value is empty"),
            ("dapr_x", "APP_API_TOKEN"),
            ("OTHER", "DAPR_ENV_KEYS does not have it"),
        ]) {
            let start = format!("redisHost: the environment variable {variable:?} ");
            assert!(told.starts_with(&start) && told.contains(cause), "{told}");
        }
        assert_eq!(told.len(), 3);
    }
}
