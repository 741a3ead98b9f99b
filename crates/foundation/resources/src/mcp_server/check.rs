//! Checks of an `MCPServer`, with place and remedy.

use std::path::Path;

use super::{Http, McpServer, Middleware, Stdio};
use crate::problem::Problem;

const HTTP: &str = "give http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]";
const SET: &str = "set it, or leave the section out";

/// A problem of a value, and its place.
struct Fault {
    /// Path of the value below `spec`; empty for all of it.
    path: String,
    what: String,
    remedy: &'static str,
    /// Whether a sidecar must not use such a value, as opposed to a malformed resource.
    is_unsafe: bool,
}

impl Fault {
    fn invalid(path: impl Into<String>, what: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            path: path.into(),
            what: what.into(),
            remedy,
            is_unsafe: false,
        }
    }

    fn insecure(path: impl Into<String>, what: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            is_unsafe: true,
            ..Self::invalid(path, what, remedy)
        }
    }
}

impl McpServer {
    /// The first problem that prevents its use: in a cluster (`kubernetes`), or in the working directory
    /// `directory`.
    ///
    /// # Errors
    /// The problem, with the place of the value.
    pub fn check(&self, kubernetes: bool, directory: &Path) -> Result<(), Problem> {
        let fault = self.fault(kubernetes, directory);
        let Some(fault) = fault else { return Ok(()) };
        let (name, what) = (&self.name, &fault.what);
        let value = match fault.path.as_str() {
            "" => "spec".to_owned(),
            path => format!("spec.{path}"),
        };
        let what = match fault.is_unsafe {
            true => format!("MCPServer {name:?} failed security validation: MCPServer {name:?}: {what}"),
            false => format!("MCPServer {name:?} failed validation: {value}: {what}"),
        };
        let place = self.source.of(self.given(&value));
        Err(Problem::new(&place.file, place.line, what, fault.remedy).into_error())
    }

    /// The value of this path, or the innermost given one that would contain it.
    fn given<'a>(&self, path: &'a str) -> &'a str {
        let outer = |path: &&'a str| path.rsplit_once('.').map(|(outer, _)| outer);
        let is_given = |path: &&str| self.source.values.contains_key(&path.to_lowercase());
        std::iter::successors(Some(path), outer)
            .find(is_given)
            .unwrap_or(path)
    }

    fn fault(&self, kubernetes: bool, directory: &Path) -> Option<Fault> {
        let endpoint = &self.endpoint;
        let kinds = [
            endpoint.streamable_http.is_some(),
            endpoint.sse.is_some(),
            endpoint.stdio.is_some(),
        ];
        if kinds.into_iter().filter(|is_set| *is_set).count() != 1 {
            let what = "exactly one of streamableHTTP, sse, or stdio must be set";
            return Some(Fault::invalid("endpoint", what, "keep one of them"));
        }
        let http = |kind: &'static str, http: &Option<Http>| http.as_ref().and_then(|http| http.fault(kind));
        http("streamableHTTP", &endpoint.streamable_http)
            .or_else(|| http("sse", &endpoint.sse))
            .or_else(|| endpoint.stdio.as_ref()?.fault(kubernetes, directory))
            .or_else(|| self.middleware.fault())
    }
}

impl Http {
    fn fault(&self, kind: &str) -> Option<Fault> {
        let path = |value: &str| format!("endpoint.{kind}.{value}");
        if self.url.is_empty() {
            return Some(Fault::invalid(
                path("url"),
                "must have at least 1 character",
                HTTP,
            ));
        }
        if let Some(what) = url_fault(&self.url) {
            return Some(Fault::insecure(path("url"), format!("{kind}.url {what}"), HTTP));
        }
        if let Err(error) = self.timeout() {
            return Some(Fault::invalid(
                path("timeout"),
                error.to_string(),
                "write it like 30s or 1m30s",
            ));
        }
        if let Some(header) = self.headers.iter().find(|header| !is_token(&header.name)) {
            let what = format!("{:?} is not the name of an HTTP header", header.name);
            return Some(Fault::invalid(path("headers"), what, "correct the name"));
        }
        self.auth_fault(kind)
    }

