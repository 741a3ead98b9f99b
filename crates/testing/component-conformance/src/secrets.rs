use std::{collections::HashMap, sync::Arc};

use outrigger_component::{Pairs, SecretStore};

use super::{Findings, Outcome, Step, ensure};

/// Content of the store under test.
pub struct ExpectedSecrets {
    /// Secrets that must exist; others may exist.
    pub present: HashMap<String, Pairs>,
    /// Names that must be unreadable, individually and in bulk.
    pub hidden: Vec<String>,
}

/// Runs all rules for secret stores.
///
/// # Panics
/// If a rule is broken.
pub async fn secrets(store: &Arc<dyn SecretStore>, expected: &ExpectedSecrets) {
    let mut findings = Findings::new("secret store");
    findings.note("each secret is found", each(store, expected).await);
    findings.note("all secrets are found", all(store, expected).await);
    findings.note("hidden secrets are not found", hidden(store, expected).await);
    findings.note("the store answers", store.ping().await.step("ping"));
    findings.finish();
}

async fn each(store: &Arc<dyn SecretStore>, expected: &ExpectedSecrets) -> Outcome {
    for (name, secret) in &expected.present {
        let found = store.get(name, &Pairs::new()).await.step(name)?;
        ensure!(found == *secret, "{name} is {found:?}, expected {secret:?}");
    }
    Ok(())
}

async fn all(store: &Arc<dyn SecretStore>, expected: &ExpectedSecrets) -> Outcome {
    let found = store.bulk_get(&Pairs::new()).await.step("bulk")?;
    for (name, secret) in &expected.present {
        ensure!(
            found.get(name) == Some(secret),
            "{name} is {:?}, expected {secret:?}",
            found.get(name)
        );
    }
    Ok(())
}

async fn hidden(store: &Arc<dyn SecretStore>, expected: &ExpectedSecrets) -> Outcome {
    let all = store.bulk_get(&Pairs::new()).await.step("bulk")?;
    for name in &expected.hidden {
        let found = store.get(name, &Pairs::new()).await.unwrap_or_default();
        ensure!(
            found.values().all(String::is_empty),
            "{name} can be read: {found:?}"
        );
        ensure!(!all.contains_key(name), "{name} is among all secrets");
    }
    Ok(())
}
