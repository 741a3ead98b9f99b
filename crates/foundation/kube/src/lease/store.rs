//! Storage of a lease.

use serde_json::Value;

use crate::client::Client;
use crate::error::ApiError;
use crate::kind::Kind;
use crate::watch::{Event, Watch};

/// Storage of one lease.
pub(super) trait LeaseStore: Send + Sync {
    type LeaseWatch: LeaseWatch;

    /// Reads the lease.
    fn get(&self) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Creates the lease if it does not exist.
    fn create(&self, lease: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Replaces the version in `lease`.
    fn replace(&self, lease: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Watches the lease, starting with its current state.
    fn watch(&self) -> impl Future<Output = Result<Self::LeaseWatch, ApiError>> + Send;
}

/// Events of a lease.
pub(super) trait LeaseWatch: Send {
    /// The next event; `None` if the watch has ended normally.
    fn next(&mut self) -> impl Future<Output = Result<Option<Event>, ApiError>> + Send;
}

/// A lease in the Kubernetes API.
#[derive(Debug)]
pub(super) struct ApiLease {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A watch of the API, filtered to this lease.
pub(super) struct ApiLeaseWatch {
    watch: Watch,
    name: String,
}

impl ApiLease {
    /// Adds the missing permissions to an error.
    fn explained(&self, error: ApiError) -> ApiError {
        match error {
            ApiError::Refused {
                what,
                status,
                message,
            } if status == http::StatusCode::FORBIDDEN => ApiError::Refused {
                what,
                status,
                message: format!(
                    "{message}; the service account needs a role in the namespace {} that allows to get, watch and update \
                     the lease {}, and to create leases",
                    self.namespace, self.name
                ),
            },
            other => other,
        }
    }
}

impl LeaseStore for ApiLease {
    type LeaseWatch = ApiLeaseWatch;

    async fn get(&self) -> Result<Value, ApiError> {
        let got = self.client.get(Kind::LEASES, Some(&self.namespace), &self.name);
        got.await.map_err(|error| self.explained(error))
    }

    async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        let created = self.client.create(Kind::LEASES, Some(&self.namespace), lease);
        created.await.map_err(|error| self.explained(error))
    }

    async fn replace(&self, lease: &Value) -> Result<Value, ApiError> {
        let namespace = Some(self.namespace.as_str());
        let replaced = self.client.replace(Kind::LEASES, namespace, &self.name, lease);
        replaced.await.map_err(|error| self.explained(error))
    }

    async fn watch(&self) -> Result<ApiLeaseWatch, ApiError> {
        let query = format!("fieldSelector=metadata.name%3D{}", self.name);
        // Version 0 starts at any state the server has. The version just read may have left its history,
        // and for the latest state it must query etcd, which fails with versions before 3.4.31 and 3.5.13.
        let watch = Watch::open(&self.client, Kind::LEASES, Some(&self.namespace), &query, "0");
        Ok(ApiLeaseWatch {
            watch: watch.await.map_err(|error| self.explained(error))?,
            name: self.name.clone(),
        })
    }
}

impl LeaseWatch for ApiLeaseWatch {
    async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            let event = self.watch.next().await?;
            match &event {
                Some(Event::Applied(lease) | Event::Removed(lease))
                    if lease["metadata"]["name"] != *self.name => {}
                _ => return Ok(event),
            }
        }
    }
}
