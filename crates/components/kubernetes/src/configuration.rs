//! `configuration.kubernetes`: the entries of one ConfigMap.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outrigger_component::configuration::{Item, Items, Request, Subscription, Subscriptions};
use outrigger_component::{
    Catalog, ConfigurationStore, Entry, Error, Kind, Metadata, Result, Unit, catalog::Version,
};
use outrigger_kube::{ApiError, Client, Kind as Object, Meta, Progress, Reflector, Scope, Store, Watched};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::secrets::{AGENT, NAMESPACE, unconnected};

/// Namespace outside of a pod.
const DEFAULT_NAMESPACE: &str = "default";
/// Timeout of the first list of a subscription.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .configuration
        .add(Entry::new(&["kubernetes"], Version::Only, |setup| async move {
            let store = ClusterConfiguration::open(&setup.metadata, std::env::var(NAMESPACE).ok()).await?;
            Ok(Arc::new(store) as Arc<dyn ConfigurationStore>)
        }));
}

/// The fields of a ConfigMap that matter here.
#[derive(Debug, Default, PartialEq, Deserialize)]
struct ConfigMap {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
struct ObjectMeta {
    #[serde(default, rename = "resourceVersion")]
    version: String,
}

impl ConfigMap {
    /// The entries of these keys; of all without keys.
    fn items(&self, keys: &[String]) -> Items {
        let all = self.data.iter().flatten();
        let wanted = all.filter(|(key, _)| keys.is_empty() || keys.contains(key));
        let item = |(key, value): (&String, &String)| {
            let item = Item {
                value: value.clone(),
                version: self.metadata.version.clone(),
                ..Item::default()
            };
            (key.clone(), item)
        };
        wanted.map(item).collect()
    }
}

impl Watched for ConfigMap {
    const KIND: Object = Object::CONFIG_MAPS;

    fn read(_: &Meta, object: Value) -> std::result::Result<Option<Self>, String> {
        let read = serde_json::from_value(object).map_err(|error| error.to_string());
        read.map(Some)
    }

    fn size(&self) -> usize {
        let entries = self.data.iter().flatten();
        size_of::<Self>() + entries.map(|(key, value)| key.len() + value.len()).sum::<usize>()
    }
}

/// A ConfigMap of the cluster.
struct ClusterConfiguration {
    client: Client,
    namespace: String,
    name: String,
    /// Started by the first subscription.
    watch: Mutex<Option<Watching>>,
    subscriptions: Subscriptions,
}

/// A running watch of the ConfigMap.
struct Watching {
    store: Arc<Store<ConfigMap>>,
    progress: tokio::sync::watch::Receiver<Progress>,
    _task: AbortOnDropHandle<()>,
}

impl ClusterConfiguration {
    /// `own` is the pod's namespace. Does not connect.
    async fn open(metadata: &Metadata, own: Option<String>) -> Result<Self> {
        // Without effect: a watch misses no change.
        let _resync = metadata.duration(&["resyncPeriod"], Unit::Seconds)?;
        let file = metadata.filled(&["kubeconfigPath"]);
        let name = metadata.required(&["configMapName"])?;
        if !outrigger_kube::is_object_name(name) {
            return Err(metadata
                .wrong(&["configMapName"], "it is not a valid name of a ConfigMap")
                .into());
        }
        let client = Client::new(file.map(Path::new), AGENT).await;
        Ok(Self {
            client: client.map_err(unconnected)?,
            namespace: own
                .filter(|own| !own.is_empty())
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            name: name.to_owned(),
            watch: Mutex::default(),
            subscriptions: Subscriptions::default(),
        })
    }

    async fn read(&self) -> Result<ConfigMap> {
        let found = self
            .client
            .get(Object::CONFIG_MAPS, Some(&self.namespace), &self.name);
        found.await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &ApiError) -> Error {
        let what = format!("the ConfigMap {} in the namespace {}", self.name, self.namespace);
        if error.is_not_found() {
            return Error::new(
                Kind::NotFound,
                format!("{what} does not exist: create it, or correct configMapName"),
            );
        }
        if error.is_forbidden() {
            let text = format!(
                "the service account of this pod may not read {what}: bind a Role that allows to get, list and watch \
                 configmaps to it ({error})"
            );
            return Error::new(Kind::Denied, text);
        }
        Error::new(Kind::Unavailable, format!("{what}: {error}"))
    }

    /// The copy of the ConfigMap, once it is complete.
    async fn watched(&self) -> Result<Arc<Store<ConfigMap>>> {
        let (store, mut progress) = {
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            let watching = watch.get_or_insert_with(|| {
                let scope = Scope {
                    namespace: Some(self.namespace.clone()),
                    query: format!("fieldSelector=metadata.name%3D{}", self.name),
                };
                let reflector = Reflector::new(self.client.clone(), scope);
                Watching {
                    store: reflector.store(),
                    progress: reflector.progress(),
                    _task: AbortOnDropHandle::new(tokio::spawn(reflector.run(CancellationToken::new()))),
                }
            });
            (Arc::clone(&watching.store), watching.progress.clone())
        };
        let complete = async { progress.wait_for(|now| *now == Progress::Complete).await.is_ok() };
        if tokio::time::timeout(LIST_TIMEOUT, complete).await == Ok(true) {
            return Ok(store);
        }
        // Reading says why.
        self.read().await?;
        Err(Error::new(
            Kind::Denied,
            format!(
                "the ConfigMap {} in the namespace {} can be read and not watched: allow the service account of this \
                 pod to list and watch configmaps",
                self.name, self.namespace
            ),
        ))
    }
}

#[async_trait]
impl ConfigurationStore for ClusterConfiguration {
    async fn get(&self, request: &Request) -> Result<Items> {
        Ok(self.read().await?.items(&request.keys))
    }

