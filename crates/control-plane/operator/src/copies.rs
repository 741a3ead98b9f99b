//! Local copies of the collections that the operator serves to sidecars.

use std::sync::Arc;
use std::time::Duration;

use outrigger_controlplane::health::Part;
use outrigger_kube::{Client, Progress, Reflector, Scope, Store, WatchState, Watched};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::resource::{
    AppPod, Component, Configuration, HttpEndpoint, McpServer, Resiliency, Resource, Subscription,
    WorkflowAccessPolicy,
};

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

    /// The collection, whether it is listed or not.
    pub(crate) fn store(&self) -> Arc<Store<T>> {
        Arc::clone(&self.store)
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

/// What readiness waits for: a list, or any answer.
const LISTED: &[Progress] = &[Progress::Complete];
const ANSWERED: &[Progress] = &[Progress::Complete, Progress::Refused];

/// `member: type of the objects, filter of the list, the progress that readiness waits for;`
macro_rules! copies {
    ($($member:ident: $object:ty, $query:expr, $enough:expr;)*) => {
        /// All copies.
        #[derive(Debug, Clone)]
        pub(crate) struct Copies {
            $(pub(crate) $member: Copy<$object>,)*
        }

        /// The reflectors that update the copies.
        #[derive(Debug)]
        pub(crate) struct Reflectors {
            $($member: Reflector<$object>,)*
        }

        impl Reflectors {
            /// For one namespace, or for all. Lists again after `relist`, if given.
            pub(crate) fn new(client: &Client, namespace: Option<&str>, relist: Option<Duration>) -> (Self, Copies) {
                let scope = |query: &str| Scope {
                    namespace: namespace.map(str::to_owned),
                    query: query.to_owned(),
                };
                $(let $member = Reflector::new(client.clone(), scope($query)).relisting(relist);)*
                let copies = Copies {
                    $($member: Copy::of(&$member),)*
                };
                (Self { $($member,)* }, copies)
            }

            /// The watch state of each copy.
            pub(crate) fn states(&self) -> Vec<Arc<WatchState>> {
                vec![$(self.$member.state(),)*]
            }

            /// Updates the copies until stopped. `ready` is set once all are listed.
            pub(crate) async fn run(self, ready: Part, stop: CancellationToken) {
                $(let $member = answered(self.$member.progress(), $enough);)*
                let known = async {
                    tokio::join!($($member),*);
                    ready.set(true);
                };
                tokio::join!(known, $(self.$member.run(stop.clone())),*);
            }
        }
    };
}

copies! {
    components: Resource<Component>, "", LISTED;
    configurations: Resource<Configuration>, "", ANSWERED;
    endpoints: Resource<HttpEndpoint>, "", LISTED;
    mcp_servers: Resource<McpServer>, "", ANSWERED;
    pods: AppPod, AppPod::SELECTOR, ANSWERED;
    resiliencies: Resource<Resiliency>, "", LISTED;
    subscriptions: Resource<Subscription>, "", LISTED;
    workflow_access_policies: Resource<WorkflowAccessPolicy>, "", LISTED;
}

async fn answered(mut progress: watch::Receiver<Progress>, enough: &[Progress]) {
    // The sender lives in the reflector, or the reflector has ended.
    let _ = progress.wait_for(|progress| enough.contains(progress)).await;
}
