//! `secretstores.local.file`: a JSON file, read once.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, Pairs, Result, SecretStore, catalog::Version, secrets::Feature,
};
use outrigger_files::read_async;
use serde_json::{Map, Value};

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .secrets
        .add(Entry::new(&["local.file"], Version::Only, |setup| async move {
            let secrets = read(&setup.metadata).await?;
            Ok(Arc::new(secrets) as Arc<dyn SecretStore>)
        }));
}

struct Secrets {
    secrets: HashMap<String, Pairs>,
    features: &'static [Feature],
}

async fn read(metadata: &Metadata) -> Result<Secrets> {
    let path = metadata.required(&["secretsFile"])?;
    let separator = metadata.filled(&["nestedSeparator"]).unwrap_or(":");
    let multi_valued = metadata.flag(&["multiValued"], false);
    let failed = |what: &str| {
        Error::new(Kind::Configuration, format!("secretsFile {path}: {what}")).about("secretsFile")
    };
    let unreadable = |error| failed("cannot be read").because(error);
    let text = read_async(path.as_ref()).await.map_err(unreadable)?;
    let document: Map<String, Value> =
        outrigger_go_json::from_slice(&text).map_err(|error| failed("not a JSON object").because(error))?;
    let secrets = if multi_valued {
        multiple(document, separator)
    } else {
        let flat =
            flatten(document, separator).map_err(|key| failed(&format!("the key {key} occurs twice")))?;
        flat.into_iter()
            .map(|(key, value)| (key.clone(), Pairs::from([(key, value)])))
            .collect()
    };
    Ok(Secrets {
        secrets,
        features: if multi_valued {
            &[Feature::MultipleKeyValues]
        } else {
            &[]
        },
    })
}

/// One secret per top-level member, with deeper levels flattened. Values other than texts and objects are
/// skipped.
fn multiple(document: Map<String, Value>, separator: &str) -> HashMap<String, Pairs> {
    let mut secrets = HashMap::new();
    for (name, value) in document {
        match value {
            Value::String(text) => {
                secrets.insert(name.clone(), Pairs::from([(name, text)]));
            }
            Value::Object(members) => {
                let mut secret = Pairs::new();
                for (member, value) in members {
                    // If two paths are equal, the first is kept and reading continues.
                    if let Err(path) = visit(&member, separator, value, &mut secret) {
                        tracing::warn!(
                            target: "dapr.contrib",
                            "local secret file: the path {path} of the secret {name} occurs twice; using \
                             the first one"
                        );
                    }
                }
                secrets.insert(name, secret);
            }
            _ => {}
        }
    }
    secrets
}

/// Every leaf by its path; the error is a duplicate path.
fn flatten(document: Map<String, Value>, separator: &str) -> Result<Pairs, String> {
    let mut flat = Pairs::new();
    visit("", separator, Value::Object(document), &mut flat)?;
    Ok(flat)
}

fn visit(path: &str, separator: &str, value: Value, flat: &mut Pairs) -> Result<(), String> {
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}{separator}{name}")
        }
    };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                visit(&below(&name), separator, member, flat)?;
            }
            Ok(())
        }
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                visit(&below(&index.to_string()), separator, item, flat)?;
            }
            Ok(())
        }
        leaf => {
            // Dapr writes numbers and booleans as a Go formatting error; this writes the value.
            let text = match leaf {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match flat.entry(path.to_owned()) {
                std::collections::hash_map::Entry::Occupied(_) => Err(path.to_owned()),
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(text);
                    Ok(())
                }
            }
        }
    }
}

#[async_trait]
impl SecretStore for Secrets {
    fn features(&self) -> &[Feature] {
        self.features
    }

    async fn get(&self, name: &str, _metadata: &Pairs) -> Result<Pairs> {
        self.secrets
            .get(name)
            .cloned()
            .ok_or_else(|| Error::new(Kind::NotFound, format!("secret {name} not found")))
    }

    async fn bulk_get(&self, _metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        Ok(self.secrets.clone())
    }
}
