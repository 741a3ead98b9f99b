//! Where a lease is kept.

use serde_json::Value;

use crate::client::Client;
use crate::error::ApiError;
use crate::kind::Kind;
use crate::watch::{Event, Watch};

/// One lease, where it is kept.
pub(super) trait LeaseStore: Send + Sync {
    type LeaseWatch: LeaseWatch;

    /// The lease as it is.
    fn get(&self) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Makes it, where there is none.
    fn create(&self, lease: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Replaces the version that `lease` names.
    fn replace(&self, lease: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Watches it: first as it is now.
    fn watch(&self) -> impl Future<Output = Result<Self::LeaseWatch, ApiError>> + Send;
}

/// What a watch says of a lease.
pub(super) trait LeaseWatch: Send {
    /// The next event; nothing when the watch has ended in order.
    fn next(&mut self) -> impl Future<Output = Result<Option<Event>, ApiError>> + Send;
}

/// In the API.
#[derive(Debug)]
pub(super) struct ApiLease {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Its events, and those of no other lease.
pub(super) struct ApiLeaseWatch {
    watch: Watch,
    name: String,
}

impl ApiLease {
    /// Says which rights are missing.
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
        // From what the server has on: it may know no more of the version that was read, and for the newest one it has to ask
        // etcd, which versions before 3.4.31 and 3.5.13 cannot answer.
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
