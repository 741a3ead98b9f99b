use outrigger_component::{Kind, Metadata, Setup, catalog::Entry};
use tokio::time::timeout;

use super::{Findings, Outcome, SOON, Step, ensure};

/// Checks that invalid properties are rejected. Each item of `wrong` is a property name that the error must
/// contain, and properties with an invalid value for it.
///
/// # Panics
/// If one is accepted or not named.
pub async fn settings<T: ?Sized>(entry: &Entry<T>, wrong: &[(&str, &[(&str, &str)])]) {
    let mut findings = Findings::new("settings");
    for (name, properties) in wrong {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let named = match Metadata::new("under-test", owned) {
            Ok(metadata) => named(entry, metadata, name).await,
            Err(error) => Err(error.to_string()),
        };
        findings.note(&format!("{properties:?}"), named);
    }
    findings.finish();
}

async fn named<T: ?Sized>(entry: &Entry<T>, metadata: Metadata, name: &str) -> Outcome {
    let setup = Setup {
        metadata,
        app_id: "app".to_owned(),
    };
    match timeout(SOON, entry.build(setup)).await.step("its error")? {
        Ok(_) => Err("it is taken".to_owned()),
        Err(error) => {
            ensure!(error.kind() == Kind::Configuration, "{:?}: {error}", error.kind());
            ensure!(error.to_string().contains(name), "{name} is not named: {error}");
            Ok(())
        }
    }
}
