//! A minimal client for four endpoints of a Consul agent.

use std::{path::Path, time::Duration};

use outrigger_webclient::{BodyError, Secrets, builder, causes, read_body};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

use super::{
    config::{Client, Query},
    tls,
};

/// Timeout of a non-blocking request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait time of a blocking query.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Added to the wait time for the timeout: the agent adds up to a sixteenth, and the network takes time.
const WAIT_SLACK: Duration = Duration::from_secs(15);
/// Maximum size of a response in bytes.
const MAX_BODY: usize = 8 << 20;
/// Characters of an error body to report.
const MAX_SHOWN: usize = 200;

/// Why a request to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The address does not form a valid URL.
    #[error("the address of the Consul agent is not usable: {0}")]
    Address(String),
    /// A certificate, key or token file is unusable.
    #[error("cannot use {path}: {cause}")]
    File {
        /// The file or directory.
        path: String,
        /// The cause.
        cause: String,
    },
    /// Invalid TLS configuration.
    #[error("TLS: {0}")]
    Tls(String),
    /// No response.
    #[error("{0}")]
    Http(String),
    /// A non-success status.
    #[error("Consul agent answered {status}: {body}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Start of the body.
        body: String,
    },
    /// A malformed response.
    #[error("malformed response of the Consul agent: {0}")]
    Answer(String),
}

/// An instance of a service.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    #[serde(rename = "Node", default)]
    pub(super) node: Node,
    #[serde(rename = "Service")]
    pub(super) service: Service,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Node {
    #[serde(rename = "Address", default)]
    pub(super) address: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Service {
    #[serde(rename = "ID", default)]
    pub(super) id: String,
    #[serde(rename = "Address", default)]
    pub(super) address: String,
    #[serde(rename = "Meta", default)]
    pub(super) meta: Option<std::collections::HashMap<String, String>>,
}

pub(super) struct Agent {
    http: reqwest::Client,
    base: Url,
    config: Client,
    token: Option<String>,
}

impl Agent {
    pub(super) fn new(config: Client) -> Result<Self, AgentError> {
        let base = format!("{}://{}/v1/", config.scheme, config.address);
        let base = Url::parse(&base).map_err(|error| AgentError::Address(format!("{base}: {error}")))?;
        let token = match &config.token_file {
            Some(path) => Some(read(Path::new(path))?.trim().to_owned()),
            None => config.token.clone(),
        };
        let mut tls = tls::client_config(&config)?;
        if config.server_name.is_some() {
            // The configured server name replaces the URL's for verification. A URL without a name has none
            // to send as SNI.
            tls.enable_sni = false;
        }
        let http = builder(tls)
            .no_proxy()
            .connect_timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(|error| AgentError::Http(causes(&error)))?;
        Ok(Self {
            http,
            base,
            config,
            token,
        })
    }

    /// Checks that the agent responds.
    pub(super) async fn check(&self) -> Result<(), AgentError> {
        let request = self.http.get(self.url(&["agent", "self"])?);
        self.send(request.timeout(REQUEST_TIMEOUT), None).await.map(drop)
    }

    pub(super) async fn register(&self, body: &Value) -> Result<(), AgentError> {
        let request = self.http.put(self.url(&["agent", "service", "register"])?);
        let request = request
            .header("content-type", "application/json")
            .body(body.to_string());
        self.send(request.timeout(REQUEST_TIMEOUT), None).await.map(drop)
    }

    pub(super) async fn deregister(&self, id: &str) -> Result<(), AgentError> {
        let request = self.http.put(self.url(&["agent", "service", "deregister", id])?);
        self.send(request.timeout(REQUEST_TIMEOUT), None).await.map(drop)
    }

    /// The passing instances of a service, and the index of this state. Given an index, waits until the
    /// state is newer or the wait time ends.
    pub(super) async fn healthy(
        &self,
        service: &str,
        query: &Query,
        after: Option<u64>,
    ) -> Result<(Vec<Instance>, u64), AgentError> {
        let mut url = self.url(&["health", "service", service])?;
        let mut timeout = REQUEST_TIMEOUT;
        {
            let mut pairs = url.query_pairs_mut();
            pairs.append_pair("passing", "1");
            for (key, value) in &query.parameters {
                pairs.append_pair(key, value);
            }
            if let Some(datacenter) = &self.config.datacenter
                && !query.parameters.iter().any(|(key, _)| *key == "dc")
            {
                pairs.append_pair("dc", datacenter);
            }
            match after {
                Some(index) if index > 0 => {
                    let wait = query.wait_time.or(self.config.wait_time).unwrap_or(DEFAULT_WAIT);
                    pairs.append_pair("index", &index.to_string());
                    pairs.append_pair("wait", &format!("{}ms", wait.as_millis()));
                    timeout = wait + wait / 16 + WAIT_SLACK;
                }
                Some(_) => {}
                // The agent's cache serves single lookups, not watches.
                None if query.use_cache => {
                    pairs.append_key_only("cached");
                }
                None => {}
            }
        }
        let mut request = self.http.get(url).timeout(timeout);
        if let Some(directives) = query.cache_control.as_deref().filter(|_| after.is_none()) {
            request = request.header("cache-control", directives);
        }
        let response = self.send(request, query.token.as_deref()).await?;
        let index = response.headers().get("x-consul-index");
        let index = index
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        let body = body(response).await?;
        let instances =
            serde_json::from_slice(&body).map_err(|error| AgentError::Answer(error.to_string()))?;
        Ok((instances, index))
    }

    fn url(&self, segments: &[&str]) -> Result<Url, AgentError> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut path) => {
                path.pop_if_empty().extend(segments);
            }
            Err(()) => return Err(AgentError::Address(self.base.to_string())),
        }
        Ok(url)
    }

    async fn send(&self, mut request: RequestBuilder, token: Option<&str>) -> Result<Response, AgentError> {
        if let Some(token) = token.or(self.token.as_deref()) {
            request = request.header("x-consul-token", token);
        }
        if let Some((user, password)) = &self.config.basic_auth {
            request = request.basic_auth(user, Some(password));
        }
        let response = request
            .send()
            .await
            .map_err(|error| AgentError::Http(causes(&error)))?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let body = body(response).await.unwrap_or_default();
        let password = self
            .config
            .basic_auth
            .as_ref()
            .map(|(_, password)| password.as_str());
        let secrets = Secrets::new([token.or(self.token.as_deref()), password].into_iter().flatten());
        let text = secrets.redact(&String::from_utf8_lossy(&body));
        Err(AgentError::Status {
            status: status.as_u16(),
            body: text.trim().chars().take(MAX_SHOWN).collect(),
        })
    }
}

async fn body(response: Response) -> Result<Vec<u8>, AgentError> {
    let body = read_body(response, MAX_BODY).await;
    body.map_err(|error| match error {
        BodyError::Http(error) => AgentError::Http(causes(&error)),
        large @ BodyError::TooLarge(_) => AgentError::Answer(large.to_string()),
    })
}

pub(super) fn read(path: &Path) -> Result<String, AgentError> {
    outrigger_files::read_text(path).map_err(|error| AgentError::File {
        path: path.display().to_string(),
        cause: error.to_string(),
    })
}
