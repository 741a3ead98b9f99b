//! `envRef`: values taken from the environment, within limits.

use crate::meta::NameValue;

/// Fills items that have an `envRef` and no value. Returns the names of variables that may not be used;
/// their items stay without value.
///
/// `allowlist` is the content of `DAPR_ENV_KEYS`; an unset variable gives an empty value.
pub fn resolve(
    items: &mut [NameValue],
    allowlist: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut refused = Vec::new();
    for item in items.iter_mut().filter(|item| item.value.is_none()) {
        let Some(name) = item.env.take() else { continue };
        if allowed(&name, allowlist) {
            item.value = Some(env(&name).unwrap_or_default());
        } else {
            refused.push(name);
        }
    }
    refused
}

/// Whether a variable may be read on behalf of a resource: none of Dapr's own, no tokens, and in the
/// space-separated allow list when there is one. The name is compared in upper case.
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
    fn reserved_names_are_refused() {
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
    fn the_allow_list_takes_whole_words() {
        assert!(allowed("MY_VAR", "OTHER MY_VAR"));
        assert!(allowed("my_var", "MY_VAR"));
        assert!(!allowed("VAR", "OTHER MY_VAR"));
        assert!(!allowed("MY", "MY_VAR"));
    }

    #[test]
    fn values_win_over_references() {
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
        let refused = resolve(&mut items, "", |name| (name == "SET").then(|| "found".to_owned()));
        let values: Vec<_> = items.iter().map(|i| i.value.as_deref()).collect();
        assert_eq!(values, [Some("found"), Some("kept"), Some(""), None]);
        assert_eq!(refused, ["DAPR_X"]);
    }
}
