//! Kubernetes mode: settings and resources from a fake operator, over mTLS.

mod secrets;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use outrigger_identity::{Expect, Identity};
use outrigger_kube::testing::Server;
use outrigger_wire::operator::v1 as wire;
use outrigger_wire::operator::v1::operator_server::{Operator, OperatorServer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};
use wire::ResourceEventType::{Created, Deleted, Updated};

use crate::common::app::text;
use crate::common::{App, Net, Node, Plan, eventually, get, post};

/// The contents of the cluster.
#[derive(Default)]
struct Cluster {
    components: Mutex<BTreeMap<String, Value>>,
    endpoints: Mutex<BTreeMap<String, Value>>,
    subscriptions: Mutex<BTreeMap<String, Value>>,
    policies: Mutex<Vec<Value>>,
    configuration: Mutex<Value>,
    component_watchers: Mutex<Vec<mpsc::UnboundedSender<Result<wire::ComponentUpdateEvent, Status>>>>,
    endpoint_watchers: Mutex<Vec<mpsc::UnboundedSender<Result<wire::HttpEndpointUpdateEvent, Status>>>>,
    configuration_watchers: Mutex<Vec<mpsc::UnboundedSender<Result<wire::ConfigurationUpdateEvent, Status>>>>,
    /// The requested namespaces.
    asked: Mutex<Vec<String>>,
}

fn jsons(values: &Mutex<BTreeMap<String, Value>>) -> Vec<bytes::Bytes> {
    let values = values.lock().unwrap();
    values.values().map(|value| value.to_string().into()).collect()
}

#[derive(Clone)]
struct Service(Arc<Cluster>);

impl Service {
    fn asked(&self, namespace: &str) {
        self.0.asked.lock().unwrap().push(namespace.to_owned());
    }
}

