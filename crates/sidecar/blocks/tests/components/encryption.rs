//! State stores with encryption, and the sources of their keys.

use super::*;

/// A state store whose encryption key property is the secret `secret` of `store`.
fn encrypted(key: &str, store: &str, secret: &str) -> Component {
    let mut component = Component {
        kind: "state.in-memory".to_owned(),
        ..dependent("safe", store, secret)
    };
    component.metadata[0].name = key.to_owned();
    component
}

#[tokio::test]
async fn refuses_store_without_encryption_key() {
    let hex = vault("vault", "000102030405060708090a0b0c0d0e0f");
    let (result, _) = started(&[hex.clone(), encrypted("primaryEncryptionKey", "vault", "token")]).await;
    assert_eq!(result.unwrap().len(), 2);
    for key in ["primaryEncryptionKey", "secondaryEncryptionKey"] {
        for (vault, store, secret, cause) in [
            (
                &hex,
                "vault",
                "nosuch",
                "error getting secret nosuch from vault: 000102030405060708090a0b0c0d0e0f has no such secret",
            ),
            (
                &vault("vault", ""),
                "vault",
                "token",
                "the secret token of vault has no field token or an empty one",
            ),
            (&vault("vault", "xyz"), "vault", "token", ""),
            (
                &hex,
                "",
                "token",
                "no secret store is named; set auth.secretStore",
            ),
        ] {
            let (result, _) = started(&[vault.clone(), encrypted(key, store, secret)]).await;
            let error = result.err().unwrap().to_string();
            let code =
                "[CREATE_COMPONENT_FAILURE]: initialization error occurred for safe (state.in-memory/v1): ";
            let text = format!("{code}failed to extract encryption key: {key}: ");
            assert!(error.contains(&text) && error.contains(cause), "{error}");
        }
    }
    // In a cluster, the operator sends secret values with the component.
    let mut sent = encrypted("primaryEncryptionKey", "", "token");
    sent.metadata[0].value = Some("000102030405060708090a0b0c0d0e0f".to_owned());
    let (result, _) = started(&[sent.clone()]).await;
    assert_eq!(result.unwrap().len(), 1);
    sent.metadata[0].value = Some(String::new());
    let (result, _) = started(&[sent]).await;
    let error = result.err().unwrap().to_string();
    assert!(error.contains("in a cluster create the secret token"), "{error}");
    let mut field = encrypted("primaryEncryptionKey", "vault", "token");
    field.metadata[0].secret.as_mut().unwrap().key = "other".to_owned();
    let (result, _) = started(&[hex, field]).await;
    let error = result.err().unwrap().to_string();
    assert!(
        error.contains("the secret token of vault has no field other"),
        "{error}"
    );
}
