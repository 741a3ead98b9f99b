//! `MCPServer` (`dapr.io/v1alpha1`): a server of the Model Context Protocol. Its tools are called as workflows.

mod check;

use std::time::Duration;

use serde::Deserialize;

use crate::load::{Broken, Document, Read, V1};
use crate::meta::{JsonText, NameValue, ObjectMeta, RawSecretKeyRef, SecretKeyRef, Source};
use crate::value::{ParseDurationError, go_duration};

/// Time limit of a call if the endpoint has none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A server of the Model Context Protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// `metadata.name`: part of the names of its workflows.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.endpoint`.
    pub endpoint: Endpoint,
    /// `spec.middleware`.
    pub middleware: Middleware,
    /// `spec.ignoreErrors`: an error does not end the sidecar.
    pub ignore_errors: bool,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Location of the definition.
    pub source: Source,
}

/// `spec.endpoint`: exactly one transport, see [`McpServer::check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// `streamableHTTP`.
    pub streamable_http: Option<Http>,
    /// `sse`: the transport of MCP before 2025.
    pub sse: Option<Http>,
    /// `stdio`: a subprocess.
    pub stdio: Option<Stdio>,
}

/// `streamableHTTP` and `sse`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Http {
    /// The URL of the server.
    pub url: String,
    /// The text of `timeout`; may be empty.
    pub timeout: String,
    /// Set on every request.
    pub headers: Vec<NameValue>,
    /// How requests are authenticated.
    pub auth: Auth,
}

/// `auth`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Auth {
    /// The store of secrets for `headers` and `oauth2`; may be empty.
    pub secret_store: String,
    /// OAuth 2.0 client credentials.
    pub oauth2: Option<OAuth2>,
    /// `spiffe.jwt`; not used with `oauth2`.
    pub spiffe: Option<SpiffeJwt>,
}

/// `auth.oauth2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OAuth2 {
    /// The URL of the token endpoint.
    pub issuer: String,
    /// The parameter `audience`; may be empty.
    pub audience: String,
    /// Requested scopes.
    pub scopes: Vec<String>,
    /// The client's ID; may be empty.
    pub client_id: String,
    /// The client's secret.
    pub secret: Option<SecretKeyRef>,
}

/// `auth.spiffe.jwt`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpiffeJwt {
    /// The header with the token.
    pub header: String,
    /// Text before the token.
    pub header_value_prefix: String,
    /// Audience of the token.
    pub audience: String,
}

/// `stdio`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Stdio {
    /// The program: a name on the path, or a path.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to its environment.
    pub env: Vec<NameValue>,
}

/// `spec.middleware`: workflows that run around the operations, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Middleware {
    /// Before a tool is called.
    pub before_call_tool: Vec<Hook>,
    /// After a tool was called.
    pub after_call_tool: Vec<Hook>,
    /// Before the tools are listed.
    pub before_list_tools: Vec<Hook>,
    /// After the tools were listed.
    pub after_list_tools: Vec<Hook>,
}

/// A hook workflow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// The workflow.
    pub workflow: HookWorkflow,
    /// Whether the output replaces the arguments or the result.
    pub mutate: bool,
}

/// `workflow` of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HookWorkflow {
    /// Its name.
    #[serde(rename = "workflowName")]
    pub name: String,
    /// The app that runs it; empty means this app.
    #[serde(rename = "appID")]
    pub app_id: String,
}

impl Http {
    /// The time limit of a call; 0 is no limit.
    ///
    /// # Errors
    /// `timeout` is no duration.
    pub fn timeout(&self) -> Result<Duration, ParseDurationError> {
        match self.timeout.as_str() {
            "" => Ok(DEFAULT_TIMEOUT),
            text => go_duration(text),
        }
    }
}

impl Endpoint {
    /// The HTTP transport, if it is one.
    pub fn http(&self) -> Option<&Http> {
        self.streamable_http.as_ref().or(self.sse.as_ref())
    }

    /// The store of the secrets that its items refer to; may be empty.
    pub fn secret_store(&self) -> &str {
        self.http().map_or("", |http| &http.auth.secret_store)
    }

    /// The items that may refer to secrets and variables: headers, or the environment of a subprocess.
    pub fn items_mut(&mut self) -> &mut [NameValue] {
        let Self {
            streamable_http,
            sse,
            stdio,
        } = self;
        match (streamable_http.as_mut().or(sse.as_mut()), stdio) {
            (Some(http), _) => &mut http.headers,
            (None, Some(stdio)) => &mut stdio.env,
            (None, None) => &mut [],
        }
    }
}

impl McpServer {
    /// `NAME (URL)`, or `NAME`. The parts of the URL that may be secret are left out.
    pub fn log_name(&self) -> String {
        match self.endpoint.http() {
            Some(http) => format!("{} ({})", self.name, public(&http.url)),
            None => self.name.clone(),
        }
    }
}

/// A URL without account, query and fragment.
fn public(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let part = |text: &str, ends: &[char]| text.find(ends).unwrap_or(text.len());
    let (authority, path) = rest.split_at(part(rest, &['/', '?', '#']));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}{host}{}", &path[..part(path, &['?', '#'])])
}

impl Read for McpServer {
    const VERSIONS: &'static [&'static str] = &[V1];

    fn read(document: &mut Document<'_>, _: &str) -> Result<Option<Self>, Broken> {
        let (raw, source) = document.decode::<Raw>()?;
        Ok(Some(raw.finish(source)))
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
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    /// Of no effect.
    #[serde(rename = "catalog")]
    _catalog: Option<JsonText>,
    endpoint: RawEndpoint,
    middleware: Middleware,
    ignore_errors: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEndpoint {
    #[serde(rename = "streamableHTTP")]
    streamable_http: Option<RawHttp>,
    sse: Option<RawHttp>,
    stdio: Option<Stdio>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawHttp {
    url: String,
    /// Of no effect: the version is negotiated.
    #[serde(rename = "protocolVersion")]
    _protocol_version: String,
    timeout: String,
    headers: Vec<NameValue>,
    auth: RawAuth,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawAuth {
    secret_store: String,
    oauth2: Option<RawOAuth2>,
    spiffe: RawSpiffe,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawOAuth2 {
    issuer: String,
    audience: String,
    scopes: Vec<String>,
    #[serde(rename = "clientID")]
    client_id: String,
    secret_key_ref: RawSecretKeyRef,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpiffe {
    jwt: Option<SpiffeJwt>,
}

impl Raw {
    pub(crate) fn finish(self, source: Source) -> McpServer {
        let endpoint = self.spec.endpoint;
        McpServer {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            endpoint: Endpoint {
                streamable_http: endpoint.streamable_http.map(RawHttp::finish),
                sse: endpoint.sse.map(RawHttp::finish),
                stdio: endpoint.stdio,
            },
            middleware: self.spec.middleware,
            ignore_errors: self.spec.ignore_errors,
            scopes: self.scopes,
            source,
        }
    }
}

impl RawHttp {
    fn finish(self) -> Http {
        let oauth2 = |raw: RawOAuth2| OAuth2 {
            issuer: raw.issuer,
            audience: raw.audience,
            scopes: raw.scopes,
            client_id: raw.client_id,
            secret: raw.secret_key_ref.into(),
        };
        Http {
            url: self.url,
            timeout: self.timeout,
            headers: self.headers,
            auth: Auth {
                secret_store: self.auth.secret_store,
                oauth2: self.auth.oauth2.map(oauth2),
                spiffe: self.auth.spiffe.jwt,
            },
        }
    }
}

#[cfg(test)]
mod tests;
