//! `HTTPEndpoint` (`dapr.io/v1alpha1`): an external service, invoked by name.

use outrigger_nearest::hint;
use serde::Deserialize;

use crate::load::{Broken, Document, Read, V1};
use crate::meta::{Auth, NameValue, ObjectMeta, Source};

/// An external service, invoked by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// `metadata.name`: the app ID for callers.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.baseUrl`: calls go to this URL, `/`, and the method.
    pub base_url: String,
    /// `spec.headers`: set on every call.
    pub headers: Vec<NameValue>,
    /// `spec.clientTLS`.
    pub tls: Option<ClientTls>,
    /// `auth.secretStore`; may be empty.
    pub secret_store: String,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Location of the definition.
    pub source: Source,
}

/// `spec.clientTLS`, with PEM documents. Each [`NameValue`] is named after its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// `rootCA`.
    pub root_ca: Option<NameValue>,
    /// `certificate`.
    pub certificate: Option<NameValue>,
    /// `privateKey`.
    pub private_key: Option<NameValue>,
    /// `renegotiation`: `Never`, `OnceAsClient` or `FreelyAsClient`; empty means `Never`. Others fail the
    /// channel.
    pub renegotiation: String,
}

impl HttpEndpoint {
    /// `NAME (BASEURL)`.
    pub fn log_name(&self) -> String {
        format!("{} ({})", self.name, self.base_url)
    }
}

impl Read for HttpEndpoint {
    const VERSIONS: &'static [&'static str] = &[V1];

    fn read(document: &mut Document<'_>, _: &str) -> Result<Option<Self>, Broken> {
        let (raw, source) = document.decode::<Raw>()?;
        let url = raw.spec.base_url.as_str();
        if url.is_empty() {
            document.warn(
                "spec.baseUrl is missing",
                "set spec.baseUrl to the URL of the service",
            );
        } else if let Some(near) = unusable(url) {
            let what = format!("spec.baseUrl {url:?} cannot be called: it is not an http:// or https:// URL");
            let remedy = near + "give http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]";
            document.warn_at(&source.of("spec.baseUrl"), what, &remedy);
        }
        Ok(Some(raw.finish(source)))
    }
}

/// A hint to put before the remedy, if `url` is unusable.
fn unusable(url: &str) -> Option<String> {
    const SCHEMES: [&str; 2] = ["http", "https"];
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let is_known = SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme));
    let has_host = !rest.is_empty() && !rest.starts_with(['/', '?', '#', ':']);
    match is_known {
        true if has_host => None,
        true => Some(String::new()),
        false => Some(hint(scheme, SCHEMES)),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: Spec,
    auth: Auth,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    base_url: String,
    headers: Vec<NameValue>,
    #[serde(rename = "clientTLS")]
    client_tls: Option<RawTls>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawTls {
    #[serde(rename = "rootCA")]
    root_ca: Option<NameValue>,
    certificate: Option<NameValue>,
    private_key: Option<NameValue>,
    renegotiation: String,
}

impl Raw {
    pub(crate) fn finish(self, source: Source) -> HttpEndpoint {
        let named = |name: &str, item: Option<NameValue>| {
            item.map(|i| NameValue {
                name: name.to_owned(),
                ..i
            })
        };
        HttpEndpoint {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            base_url: self.spec.base_url,
            headers: self.spec.headers,
            tls: self.spec.client_tls.map(|tls| ClientTls {
                root_ca: named("rootCA", tls.root_ca),
                certificate: named("certificate", tls.certificate),
                private_key: named("privateKey", tls.private_key),
                renegotiation: tls.renegotiation,
            }),
            secret_store: self.auth.secret_store,
            scopes: self.scopes,
            source,
        }
    }
}

/// The secrets referenced by an endpoint's TLS documents.
impl ClientTls {
    /// The configured documents, in the order root, certificate, key.
    pub fn documents(&self) -> impl Iterator<Item = &NameValue> {
        [&self.root_ca, &self.certificate, &self.private_key]
            .into_iter()
            .flatten()
    }
}
