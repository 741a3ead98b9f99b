//! Stores filled by Dapr are readable here, and the reverse. Needs Dapr's own `daprd`: name it in
//! `OUTRIGGER_REFERENCE_DAPRD`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use outrigger_component::{
    StateStore,
    state::{Get, Set, Value},
};
use support::server::{Postgres, Redis};
use tempfile::TempDir;

struct Daprd {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for Daprd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl Daprd {
    /// The reference with one state store, called `store`; `None` when there is no reference.
    fn start(kind: &str, version: &str, properties: &[(&str, &str)]) -> Option<Self> {
        let Some(program) = std::env::var_os("OUTRIGGER_REFERENCE_DAPRD") else {
            eprintln!("skipped: OUTRIGGER_REFERENCE_DAPRD does not name Dapr's daprd");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let items: String = properties
            .iter()
            .map(|(name, value)| format!("\n  - {{ name: {name}, value: '{value}' }}"))
            .collect();
        let resource = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {{ name: store }}\nspec:\n  type: {kind}\n  \
             version: {version}\n  metadata:{items}\n"
        );
        fs::write(folder.path().join("store.yaml"), resource).unwrap();
        let port = free_port();
        let child = Command::new(program)
            .args(["--app-id", "app", "--enable-metrics=false", "--resources-path"])
            .arg(folder.path())
            .args(["--dapr-http-port", &port.to_string()])
            .args(["--dapr-grpc-port", &free_port().to_string()])
            .args(["--dapr-internal-grpc-port", &free_port().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daprd = Self {
            child,
            port,
            _folder: folder,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !daprd
            .call("GET", "/v1.0/healthz/outbound", "")
            .starts_with("HTTP/1.1 204")
        {
            assert!(Instant::now() < deadline, "the reference does not become ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(daprd)
    }

    /// The whole answer; empty when nobody listens.
    fn call(&self, method: &str, path: &str, body: &str) -> String {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else {
            return String::new();
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let mut answer = String::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

async fn both_ways(daprd: &Daprd, store: &dyn StateStore) {
    // Theirs, here: the value, its ETag, its expiry, and a write over it.
    let saved = daprd.call(
        "POST",
        "/v1.0/state/store",
        r#"[{"key":"theirs","value":{"b":1.0,"a":"<x>"},"metadata":{"ttlInSeconds":"600"}}]"#,
    );
    assert!(saved.starts_with("HTTP/1.1 204"), "{saved}");
    let item = store.get(&Get::key("app||theirs")).await.unwrap().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&item.data).unwrap();
    assert_eq!(value, serde_json::json!({"a": "<x>", "b": 1}));
    let set = |key: &str, value: Value, etag| Set {
        key: key.to_owned(),
        value,
        etag,
        ..Set::default()
    };
    let over = set("app||theirs", Value::Json("\"over\"".into()), item.etag);
    store.set(&over).await.unwrap();
    assert!(
        daprd
            .call("GET", "/v1.0/state/store/theirs", "")
            .ends_with("\"over\"")
    );

    // Ours, there: JSON and bytes, with an ETag that the reference accepts.
    for (key, value) in [
        ("json", Value::Json(r#"{ "z": [1, 2.5], "a": "<" }"#.into())),
        ("bytes", Value::Bytes("plain bytes".into())),
    ] {
        store
            .set(&set(&format!("app||{key}"), value, None))
            .await
            .unwrap();
    }
    let json = daprd.call("GET", "/v1.0/state/store/json", "");
    let body = json.split("\r\n\r\n").nth(1).unwrap();
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(value, serde_json::json!({"z": [1, 2.5], "a": "<"}));
    assert!(
        daprd
            .call("GET", "/v1.0/state/store/bytes", "")
            .ends_with("plain bytes")
    );
    let etag = store
        .get(&Get::key("app||json"))
        .await
        .unwrap()
        .unwrap()
        .etag
        .unwrap();
    let guarded = format!(r#"[{{"key":"json","value":1,"etag":"{etag}"}}]"#);
    assert!(
        daprd
            .call("POST", "/v1.0/state/store", &guarded)
            .starts_with("HTTP/1.1 204")
    );
    assert!(
        daprd
            .call("POST", "/v1.0/state/store", &guarded)
            .starts_with("HTTP/1.1 409")
    );
}

async fn check(kind: &str, version: &str, properties: &[(&str, &str)]) {
    // Who comes first makes the tables: the reference here, we below.
    let Some(daprd) = Daprd::start(kind, version, properties) else {
        return;
    };
    let store = support::state(kind, version, properties).await.unwrap();
    both_ways(&daprd, &*store).await;
}

async fn check_ours_first(kind: &str, version: &str, properties: &[(&str, &str)]) {
    let store = support::state(kind, version, properties).await.unwrap();
    let Some(daprd) = Daprd::start(kind, version, properties) else {
        return;
    };
    both_ways(&daprd, &*store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    check("state.sqlite", "v1", &[("connectionString", &path("theirs.db"))]).await;
    check_ours_first("state.sqlite", "v1", &[("connectionString", &path("ours.db"))]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let Some(server) = Redis::start(&[]) else { return };
    check("state.redis", "v1", &[("redisHost", &server.host())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let Some(server) = Postgres::start() else { return };
    let text = server.text();
    for version in ["v1", "v2"] {
        let theirs = [
            ("connectionString", text.as_str()),
            ("tableName", "theirs"),
            ("tablePrefix", "theirs_"),
            ("metadataTableName", "theirs_metadata"),
        ];
        check("state.postgresql", version, &theirs).await;
        let ours = [
            ("connectionString", text.as_str()),
            ("tableName", "ours"),
            ("tablePrefix", "ours_"),
            ("metadataTableName", "ours_metadata"),
        ];
        check_ours_first("state.postgresql", version, &ours).await;
    }
}