#[tonic::async_trait]
impl Operator for Service {
    async fn component_update(
        &self,
        request: Request<wire::ComponentUpdateRequest>,
    ) -> Result<Response<BoxStream<wire::ComponentUpdateEvent>>, Status> {
        self.asked(&request.get_ref().namespace);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.component_watchers.lock().unwrap().push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn list_components(
        &self,
        request: Request<wire::ListComponentsRequest>,
    ) -> Result<Response<wire::ListComponentResponse>, Status> {
        self.asked(&request.get_ref().namespace);
        let components = jsons(&self.0.components);
        Ok(Response::new(wire::ListComponentResponse { components }))
    }

    async fn get_configuration(
        &self,
        request: Request<wire::GetConfigurationRequest>,
    ) -> Result<Response<wire::GetConfigurationResponse>, Status> {
        self.asked(&request.get_ref().namespace);
        let configuration = match request.get_ref().name.as_str() {
            "settings" => self.0.configuration.lock().unwrap().to_string().into(),
            _ => bytes::Bytes::new(),
        };
        Ok(Response::new(wire::GetConfigurationResponse { configuration }))
    }

    async fn list_resiliency(
        &self,
        request: Request<wire::ListResiliencyRequest>,
    ) -> Result<Response<wire::ListResiliencyResponse>, Status> {
        self.asked(&request.get_ref().namespace);
        let policies = self.0.policies.lock().unwrap();
        let resiliencies = policies.iter().map(|policy| policy.to_string().into()).collect();
        Ok(Response::new(wire::ListResiliencyResponse { resiliencies }))
    }

    async fn list_http_endpoints(
        &self,
        request: Request<wire::ListHttpEndpointsRequest>,
    ) -> Result<Response<wire::ListHttpEndpointsResponse>, Status> {
        self.asked(&request.get_ref().namespace);
        let http_endpoints = jsons(&self.0.endpoints);
        Ok(Response::new(wire::ListHttpEndpointsResponse { http_endpoints }))
    }

    async fn list_subscriptions_v2(
        &self,
        request: Request<wire::ListSubscriptionsRequest>,
    ) -> Result<Response<wire::ListSubscriptionsResponse>, Status> {
        self.asked(&request.get_ref().namespace);
        let subscriptions = jsons(&self.0.subscriptions);
        Ok(Response::new(wire::ListSubscriptionsResponse { subscriptions }))
    }

    async fn subscription_update(
        &self,
        request: Request<wire::SubscriptionUpdateRequest>,
    ) -> Result<Response<BoxStream<wire::SubscriptionUpdateEvent>>, Status> {
        self.asked(&request.get_ref().namespace);
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }

    async fn http_endpoint_update(
        &self,
        request: Request<wire::HttpEndpointUpdateRequest>,
    ) -> Result<Response<BoxStream<wire::HttpEndpointUpdateEvent>>, Status> {
        self.asked(&request.get_ref().namespace);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.endpoint_watchers.lock().unwrap().push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn configuration_update(
        &self,
        request: Request<wire::ConfigurationUpdateRequest>,
    ) -> Result<Response<BoxStream<wire::ConfigurationUpdateEvent>>, Status> {
        self.asked(&request.get_ref().namespace);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.configuration_watchers.lock().unwrap().push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}

/// A process with the operator's identity, or another one.
pub struct Process {
    cluster: Arc<Cluster>,
    identity: Identity,
    address: String,
    task: JoinHandle<()>,
}

impl Process {
    pub async fn start(net: &Net, app_id: &str) -> Self {
        let identity = net.identity(app_id).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = Arc::new(Cluster::default());
        let address = listener.local_addr().unwrap().to_string();
        let task = serve(listener, &cluster, &identity);
        Self {
            cluster,
            identity,
            address,
            task,
        }
    }

    /// Stops it with its connections and streams.
    async fn kill(&mut self) {
        self.task.abort();
        let _aborted = (&mut self.task).await;
        self.cluster.component_watchers.lock().unwrap().clear();
        self.cluster.endpoint_watchers.lock().unwrap().clear();
    }

    async fn restart(&mut self) {
        let listener = TcpListener::bind(&self.address).await.unwrap();
        self.task = serve(listener, &self.cluster, &self.identity);
    }

    /// A sidecar that uses this operator.
    pub fn beside<'n>(&self, net: &'n Net) -> Plan<'n> {
        self.in_cluster(net).flag("--disable-builtin-k8s-secret-store")
    }

    fn in_cluster<'n>(&self, net: &'n Net) -> Plan<'n> {
        net.sidecar("me")
            .flag("--mode=kubernetes")
            .flag(&format!("--control-plane-address={}", self.address))
    }

    /// Sets the Configuration `settings`.
    pub fn configure(&self, settings: Value) {
        *self.cluster.configuration.lock().unwrap() = settings;
    }

    /// Adds or replaces a component.
    pub fn put(&self, component: &Value) {
        let name = component["metadata"]["name"].as_str().unwrap();
        self.cluster
            .components
            .lock()
            .unwrap()
            .insert(name.to_owned(), component.clone());
    }

    fn tell(&self, kind: wire::ResourceEventType, component: &Value) {
        let event = wire::ComponentUpdateEvent {
            component: component.to_string().into(),
            r#type: kind.into(),
        };
        let watchers = self.cluster.component_watchers.lock().unwrap();
        let notified = watchers
            .iter()
            .filter(|watcher| watcher.send(Ok(event.clone())).is_ok());
        assert_eq!(notified.count(), 1);
    }

    fn tell_endpoint(&self, endpoint: &Value) {
        let event = wire::HttpEndpointUpdateEvent {
            http_endpoints: endpoint.to_string().into(),
            r#type: 0,
        };
        let watchers = self.cluster.endpoint_watchers.lock().unwrap();
        let notified = watchers
            .iter()
            .filter(|watcher| watcher.send(Ok(event.clone())).is_ok());
        assert_eq!(notified.count(), 1);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn serve(listener: TcpListener, cluster: &Arc<Cluster>, identity: &Identity) -> JoinHandle<()> {
    let tls = TlsAcceptor::from(identity.server_config_for(Expect::Any));
    let service = OperatorServer::new(Service(Arc::clone(cluster)));
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let (tls, service) = (tls.clone(), TowerToHyperService::new(service.clone()));
            connections.spawn(async move {
                let Ok(stream) = tls.accept(tcp).await else { return };
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

fn memory(name: &str) -> Value {
    json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name, "namespace": "default"},
           "spec": {"type": "state.in-memory", "version": "v1"}})
}

fn endpoint(name: &str, port: u16) -> Value {
    // "ahoy"
    json!({"apiVersion": "dapr.io/v1alpha1", "kind": "HTTPEndpoint", "metadata": {"name": name},
           "spec": {"baseUrl": format!("http://127.0.0.1:{port}"),
                    "headers": [{"name": "x-secret", "value": "YWhveQ==", "secretKeyRef": {"name": "s", "key": "k"}}]}})
}

/// An endpoint with a header from the secret `greeting` of the store `vault`.
fn endpoint_of_vault(name: &str, port: u16) -> Value {
    let mut endpoint = endpoint(name, port);
    endpoint["auth"] = json!({"secretStore": "vault"});
    endpoint["spec"]["headers"] = json!([{"name": "x-secret", "secretKeyRef": {"name": "greeting"}}]);
    endpoint
}

async fn names(node: &Node, kind: &str) -> Vec<String> {
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let all = metadata[kind].as_array().into_iter().flatten();
    let mut names: Vec<_> = all
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

async fn until(node: &Node, kind: &str, wanted: &[&str]) {
    eventually(async || names(node, kind).await == wanted).await;
}

fn hot_reload() -> Value {
    json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": {"name": "settings"},
           "spec": {"features": [{"name": "HotReload", "enabled": true}]}})
}