    fn auth_fault(&self, kind: &str) -> Option<Fault> {
        if let Some(oauth2) = &self.auth.oauth2 {
            let path = |value: &str| format!("endpoint.{kind}.auth.oauth2.{value}");
            if let Some(what) = url_fault(&oauth2.issuer) {
                let remedy = "give the URL of the token endpoint";
                return Some(Fault::invalid(path("issuer"), what, remedy));
            }
            if oauth2.secret.is_none() {
                let what = "auth.oauth2.secretKeyRef is required for OAuth2 client credentials";
                return Some(Fault::invalid(
                    path("secretKeyRef"),
                    what,
                    "refer to the client's secret",
                ));
            }
        }
        let jwt = self.auth.spiffe.as_ref()?;
        let path = |value: &str| format!("endpoint.{kind}.auth.spiffe.jwt.{value}");
        if !is_token(&jwt.header) {
            let what = format!("{:?} is not the name of an HTTP header", jwt.header);
            return Some(Fault::invalid(
                path("header"),
                what,
                "name a header, such as Authorization",
            ));
        }
        jwt.audience
            .is_empty()
            .then(|| Fault::invalid(path("audience"), "must have at least 1 character", SET))
    }
}

impl Stdio {
    fn fault(&self, kubernetes: bool, directory: &Path) -> Option<Fault> {
        if kubernetes {
            let what = "stdio transport is not allowed in Kubernetes mode";
            let remedy = "run the server as a service, and use streamableHTTP";
            return Some(Fault::insecure("endpoint.stdio", what, remedy));
        }
        if self.command.is_empty() {
            let what = "must have at least 1 character";
            return Some(Fault::invalid(
                "endpoint.stdio.command",
                what,
                "name the program to run",
            ));
        }
        if let Err(what) = is_inside(&self.command, directory) {
            let remedy = "give a name on the PATH, an absolute path, or a path below the working directory";
            return Some(Fault::insecure("endpoint.stdio.command", what, remedy));
        }
        let mut names = self.env.iter().map(|item| item.name.as_str());
        let bad = names.find(|name| name.is_empty() || name.contains(['=', '\n', '\0']))?;
        let what = format!("stdio.env name {bad:?} contains invalid characters");
        Some(Fault::insecure(
            "endpoint.stdio.env",
            what,
            "correct the name of the variable",
        ))
    }
}

impl Middleware {
    fn fault(&self) -> Option<Fault> {
        let lists = [
            ("beforeCallTool", &self.before_call_tool),
            ("afterCallTool", &self.after_call_tool),
            ("beforeListTools", &self.before_list_tools),
            ("afterListTools", &self.after_list_tools),
        ];
        let (name, _) = lists
            .into_iter()
            .find(|(_, hooks)| hooks.iter().any(|hook| hook.workflow.name.is_empty()))?;
        let what = "a hook has no workflow.workflowName";
        Some(Fault::invalid(
            format!("middleware.{name}"),
            what,
            "name the workflow",
        ))
    }
}

fn url_fault(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    if !["http", "https"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(scheme))
    {
        return Some(format!("scheme must be http or https, got {scheme:?}"));
    }
    let host = rest.strip_prefix("//").unwrap_or_default();
    let has_host = !host.is_empty() && !host.starts_with(['/', '?', '#', ':']);
    (!has_host).then(|| "must have a host".to_owned())
}

/// Whether a text is a token of HTTP (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Checks that a relative path stays below `directory`. A name without a slash is searched on the `PATH`.
fn is_inside(command: &str, directory: &Path) -> Result<(), String> {
    if !command.contains('/') || command.starts_with('/') {
        return Ok(());
    }
    let escapes = || "stdio.command must not escape working directory".to_owned();
    let path = directory.join(command);
    let unresolvable = |error: std::io::Error| format!("stdio.command path: {error}");
    let directory = directory.canonicalize().map_err(unresolvable)?;
    match path.canonicalize() {
        Ok(path) if path.starts_with(&directory) => Ok(()),
        Ok(_) => Err(escapes()),
        // A missing program is reported when it is started; links cannot hide the way there.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !command.contains("..") => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(escapes()),
        Err(error) => Err(unresolvable(error)),
    }
}
