//! Local copies of the collections that the operator serves to sidecars.

use std::sync::Arc;
use std::time::Duration;

use outrigger_controlplane::health::Part;
use outrigger_kube::{Client, Progress, Reflector, Scope, Store, WatchState, Watched};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::resource::{Component, Configuration, HttpEndpoint, Resiliency, Resource, Subscription};

/// How long a call waits for a collection that was not listed yet; sidecars wait for five seconds.
const LIST_TIMEOUT: Duration = Duration::from_secs(4);

/// A copy of a collection.
#[derive(Debug)]
pub(crate) struct Copy<T> {
    store: Arc<Store<T>>,
    progress: watch::Receiver<Progress>,
}

impl<T> Clone for Copy<T> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            progress: self.progress.clone(),
        }
    }
}

impl<T: Watched> Copy<T> {
    fn of(reflector: &Reflector<T>) -> Self {
        Self {
            store: reflector.store(),
            progress: reflector.progress(),
        }
    }

    /// The collection's contents. Waits a while for the first list, because an empty response would tell
    /// sidecars that there are no resources.
    ///
    /// # Errors
    /// `UNAVAILABLE` if it is still not listed.
    pub(crate) async fn known(&self) -> Result<&Store<T>, Status> {
        self.answered(&[Progress::Complete]).await?;
        Ok(&self.store)
    }

    /// Like [`Copy::known`]; `None` if the API refuses to list the collection.
    ///
    /// # Errors
    /// As [`Copy::known`].
    pub(crate) async fn if_listed(&self) -> Result<Option<&Store<T>>, Status> {
        let progress = self.answered(&[Progress::Complete, Progress::Refused]).await?;
        Ok((progress == Progress::Complete).then_some(&*self.store))
    }

    async fn answered(&self, enough: &[Progress]) -> Result<Progress, Status> {
        let mut progress = self.progress.clone();
        let waiting = progress.wait_for(|progress| enough.contains(progress));
        match tokio::time::timeout(LIST_TIMEOUT, waiting).await {
            Ok(Ok(progress)) => Ok(*progress),
            _ => Err(Status::unavailable(format!(
                "the operator has not listed the {} of the cluster yet: retry later",
                T::KIND.plural
            ))),
        }
    }
}

/// All copies.
#[derive(Debug, Clone)]
pub(crate) struct Copies {
    pub(crate) components: Copy<Resource<Component>>,
    pub(crate) configurations: Copy<Resource<Configuration>>,
    pub(crate) endpoints: Copy<Resource<HttpEndpoint>>,
    pub(crate) resiliencies: Copy<Resource<Resiliency>>,
    pub(crate) subscriptions: Copy<Resource<Subscription>>,
}

/// The reflectors that update the copies.
#[derive(Debug)]
pub(crate) struct Reflectors {
    components: Reflector<Resource<Component>>,
    configurations: Reflector<Resource<Configuration>>,
    endpoints: Reflector<Resource<HttpEndpoint>>,
    resiliencies: Reflector<Resource<Resiliency>>,
    subscriptions: Reflector<Resource<Subscription>>,
}

impl Reflectors {
    /// For one namespace, or for all.
    pub(crate) fn new(client: &Client, namespace: Option<&str>) -> (Self, Copies) {
        let scope = Scope {
            namespace: namespace.map(str::to_owned),
            query: String::new(),
        };
        let reflectors = Self {
            components: Reflector::new(client.clone(), scope.clone()),
            configurations: Reflector::new(client.clone(), scope.clone()),
            endpoints: Reflector::new(client.clone(), scope.clone()),
            resiliencies: Reflector::new(client.clone(), scope.clone()),
            subscriptions: Reflector::new(client.clone(), scope),
        };
        let copies = Copies {
            components: Copy::of(&reflectors.components),
            configurations: Copy::of(&reflectors.configurations),
            endpoints: Copy::of(&reflectors.endpoints),
            resiliencies: Copy::of(&reflectors.resiliencies),
            subscriptions: Copy::of(&reflectors.subscriptions),
        };
        (reflectors, copies)
    }

    /// The watch state of each copy.
    pub(crate) fn states(&self) -> [Arc<WatchState>; 5] {
        [
            self.components.state(),
            self.configurations.state(),
            self.endpoints.state(),
            self.resiliencies.state(),
            self.subscriptions.state(),
        ]
    }

    /// Updates the copies until stopped. `resources` is ready once all but the subscriptions are listed,
    /// `subscriptions` once those are.
    pub(crate) async fn run(self, resources: Part, subscriptions: Part, stop: CancellationToken) {
        let progress = (
            self.configurations.progress(),
            self.components.progress(),
            self.endpoints.progress(),
            self.resiliencies.progress(),
        );
        let of_subscriptions = self.subscriptions.progress();
        let all = async {
            tokio::join!(
                answered(progress.0, &[Progress::Complete, Progress::Refused]),
                answered(progress.1, &[Progress::Complete]),
                answered(progress.2, &[Progress::Complete]),
                answered(progress.3, &[Progress::Complete]),
            );
            resources.set(true);
        };
        let subscribed = async {
            answered(of_subscriptions, &[Progress::Complete]).await;
            subscriptions.set(true);
        };
        let ready = async { tokio::join!(all, subscribed) };
        let kept = (
            self.components.run(stop.clone()),
            self.configurations.run(stop.clone()),
            self.endpoints.run(stop.clone()),
            self.resiliencies.run(stop.clone()),
            self.subscriptions.run(stop),
        );
        tokio::join!(ready, kept.0, kept.1, kept.2, kept.3, kept.4);
    }
}

async fn answered(mut progress: watch::Receiver<Progress>, enough: &[Progress]) {
    // The sender lives in the reflector, or the reflector has ended.
    let _ = progress.wait_for(|progress| enough.contains(progress)).await;
}