#[tokio::test]
async fn loads_everything_from_operator() {
    let net = Net::secure().await;
    let app = App::start(|request| async move {
        let secret = request.headers().get("x-secret").cloned();
        text(
            200,
            secret
                .as_ref()
                .and_then(|secret| secret.to_str().ok())
                .unwrap_or("none"),
        )
    })
    .await;
    let operator = Process::start(&net, "dapr-operator").await;
    *operator.cluster.configuration.lock().unwrap() = json!({"spec": {
        "api": {"denied": [{"name": "secrets", "version": "v1", "protocol": "http"}]}}});
    operator.put(&memory("store"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets.json");
    std::fs::write(&file, r#"{"greeting":"from the vault"}"#).unwrap();
    let mut vault = memory("vault");
    vault["spec"] = json!({"type": "secretstores.local.file", "version": "v1",
                           "metadata": [{"name": "secretsFile", "value": file.to_str().unwrap()}]});
    operator.put(&vault);
    let mut foreign = memory("foreign");
    foreign["scopes"] = json!(["somebody else"]);
    operator.put(&foreign);
    let endpoints = &operator.cluster.endpoints;
    endpoints
        .lock()
        .unwrap()
        .insert("outside".into(), endpoint("outside", app.port));
    let mut bus = memory("bus");
    bus["spec"]["type"] = json!("pubsub.in-memory");
    operator.put(&bus);
    let subscription = json!({"apiVersion": "dapr.io/v2alpha1", "kind": "Subscription",
        "metadata": {"name": "orders", "namespace": "default"},
        "spec": {"pubsubname": "bus", "topic": "orders", "routes": {"default": "/orders"}}});
    let subscriptions = &operator.cluster.subscriptions;
    subscriptions
        .lock()
        .unwrap()
        .insert("orders".into(), subscription);
    let node = operator.beside(&net).configuration("settings").start().await;

    assert_eq!(names(&node, "components").await, ["bus", "store", "vault"]);
    let subscribed = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(subscribed["subscriptions"][0]["topic"], "orders");
    assert_eq!(names(&node, "httpEndpoints").await, ["outside"]);
    let saved = node
        .ask(post("/v1.0/state/store", r#"[{"key":"k","value":1}]"#))
        .await;
    assert_eq!(saved.status, 204);
    let answer = node.ask(get("/v1.0/invoke/outside/method/x")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "ahoy"));
    assert_eq!(
        node.ask(get("/v1.0/secrets/any/k")).await.status,
        404,
        "the Configuration holds"
    );
    let asked = operator.cluster.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|namespace| namespace == "default"), "{asked:?}");

    eventually(async || !operator.cluster.endpoint_watchers.lock().unwrap().is_empty()).await;
    operator.tell_endpoint(&endpoint_of_vault("later", app.port));
    until(&node, "httpEndpoints", &["later", "outside"]).await;
    let answer = node.ask(get("/v1.0/invoke/later/method/x")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "from the vault"));
    node.stop().await.unwrap();
}

#[tokio::test]
async fn reloads_components_from_operator() {
    let net = Net::secure().await;
    let mut operator = Process::start(&net, "dapr-operator").await;
    *operator.cluster.configuration.lock().unwrap() = hot_reload();
    operator.put(&memory("first"));
    let node = operator.beside(&net).configuration("settings").start().await;
    until(&node, "components", &["first"]).await;
    eventually(async || !operator.cluster.component_watchers.lock().unwrap().is_empty()).await;

    operator.tell(Created, &memory("second"));
    until(&node, "components", &["first", "second"]).await;
    let mut changed = memory("second");
    changed["spec"]["type"] = json!("lock.sqlite");
    changed["spec"]["metadata"] =
        json!([{"name": "connectionString", "value": node.folder().join("locks.db").to_str().unwrap()}]);
    operator.tell(Updated, &changed);
    eventually(async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["components"].to_string().contains("lock.sqlite")
    })
    .await;
    operator.tell(Deleted, &changed);
    until(&node, "components", &["first"]).await;

    // Changes during the outage are found by a list.
    operator.kill().await;
    operator.put(&memory("third"));
    operator.cluster.components.lock().unwrap().remove("first");
    assert_eq!(
        names(&node, "components").await,
        ["first"],
        "it continues without an operator"
    );
    operator.restart().await;
    until(&node, "components", &["third"]).await;
    eventually(async || !operator.cluster.component_watchers.lock().unwrap().is_empty()).await;
    operator.tell(Created, &memory("fourth"));
    until(&node, "components", &["fourth", "third"]).await;
    node.stop().await.unwrap();
}

