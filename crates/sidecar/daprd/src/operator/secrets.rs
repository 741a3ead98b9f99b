//! Secrets of the cluster, which the operator looks up and inserts into resources in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_resources::NameValue;

use super::LOG;

/// The secret store that the operator serves; the default if a resource names none.
pub(crate) const STORE: &str = "kubernetes";

/// Decodes the secret values that the operator inserted into a resource, and clears its `store`, so that they
/// are not looked up again. A secret that the operator did not find has no value.
pub(crate) fn decode_all<'a>(
    store: &mut String,
    items: impl IntoIterator<Item = &'a mut NameValue>,
    resource: &str,
) {
    if store.is_empty() || store == STORE {
        store.clear();
        for item in items.into_iter().filter(|item| item.secret.is_some()) {
            decode(item, resource);
        }
    }
}

fn decode(item: &mut NameValue, resource: &str) {
    let Some(value) = item.value.take() else { return };
    let bytes = STANDARD.decode(&value).map_err(|error| error.to_string());
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()));
    match text {
        Ok(text) => item.value = Some(text),
        Err(error) => tracing::error!(
            target: LOG,
            "{resource}: the secret from the operator for {} cannot be decoded and is left empty: {error}",
            item.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outrigger_resources::load::{Kind, objects};

    use super::super::kinds::decode_secrets;
    use super::*;

    #[test]
    fn decodes_secrets_from_operator() {
        let component = |name: &str, store: &str| {
            let json = format!(
                r#"{{"metadata":{{"name":"{name}"}},"auth":{{"secretStore":"{store}"}},"spec":{{"type":"state.x","metadata":[
                    {{"name":"plain","value":"YQ=="}},
                    {{"name":"found","value":"c2VzYW1l","secretKeyRef":{{"name":"s","key":"k"}}}},
                    {{"name":"missing","secretKeyRef":{{"name":"s","key":"none"}}}},
                    {{"name":"odd","value":"?","secretKeyRef":{{"name":"s","key":"k"}}}}]}}}}"#
            );
            (Kind::Component, Bytes::from(json))
        };
        let endpoint = r#"{"metadata":{"name":"e"},"spec":{"baseUrl":"https://x","clientTLS":
            {"rootCA":{"value":"cGVt","secretKeyRef":{"name":"s","key":"k"}}},
            "headers":[{"name":"h","value":"c2VzYW1l","secretKeyRef":{"name":"s"}}]}}"#;
        let all = [
            component("none", ""),
            component("ours", "kubernetes"),
            component("other", "vault"),
            (Kind::HttpEndpoint, Bytes::from(endpoint)),
        ];
        let mut loaded = objects(all, "app").unwrap();
        decode_secrets(&mut loaded);
        for component in &loaded.components {
            let theirs = component.name == "other";
            let expected = if theirs { "c2VzYW1l" } else { "sesame" };
            assert_eq!(component.secret_store, if theirs { "vault" } else { "" });
            assert_eq!(component.property("plain"), Some("YQ=="));
            assert_eq!(component.property("found"), Some(expected));
            assert_eq!(component.property("missing"), None);
            assert_eq!(component.property("odd"), theirs.then_some("?"));
            assert!(
                component.metadata[1].secret.is_some(),
                "state encryption needs to know"
            );
        }
        let endpoint = &loaded.http_endpoints[0];
        assert_eq!(endpoint.headers[0].text(), "sesame");
        let root = endpoint.tls.as_ref().and_then(|tls| tls.root_ca.as_ref());
        assert_eq!(root.map(NameValue::text), Some("pem"));
    }
}
