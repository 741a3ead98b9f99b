//! The responses of the OIDC server, as a function of request line and hosts.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::{config::OidcConfig, jwt::JwtAuthority};

/// Paths of the endpoints, and allowed hosts.
#[derive(Debug)]
pub(crate) struct Endpoints {
    jwks: String,
    discovery: String,
    jwks_uri: Option<String>,
    issuer: Option<String>,
    allowed_hosts: Vec<String>,
    scheme: &'static str,
}

/// The relevant parts of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestParts<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub host: &'a str,
    pub forwarded_host: Option<&'a str>,
}

#[derive(Serialize)]
struct Discovery<'a> {
    issuer: &'a str,
    jwks_uri: &'a str,
    response_types_supported: [&'static str; 1],
    subject_types_supported: [&'static str; 1],
    id_token_signing_alg_values_supported: [&'static str; 1],
    scopes_supported: [&'static str; 1],
    claims_supported: [&'static str; 7],
}

impl Endpoints {
    pub(super) fn new(config: &OidcConfig, issuer: Option<String>) -> Self {
        let prefix = &config.path_prefix;
        Self {
            jwks: format!("{prefix}/jwks.json"),
            discovery: format!("{prefix}/.well-known/openid-configuration"),
            jwks_uri: config.jwks_uri.clone(),
            issuer,
            allowed_hosts: config.allowed_hosts.clone(),
            scheme: if config.tls.is_some() { "https" } else { "http" },
        }
    }

    pub(super) fn respond(
        &self,
        asked: &RequestParts<'_>,
        jwt: Option<&JwtAuthority>,
    ) -> Response<Full<Bytes>> {
        let is_jwks = asked.path == self.jwks;
        if !is_jwks && asked.path != self.discovery {
            return plain(StatusCode::NOT_FOUND, "404 page not found");
        }
        if !self.allows(asked) {
            return plain(StatusCode::FORBIDDEN, "Forbidden: unauthorized domain");
        }
        if asked.method != Method::GET {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed");
        }
        match jwt {
            Some(jwt) if is_jwks => json(jwt.jwks()),
            Some(jwt) => json(self.discovery(asked, jwt)),
            None if is_jwks => plain(StatusCode::NOT_FOUND, "JWKS not available"),
            None => plain(StatusCode::NOT_FOUND, "OIDC configuration not available"),
        }
    }

    fn allows_all(&self) -> bool {
        self.allowed_hosts.is_empty() || self.allowed_hosts.iter().any(|host| host == "*")
    }

    fn allows(&self, asked: &RequestParts<'_>) -> bool {
        let host = asked.forwarded_host.unwrap_or(asked.host);
        let allowed = |name: &str| self.allowed_hosts.iter().any(|host| host == name);
        self.allows_all() || allowed(host) || without_port(host).is_some_and(allowed)
    }

    fn discovery(&self, asked: &RequestParts<'_>, jwt: &JwtAuthority) -> Bytes {
        // Any client can send the forwarding header, so the host counts only after the check.
        let host = match asked.forwarded_host {
            Some(forwarded) if !self.allows_all() => forwarded,
            _ => asked.host,
        };
        let of_host;
        let issuer = match &self.issuer {
            Some(issuer) => issuer.as_str(),
            None => {
                of_host = format!("{}://{host}", self.scheme);
                &of_host
            }
        };
        let of_issuer;
        let jwks_uri = match &self.jwks_uri {
            Some(uri) => uri.as_str(),
            None => {
                of_issuer = format!("{}{}", origin(issuer), self.jwks);
                &of_issuer
            }
        };
        let document = Discovery {
            issuer,
            jwks_uri,
            response_types_supported: ["id_token"],
            subject_types_supported: ["public"],
            id_token_signing_alg_values_supported: [jwt.algorithm().as_str()],
            scopes_supported: ["openid"],
            claims_supported: ["sub", "iss", "aud", "exp", "iat", "nbf", "use"],
        };
        // Serializing plain strings cannot fail.
        serde_json::to_vec(&document).unwrap_or_default().into()
    }
}

/// Scheme and authority of a URL; empty if it has none.
fn origin(url: &str) -> &str {
    let Some(scheme) = url.find("://") else { return "" };
    let authority = scheme + "://".len();
    let end = url[authority..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |end| authority + end);
    &url[..end]
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn without_port(host: &str) -> Option<&str> {
    let (name, port) = host.rsplit_once(':')?;
    match name.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']'),
        None if name.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()) => None,
        None => Some(name),
    }
}

fn json(body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