#[tokio::test]
async fn reloads_configuration_from_operator() {
    let net = Net::secure().await;
    let operator = Process::start(&net, "dapr-operator").await;
    operator.configure(hot_reload());
    let mut changed = hot_reload();
    changed["spec"]["accessControl"] = json!({"defaultAction": "deny", "trustDomain": "public"});
    changed["spec"]["components"] = json!({"deny": ["state.redis"]});
    let node = operator.beside(&net).configuration("settings").spawn().await;
    let watchers = &operator.cluster.configuration_watchers;
    eventually(async || !watchers.lock().unwrap().is_empty()).await;
    operator.configure(changed.clone());
    let event = wire::ConfigurationUpdateEvent {
        configuration: changed.to_string().into(),
        r#type: Updated.into(),
    };
    for watcher in watchers.lock().unwrap().iter() {
        // One of a stream that has ended.
        let _gone = watcher.send(Ok(event.clone()));
    }
    let applied = "the Configuration changed: the new accessControl applies";
    let restart = "the Configuration changed: components; restarting";
    eventually(async || node.log().contains(applied) && node.log().contains(restart)).await;
}

#[tokio::test]
async fn operator_connection_ends_with_certificate() {
    let net = Net::secure_with("{workloadCertTTL: 15s, allowedClockSkew: 0s}").await;
    // Its certificate is not renewed; the sidecar's is.
    let operator = Process::start(&net, "dapr-operator").await;
    *operator.cluster.configuration.lock().unwrap() = json!({"spec": {}});
    let node = operator.beside(&net).configuration("settings").start().await;
    let watchers = &operator.cluster.endpoint_watchers;
    eventually(async || !watchers.lock().unwrap().is_empty()).await;
    eventually(async || {
        watchers
            .lock()
            .unwrap()
            .iter()
            .all(mpsc::UnboundedSender::is_closed)
    })
    .await;
    assert!(
        outlived(&operator.identity),
        "the stream ended before the certificate did"
    );
    node.stop().await.unwrap();
}

/// Whether the certificate of an identity has expired.
fn outlived(identity: &Identity) -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    identity.svid().not_after().as_second() <= i64::try_from(now.unwrap().as_secs()).unwrap()
}

#[tokio::test]
async fn missing_operator_resource_fails_start() {
    let net = Net::secure().await;
    let operator = Process::start(&net, "dapr-operator").await;
    let failed = operator.beside(&net).configuration("other").try_launch().await;
    let error = failed.err().expect("it must not start").to_string();
    assert!(error.starts_with("configuration other not found"), "{error}");

    *operator.cluster.configuration.lock().unwrap() = json!({"spec": {"tracing": []}});
    for key in ["first", "second"] {
        let mut components = operator.cluster.components.lock().unwrap();
        components.insert(key.to_owned(), memory("twice"));
    }
    let failed = operator.beside(&net).configuration("settings").try_launch().await;
    let error = failed.err().expect("it must not start").to_string();
    assert!(error.starts_with("Configuration settings: "), "{error}");
    assert!(error.contains("tracing"), "{error}");
    // Problems of resources are reported together with it.
    assert!(
        error.contains("duplicate definition of Component name twice"),
        "{error}"
    );

    let failed = operator
        .beside(&net)
        .flag("--control-plane-address=")
        .try_launch()
        .await;
    let error = failed.err().expect("it must not start").to_string();
    assert!(error.contains("--control-plane-address"), "{error}");
}
