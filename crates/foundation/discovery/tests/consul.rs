//! The Consul resolver against an in-memory agent.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use outrigger_discovery::{Address, Options, Registration, ResolveError, Resolver, build};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, time::timeout};

const LONG: Duration = Duration::from_secs(10);

/// The endpoints that the resolver uses. All registered services are healthy.
struct Agent {
    services: Mutex<Vec<Value>>,
    index: watch::Sender<u64>,
    /// Request lines with the token, in order.
    seen: Mutex<Vec<String>>,
    down: Mutex<bool>,
}

impl Agent {
    async fn start() -> (Arc<Self>, String) {
        let agent = Arc::new(Self {
            services: Mutex::default(),
            index: watch::Sender::new(1),
            seen: Mutex::default(),
            down: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = Arc::clone(&agent);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let agent = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&agent).handle(request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        (agent, address)
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let query: HashMap<String, String> = request
            .uri()
            .query()
            .into_iter()
            .flat_map(|query| query.split('&'))
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let token = request
            .headers()
            .get("x-consul-token")
            .map_or("", |token| token.to_str().unwrap());
        let line = format!("{method} {} {token}", request.uri());
        self.seen.lock().unwrap().push(line.trim().to_owned());
        if *self.down.lock().unwrap() {
            return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, 0, "No cluster leader"));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        if path == "/v1/agent/self" {
            return Ok(answer(StatusCode::OK, 0, "{}"));
        }
        if path == "/v1/agent/service/register" && method == Method::PUT {
            self.change(|services| services.push(serde_json::from_slice(&body).unwrap()));
            return Ok(answer(StatusCode::OK, 0, ""));
        }
        if let Some(id) = path.strip_prefix("/v1/agent/service/deregister/") {
            self.change(|services| services.retain(|service| service["ID"] != id));
            return Ok(answer(StatusCode::OK, 0, ""));
        }
        let Some(name) = path.strip_prefix("/v1/health/service/") else {
            return Ok(answer(StatusCode::NOT_FOUND, 0, "no such path"));
        };
        if let Some(after) = query.get("index") {
            let after: u64 = after.parse().unwrap();
            let mut index = self.index.subscribe();
            index.wait_for(|index| *index > after).await.unwrap();
        }
        let index = *self.index.borrow();
        let services = self.services.lock().unwrap();
        let found = services.iter().filter(|service| service["Name"] == name);
        let found: Value = found
            .map(|service| json!({"Node": {"Address": "10.9.9.9"}, "Service": service}))
            .collect();
        Ok(answer(StatusCode::OK, index, &found.to_string()))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Value>)) {
        change(&mut self.services.lock().unwrap());
        self.index.send_modify(|index| *index += 1);
    }

    fn add(&self, name: &str, id: &str, address: &str, meta: Value) {
        self.change(|services| {
            services.push(json!({"Name": name, "ID": id, "Address": address, "Meta": meta}))
        });
    }
}

fn answer(status: StatusCode, index: u64, body: &str) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("x-consul-index", index)
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap()
}

fn options(mut configuration: Value, agent: &str) -> Options {
    configuration["Client"] = json!({"Address": agent, "token": "secret"});
    Options {
        component: "Consul".to_owned(),
        version: String::new(),
        configuration,
        registration: Registration {
            app_id: "orders".to_owned(),
            host_address: "10.0.0.1".to_owned(),
            internal_port: 50002,
            http_port: 3500,
            app_port: 8080,
            ..Registration::default()
        },
        on_fatal: Arc::new(|_| {}),
    }
}

async fn start(configuration: Value, agent: &str) -> Arc<dyn Resolver> {
    build(options(configuration, agent)).await.unwrap()
}

fn port(port: u16) -> Value {
    json!({"DAPR_PORT": port.to_string()})
}

