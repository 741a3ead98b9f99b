use std::path::Path;

use super::*;
use crate::load::{FromJson, text};

/// An MCPServer with these lines below `spec`.
fn server(spec: &str) -> McpServer {
    let spec = spec.replace('\n', "\n  ");
    let yaml =
        format!("apiVersion: dapr.io/v1alpha1\nkind: MCPServer\nmetadata:\n  name: s\nspec:\n  {spec}\n");
    text(&yaml, "app").unwrap().mcp_servers.remove(0)
}

fn problem(spec: &str) -> (usize, String) {
    let problem = server(spec).check(false, Path::new(".")).unwrap_err();
    (problem.line, problem.what)
}

#[test]
fn reads_every_field() {
    let read = server(
        "catalog: {displayName: x, owner: {team: t}, tags: [a]}\nignoreErrors: true\nendpoint:\n  streamableHTTP:\n    url: \
         https://x/mcp\n    protocolVersion: '2025-06-18'\n    timeout: 5s\n    headers:\n    - name: X-A\n      value: \
         1\n    - name: X-B\n      secretKeyRef: {name: n, key: k}\n    auth:\n      secretStore: vault\n      oauth2: {issuer: \
         'https://i/t', audience: a, scopes: [s], clientID: c, secretKeyRef: {name: n}}\n      spiffe: {jwt: {header: X-J, \
         headerValuePrefix: 'Bearer ', audience: u}}\nmiddleware:\n  beforeCallTool:\n  - workflow: {workflowName: w, appID: \
         o}\n    mutate: true\n  beforeListTools:\n  - workflow: {workflowName: l}",
    );
    assert!(read.ignore_errors && read.check(true, Path::new(".")).is_ok());
    assert_eq!(read.log_name(), "s (https://x/mcp)");
    let http = read.endpoint.http().unwrap();
    assert_eq!(http.timeout(), Ok(Duration::from_secs(5)));
    assert_eq!(http.headers[0].text(), "1");
    assert_eq!(http.headers[1].secret.as_ref().unwrap().field(), "k");
    let oauth2 = http.auth.oauth2.as_ref().unwrap();
    assert_eq!((oauth2.client_id.as_str(), oauth2.audience.as_str()), ("c", "a"));
    assert_eq!(http.auth.spiffe.as_ref().unwrap().header_value_prefix, "Bearer ");
    assert_eq!(read.endpoint.secret_store(), "vault");
    let hook = &read.middleware.before_call_tool[0];
    assert!(hook.mutate && hook.workflow.name == "w" && hook.workflow.app_id == "o");
    assert!(!read.middleware.before_list_tools[0].mutate);
}

#[test]
fn reads_manifest_of_operator() {
    let json = br#"{"apiVersion":"dapr.io/v1alpha1","kind":"MCPServer","metadata":{"name":"s"},
        "spec":{"endpoint":{"stdio":{"command":"c","args":["a"],"env":[{"name":"E","value":"v"}]}}}}"#;
    let read = McpServer::from_json(json).unwrap();
    let stdio = read.endpoint.stdio.as_ref().unwrap();
    assert_eq!((stdio.command.as_str(), stdio.env[0].text()), ("c", "v"));
    let refused = read.check(true, Path::new(".")).unwrap_err().what;
    let text = "MCPServer \"s\" failed security validation: MCPServer \"s\": stdio transport is not allowed in Kubernetes \
                mode";
    assert_eq!(refused, text);
}

#[test]
fn reports_mistakes_with_line() {
    for (spec, line, what) in [
        (
            "endpoint: {}",
            6,
            "failed validation: spec.endpoint: exactly one of streamableHTTP, sse, or stdio must be set",
        ),
        (
            "endpoint:\n  sse: {url: 'http://a'}\n  stdio: {command: x}",
            7,
            "exactly one of",
        ),
        (
            "endpoint:\n  sse:\n    url: ''",
            8,
            "spec.endpoint.sse.url: must have at least 1 character",
        ),
        (
            "endpoint:\n  sse:\n    url: ftp://a",
            8,
            "sse.url scheme must be http or https, got \"ftp\"",
        ),
        (
            "endpoint:\n  sse:\n    url: http:///x",
            8,
            "sse.url must have a host",
        ),
        (
            "endpoint:\n  sse:\n    url: http://a\n    timeout: '5'",
            9,
            "missing unit",
        ),
        (
            "endpoint:\n  sse:\n    url: http://a\n    timeout: -5s",
            9,
            "negative",
        ),
        (
            "endpoint:\n  sse:\n    url: http://a\n    headers:\n    - name: 'a b'",
            9,
            "is not the name of an HTTP header",
        ),
        (
            "endpoint:\n  sse:\n    url: http://a\n    auth:\n      oauth2:\n        issuer: http://i",
            10,
            "auth.oauth2.secretKeyRef is required for OAuth2 client credentials",
        ),
        (
            "endpoint:\n  sse:\n    url: http://a\n    auth:\n      spiffe:\n        jwt:\n          header: X",
            11,
            "audience",
        ),
        (
            "endpoint:\n  stdio:\n    command: ../x",
            8,
            "stdio.command must not escape working directory",
        ),
        (
            "endpoint:\n  stdio:\n    command: x\n    env:\n    - name: a=b",
            9,
            "stdio.env name \"a=b\" contains",
        ),
        (
            "endpoint:\n  stdio:\n    command: x\nmiddleware:\n  afterCallTool:\n  - mutate: true",
            10,
            "workflowName",
        ),
    ] {
        let (found, text) = problem(spec);
        assert!(text.contains(what), "{spec}: {text}");
        assert_eq!(found, line, "{spec}");
    }
}

#[test]
fn command_stays_below_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work");
    std::fs::create_dir_all(work.join("bin")).unwrap();
    std::fs::write(folder.path().join("outside"), "").unwrap();
    std::fs::write(work.join("bin/tool"), "").unwrap();
    std::os::unix::fs::symlink(folder.path().join("outside"), work.join("bin/link")).unwrap();
    let is_ok = |command: &str| {
        server(&format!("endpoint: {{stdio: {{command: '{command}'}}}}"))
            .check(false, &work)
            .is_ok()
    };
    for good in [
        "tool",
        "/bin/true",
        "bin/tool",
        "./bin/../bin/tool",
        "bin/missing",
    ] {
        assert!(is_ok(good), "{good}");
    }
    for bad in ["../outside", "bin/link", "bin/../../missing"] {
        assert!(!is_ok(bad), "{bad}");
    }
}

#[test]
fn log_name_has_no_secrets() {
    for (url, shown) in [
        ("https://me:pass@host:8080/mcp?key=1#f", "https://host:8080/mcp"),
        ("https://host?key=a@b", "https://host"),
        ("http://host/a@b", "http://host/a@b"),
        ("me:pass@host/", "host/"),
    ] {
        assert_eq!(public(url), shown);
    }
}
