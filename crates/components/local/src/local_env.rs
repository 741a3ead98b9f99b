//! `secretstores.local.env`: the sidecar's environment.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{Catalog, Entry, Pairs, Result, SecretStore, catalog::Version, secrets::Feature};

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .secrets
        .add(Entry::new(&["local.env"], Version::Only, |setup| async move {
            let prefix = setup.metadata.text(&["prefix"]).unwrap_or_default().to_owned();
            Ok(Arc::new(Environment { prefix }) as Arc<dyn SecretStore>)
        }));
}

struct Environment {
    /// Added to requested names and stripped from returned ones.
    prefix: String,
}

/// Excludes the sidecar's own variables, including its API tokens.
fn allowed(variable: &str) -> bool {
    let upper = variable.to_uppercase();
    upper != "APP_API_TOKEN" && !upper.starts_with("DAPR_")
}

#[async_trait]
impl SecretStore for Environment {
    fn features(&self) -> &[Feature] {
        &[]
    }

    async fn get(&self, name: &str, _metadata: &Pairs) -> Result<Pairs> {
        let variable = format!("{}{name}", self.prefix);
        let value = if allowed(&variable) {
            std::env::var_os(&variable)
        } else {
            tracing::warn!(target: "dapr.contrib", "Access to env var {name} is forbidden");
            None
        };
        // Like Dapr, an absent variable is an empty text.
        let value = value.map(|value| value.to_string_lossy().into_owned());
        Ok(Pairs::from([(name.to_owned(), value.unwrap_or_default())]))
    }

    async fn bulk_get(&self, _metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        let mut secrets = HashMap::new();
        for (variable, value) in std::env::vars_os() {
            let variable = variable.to_string_lossy();
            let name = variable
                .strip_prefix(&self.prefix)
                .filter(|name| !name.is_empty());
            if let Some(name) = name.filter(|_| allowed(&variable)) {
                let value = value.to_string_lossy().into_owned();
                secrets.insert(name.to_owned(), Pairs::from([(name.to_owned(), value)]));
            }
        }
        Ok(secrets)
    }
}
