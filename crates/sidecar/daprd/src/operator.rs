//! The operator of a Kubernetes cluster, the source of a sidecar's settings and resources there.

mod kinds;
mod pauses;
mod secrets;
mod updates;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use outrigger_identity::{Expect, Identity, SpiffeId};
use outrigger_resources::configuration::{Found, LoadedConfiguration};
use outrigger_resources::load::{self, Kind};
use outrigger_resources::{Configuration, Loaded, problem};
use outrigger_wire::operator::v1 as wire;
use outrigger_wire::operator::v1::operator_client::OperatorClient;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Response, Status};

pub(crate) use kinds::{Change, Listing, Opening, OperatorKind, OperatorResource, Requester, opening};
pub(crate) use pauses::Pauses;
pub(crate) use secrets::{STORE as CLUSTER_SECRETS, decode_all};
pub(crate) use updates::{Update, Updates};

const LOG: &str = "dapr.runtime.operator";
/// Timeout of a call, and how long the first calls are retried, because the operator may still be starting.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Name of the operation in errors.
const LOAD_CONFIGURATION: &str = "load the Configuration";
/// Maximum size of a response in bytes.
const MAX_MESSAGE: usize = 64 << 20;

/// Why a request to the operator failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The address is not valid.
    #[error("--control-plane-address {address:?}: {cause}; give host:port of the operator")]
    Address {
        /// The value of `--control-plane-address`.
        address: String,
        /// The reason.
        cause: String,
    },
    /// The operator did not answer, or refused the request.
    #[error(
        "failed to {what} from the operator at {address}: {cause}; check that it runs and that this pod can reach it"
    )]
    Call {
        /// The failed operation.
        what: String,
        /// Address of the operator.
        address: String,
        /// The error of the call.
        cause: String,
    },
    /// The Configuration does not exist.
    #[error("configuration {0} not found: create it in the namespace of this pod, or correct --config")]
    NotFound(String),
    /// The received Configuration is not valid.
    #[error("{0}")]
    Content(String),
}

/// A connection to the operator, made on demand and reconnected after failures.
#[derive(Clone)]
pub struct Operator {
    requester: Requester,
    address: String,
    app_id: String,
}

/// The workload on whose behalf the operator is called.
pub struct Workload {
    /// App id of the sidecar.
    pub app_id: String,
    /// Namespace of its identity.
    pub namespace: String,
}

impl Operator {
    /// The operator at `address`, which must prove the identity `id`.
    ///
    /// # Errors
    /// [`OperatorError::Address`].
    pub fn new(
        address: &str,
        identity: &Identity,
        id: SpiffeId,
        workload: Workload,
    ) -> Result<Self, OperatorError> {
        let channel = outrigger_identity::channel(address, identity, Expect::Exact(id));
        let channel = channel.map_err(|cause| OperatorError::Address {
            address: address.to_owned(),
            cause,
        })?;
        Ok(Self {
            requester: Requester {
                client: OperatorClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
                namespace: workload.namespace,
            },
            address: address.to_owned(),
            app_id: workload.app_id,
        })
    }

    /// The app id of the workload.
    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    /// A Configuration by name, with its problems.
    ///
    /// # Errors
    /// [`OperatorError`], after a minute of retries.
    pub async fn configuration(&self, name: &str) -> Result<LoadedConfiguration, OperatorError> {
        let answer = self.with_retries(LOAD_CONFIGURATION, || self.get_configuration(name));
        read_configuration(name, &answer.await?.configuration)
    }

    /// The current Configuration by name, with its problems.
    ///
    /// # Errors
    /// [`OperatorError`], after a single attempt.
    pub async fn configuration_now(&self, name: &str) -> Result<LoadedConfiguration, OperatorError> {
        let answer = self.once(LOAD_CONFIGURATION, self.get_configuration(name));
        read_configuration(name, &answer.await?.configuration)
    }

    /// All resources for the app.
    ///
    /// # Errors
    /// [`OperatorError`], after a minute of retries.
    pub async fn load(&self) -> Result<Loaded, OperatorError> {
        let lists = Kind::ALL.iter().map(|kind| async {
            let kind = OperatorKind::of(*kind);
            let list = || known((kind.list)(self.requester.clone()));
            let listed = self.with_retries(&kind.listing(), list).await?;
            Ok(listed.into_iter().map(move |json| (kind.kind, json)))
        });
        let loaded = self.read(try_join_all(lists).await?.into_iter().flatten())?;
        crate::log_problems!(LOG, &loaded.warnings);
        Ok(loaded)
    }