    async fn subscribe(&self, request: &Request) -> Result<Subscription> {
        self.subscriptions.check_open()?;
        let store = self.watched().await?;
        let mut changed = store.follow();
        let (namespace, name, keys) = (self.namespace.clone(), self.name.clone(), request.keys.clone());
        let current = move |store: &Store<ConfigMap>| {
            let found = store.get(&namespace, &name);
            found.map(|found| found.items(&keys)).unwrap_or_default()
        };
        let mut known = current(&store);
        self.subscriptions
            .open(|updates: mpsc::Sender<Items>| async move {
                while !matches!(changed.recv().await, Err(RecvError::Closed)) {
                    let now = current(&store);
                    let changes = differing(&known, &now);
                    known = now;
                    if !changes.is_empty() && updates.send(changes).await.is_err() {
                        return;
                    }
                }
            })
    }

    async fn unsubscribe(&self, id: &str) -> Result<()> {
        self.subscriptions.end(id).await
    }

    async fn ping(&self) -> Result<()> {
        self.read().await.map(drop)
    }

    async fn close(&self) {
        self.subscriptions.close().await;
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The items whose values differ; an empty item for each removed key. The version of the ConfigMap changes with
/// each of its entries.
fn differing(known: &Items, now: &Items) -> Items {
    let is_new = |key: &String, item: &Item| known.get(key).is_none_or(|known| known.value != item.value);
    let written = now.iter().filter(|(key, item)| is_new(key, item));
    let removed = known.keys().filter(|key| !now.contains_key(*key));
    let written = written.map(|(key, item)| (key.clone(), item.clone()));
    written
        .chain(removed.map(|key| (key.clone(), Item::default())))
        .collect()
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;

    const ADDRESS: &str = "/api/v1/namespaces/shop/configmaps/settings";

    fn put(server: &Server, data: Value) {
        let metadata = json!({"name": "settings", "namespace": "shop"});
        server.put(ADDRESS, json!({"metadata": metadata, "data": data}));
    }

    fn of(server: &Server) -> ClusterConfiguration {
        ClusterConfiguration {
            client: server.client(),
            namespace: "shop".to_owned(),
            name: "settings".to_owned(),
            watch: Mutex::default(),
            subscriptions: Subscriptions::default(),
        }
    }

    fn request(keys: &[&str]) -> Request {
        Request {
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
            ..Request::default()
        }
    }

    fn values(items: &Items) -> BTreeMap<&str, &str> {
        let values = items.iter();
        values
            .map(|(key, item)| (key.as_str(), item.value.as_str()))
            .collect()
    }

    #[tokio::test]
    async fn reads_entries_with_version() {
        let server = Server::start().await;
        let store = of(&server);
        let absent = store.get(&request(&[])).await.unwrap_err();
        assert_eq!(absent.kind(), Kind::NotFound);
        put(&server, json!({"a": "1", "b": "2"}));
        let all = store.get(&request(&[])).await.unwrap();
        assert_eq!(values(&all), BTreeMap::from([("a", "1"), ("b", "2")]));
        let version = server.object(ADDRESS).unwrap()["metadata"]["resourceVersion"].clone();
        assert_eq!(all["a"].version, version.as_str().unwrap());
        let some = store.get(&request(&["b", "c"])).await.unwrap();
        assert_eq!(values(&some), BTreeMap::from([("b", "2")]));
        store.ping().await.unwrap();
    }

    #[tokio::test]
    async fn reports_changed_entries() {
        let server = Server::start().await;
        put(&server, json!({"a": "1", "b": "1", "c": "1"}));
        let store = of(&server);
        let mut some = store.subscribe(&request(&["a", "b"])).await.unwrap();
        let mut all = store.subscribe(&request(&[])).await.unwrap();
        put(&server, json!({"a": "2", "b": "1", "c": "2"}));
        let told = some.updates.recv().await.unwrap();
        assert_eq!(values(&told), BTreeMap::from([("a", "2")]));
        let told = all.updates.recv().await.unwrap();
        assert_eq!(values(&told), BTreeMap::from([("a", "2"), ("c", "2")]));
        server.delete(ADDRESS);
        let told = some.updates.recv().await.unwrap();
        assert_eq!(told["b"], Item::default());
        assert_eq!(told.len(), 2);
        store.unsubscribe(&some.id).await.unwrap();
        assert!(some.updates.recv().await.is_none());
        store.close().await;
        assert!(store.subscribe(&request(&[])).await.is_err());
    }

    #[tokio::test]
    async fn needs_name_of_config_map() {
        for name in ["", "a/b"] {
            let given = [("configMapName".to_owned(), name.to_owned())];
            let metadata = Metadata::new("store", given).unwrap();
            let error = ClusterConfiguration::open(&metadata, None).await.err().unwrap();
            assert!(error.to_string().contains("configMapName"), "{error}");
        }
    }
}