#[tokio::test]
async fn registers_resolves_and_deregisters() {
    let (agent, address) = Agent::start().await;
    let resolver = start(json!({"selfRegister": true, "selfDeregister": true}), &address).await;
    assert_eq!(resolver.name(), "consul");
    let found = resolver.resolve("orders", "").await.unwrap();
    assert_eq!(*found, [Address::new("10.0.0.1", 50002)]);
    resolver.close().await;
    assert!(agent.services.lock().unwrap().is_empty());
    assert_eq!(
        *agent.seen.lock().unwrap(),
        [
            "PUT /v1/agent/service/register secret",
            "GET /v1/health/service/orders?passing=1&cached secret",
            "PUT /v1/agent/service/deregister/orders-10.0.0.1-3500 secret",
        ]
    );
}

#[tokio::test]
async fn lists_all_instances_in_stable_order() {
    let (agent, address) = Agent::start().await;
    agent.add("pay", "b", "", port(2));
    agent.add("pay", "a", "fd00::1", port(1));
    agent.add("pay", "c", "pay.example", port(3));
    agent.add("pay", "d", "10.0.0.4", json!({}));
    let resolver = start(json!({}), &address).await;
    let found = resolver.resolve("pay", "").await.unwrap();
    let found: Vec<String> = found.iter().map(Address::to_string).collect();
    assert_eq!(found, ["[fd00::1]:1", "10.9.9.9:2", "pay.example:3"]);
}

#[tokio::test]
async fn reports_missing_port() {
    let (agent, address) = Agent::start().await;
    let resolver = start(json!({"daprPortMetaKey": "P"}), &address).await;
    let error = resolver.resolve("pay", "").await.unwrap_err();
    assert_eq!(error.to_string(), "no healthy services found with AppID 'pay'");
    agent.add("pay", "a", "10.0.0.1", port(1));
    let error = resolver.resolve("pay", "").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "target service AppID 'pay' found but P missing from meta"
    );
    *agent.down.lock().unwrap() = true;
    let error = resolver.resolve("other", "").await.unwrap_err();
    assert!(matches!(error, ResolveError::Registry { .. }));
    assert!(
        error.to_string().ends_with("answered 500: No cluster leader"),
        "{error}"
    );
}

#[tokio::test]
async fn watch_uses_blocking_queries() {
    let (agent, address) = Agent::start().await;
    let resolver = start(json!({}), &address).await;
    let mut watcher = resolver.watch("pay", "");
    agent.add("pay", "a", "10.0.0.1", port(1));
    let seen = timeout(LONG, watcher.wait_for(|found| found.len() == 1)).await;
    seen.unwrap().unwrap();
    agent.add("pay", "b", "10.0.0.2", port(2));
    let seen = timeout(LONG, watcher.wait_for(|found| found.len() == 2)).await;
    seen.unwrap().unwrap();
    agent.change(Vec::clear);
    let seen = timeout(LONG, watcher.wait_for(|found| found.is_empty())).await;
    seen.unwrap().unwrap();
    assert!(
        agent
            .seen
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains("&wait=60000ms"))
    );
    resolver.close().await;
}

#[tokio::test]
async fn use_cache_stays_current() {
    let (agent, address) = Agent::start().await;
    agent.add("pay", "a", "10.0.0.1", port(1));
    let resolver = start(json!({"useCache": true}), &address).await;
    resolver.resolve("pay", "").await.unwrap();
    agent.add("pay", "b", "10.0.0.2", port(2));
    let current = async {
        while resolver.resolve("pay", "").await.unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, current).await.unwrap();
    *agent.down.lock().unwrap() = true;
    assert_eq!(resolver.resolve("pay", "").await.unwrap().len(), 2);
    resolver.close().await;
}

#[tokio::test]
async fn fails_without_agent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = build(options(json!({}), &address))
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("Consul name resolver: failed check on consul agent: "),
        "{error}"
    );
    assert!(error.contains("refused"), "{error}");
}