    /// The resources of a kind for the app; `None` if the operator does not know the kind.
    ///
    /// # Errors
    /// [`OperatorError`], after a single attempt.
    pub async fn list(&self, kind: Kind) -> Result<Option<Loaded>, OperatorError> {
        let kind = OperatorKind::of(kind);
        match in_time((kind.list)(self.requester.clone())).await {
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(self.failed(&kind.listing(), &status)),
            Ok(listed) => self
                .read(listed.into_iter().map(|json| (kind.kind, json)))
                .map(Some),
        }
    }

    /// The changes of a kind of resources.
    pub(crate) fn updates(&self, kind: OperatorKind) -> Updates {
        let requester = self.requester.clone();
        Updates::new(kind.plural, move || (kind.watch)(requester.clone()))
    }

    /// The changes of the app's Configuration.
    pub(crate) fn configuration_updates(&self) -> Updates {
        let requester = self.requester.clone();
        Updates::new("Configurations", move || {
            let Requester {
                mut client,
                namespace,
            } = requester.clone();
            let request = wire::ConfigurationUpdateRequest { namespace };
            let call = async move { client.configuration_update(request).await };
            opening(call, |event| Change {
                event: event.r#type(),
                json: event.configuration,
            })
        })
    }

    async fn get_configuration(
        &self,
        name: &str,
    ) -> Result<Response<wire::GetConfigurationResponse>, Status> {
        let Requester {
            mut client,
            namespace,
        } = self.requester.clone();
        let name = name.to_owned();
        let request = wire::GetConfigurationRequest { name, namespace };
        client.get_configuration(request).await
    }

    /// Parses resources from JSON and decodes their secrets.
    pub(crate) fn read(&self, objects: impl Iterator<Item = (Kind, Bytes)>) -> Result<Loaded, OperatorError> {
        let loaded = load::objects(objects, &self.app_id);
        let mut loaded = loaded.map_err(|problems| OperatorError::Content(problem::summary(&problems)))?;
        kinds::decode_secrets(&mut loaded);
        Ok(loaded)
    }

    async fn with_retries<T, F>(&self, what: &str, call: impl Fn() -> F) -> Result<T, OperatorError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (given_up, mut pauses) = (Instant::now() + START_TIMEOUT, Pauses::new());
        loop {
            let status = match in_time(call()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let failed = self.failed(what, &status);
            if !is_transient(&status) || Instant::now() > given_up {
                return Err(failed);
            }
            tracing::warn!(target: LOG, "{failed}; retrying");
            sleep(pauses.next()).await;
        }
    }

    async fn once<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, OperatorError> {
        in_time(call).await.map_err(|status| self.failed(what, &status))
    }

    fn failed(&self, what: &str, status: &Status) -> OperatorError {
        OperatorError::Call {
            what: what.to_owned(),
            address: self.address.clone(),
            cause: described(status),
        }
    }
}

/// A first list of a kind of resources. An operator of an older version that does not know the kind has none.
async fn known(listing: Listing) -> Result<Response<Vec<Bytes>>, Status> {
    match listing.await {
        Err(status) if status.code() == Code::Unimplemented => Ok(Response::new(Vec::new())),
        listed => listed,
    }
}

fn read_configuration(name: &str, json: &[u8]) -> Result<LoadedConfiguration, OperatorError> {
    if json.is_empty() {
        return Err(OperatorError::NotFound(name.to_owned()));
    }
    let found = Configuration::mistakes_in(
        json,
        &format!("Configuration {name}"),
        &crate::value_checks::value_checks(),
    );
    let Found { mistakes, warnings } = found;
    let configuration = Configuration::from_json(json).map_err(|error| {
        let all = std::iter::once(format!("Configuration {name}: {error}"));
        let others = mistakes.iter().chain(&warnings).map(ToString::to_string);
        let all: Vec<_> = all.chain(others).collect();
        OperatorError::Content(all.join("; "))
    })?;
    Ok(LoadedConfiguration {
        configuration,
        warnings,
        mistakes,
        empty: Vec::new(),
    })
}

async fn in_time<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    let late = |_| {
        Err(Status::deadline_exceeded(format!(
            "no answer within {} s",
            CALL_TIMEOUT.as_secs()
        )))
    };
    let answer = timeout(CALL_TIMEOUT, call).await.unwrap_or_else(late)?;
    Ok(answer.into_inner())
}

/// Whether a retry may help. A status with a source was created locally, because there was no connection.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded
    ) || std::error::Error::source(status).is_some()
}

/// A status with its causes.
fn described(status: &Status) -> String {
    let cause = std::error::Error::source(status).map(outrigger_transport::error::chain);
    match cause {
        Some(cause) => format!("{:?}: {cause}", status.code()),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}
