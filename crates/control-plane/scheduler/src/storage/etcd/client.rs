//! Calls the members of an etcd cluster, one at a time, and switches to the next member on failure.

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::config::EtcdAccess;
use crate::proto::etcd::{
    AuthenticateRequest, auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient,
};
use crate::storage::{Full, StorageError};

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time before a keepalive ping; etcd requires at least 5 s.
const PING_AFTER: Duration = Duration::from_secs(10);
/// Timeout of a keepalive ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes: a page of jobs.
const MAX_ANSWER: usize = 256 << 20;

/// etcd's messages for a token that has expired, or was issued before a change of accounts.
const STALE_TOKEN: [&str; 3] = [
    "invalid auth token",
    "auth: revision in header",
    "revision of auth store is old",
];

/// Why an endpoint is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--etcd-client-endpoints: {endpoint:?} {why}")]
pub struct EndpointError {
    endpoint: String,
    why: String,
}

/// The services of a member.
#[derive(Clone)]
pub(crate) struct Stubs {
    pub(crate) kv: KvClient<Channel>,
    pub(crate) lease: LeaseClient<Channel>,
    pub(crate) watch: WatchClient<Channel>,
    pub(crate) maintenance: MaintenanceClient<Channel>,
    auth: AuthClient<Channel>,
}

pub(crate) struct Client {
    members: Vec<Stubs>,
    /// For messages.
    at: String,
    /// For messages: which etcd is full.
    full: Full,
    turn: AtomicUsize,
    account: Option<AuthenticateRequest>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

impl Client {
    /// Connects on first use, and reconnects after failures.
    ///
    /// # Errors
    /// [`EndpointError`]. The connection itself is not tested.
    pub(crate) fn new(settings: &EtcdAccess) -> Result<Self, EndpointError> {
        let members = settings
            .endpoints
            .iter()
            .map(|endpoint| Target::read(endpoint).map(Target::stubs));
        Ok(Self {
            members: members.collect::<Result<_, _>>()?,
            at: settings.shown(),
            full: Full::Etcd,
            turn: AtomicUsize::new(0),
            account: (!settings.username.is_empty()).then(|| AuthenticateRequest {
                name: settings.username.clone(),
                password: settings.password.clone(),
            }),
            token: Mutex::new(None),
        })
    }

    /// A client of the etcd that the scheduler runs itself, with that as its only member.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn of_child(endpoint: String) -> Result<Self, EndpointError> {
        let access = EtcdAccess {
            endpoints: vec![endpoint],
            ..EtcdAccess::default()
        };
        Ok(Self {
            full: Full::Child,
            ..Self::new(&access)?
        })
    }

    /// One attempt of a call, at the current member.
    pub(crate) async fn call<Q, A, F>(
        &self,
        request: Q,
        call: impl FnOnce(Stubs, Request<Q>) -> F,
    ) -> Result<A, StorageError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.call_within(CALL_TIMEOUT, request, call).await
    }

    /// Like [`Client::call`], with another timeout.
    pub(crate) async fn call_within<Q, A, F>(
        &self,
        limit: Duration,
        request: Q,
        call: impl FnOnce(Stubs, Request<Q>) -> F,
    ) -> Result<A, StorageError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let turn = self.turn.load(Ordering::Relaxed);
        let Some(stubs) = self.members.get(turn % self.members.len().max(1)) else {
            return Err(StorageError::Failed("no etcd endpoint is configured".to_owned()));
        };
        let calling = async {
            let mut request = Request::new(request);
            if let Some(token) = self.token(stubs).await? {
                request.metadata_mut().insert("token", token);
            }
            call(stubs.clone(), request).await
        };
        match timeout(limit, calling).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failure(turn, &status)),
            Err(_) => {
                self.next(turn);
                Err(StorageError::Unanswered(format!(
                    "etcd at {}: no answer within {} s",
                    self.at,
                    limit.as_secs()
                )))
            }
        }
    }

    /// Switches to the next member.
    pub(crate) fn switch_member(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    fn next(&self, turn: usize) {
        // Concurrent failures switch once.
        let _ = self
            .turn
            .compare_exchange(turn, turn.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn token(&self, stubs: &Stubs) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(account) = &self.account else {
            return Ok(None);
        };
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let answer = stubs.auth.clone().authenticate(account.clone()).await;
        let token = match answer {
            Ok(answer) => answer.into_inner().token,
            // An etcd without accounts needs no token.
            Err(status) if status.message().contains("authentication is not enabled") => return Ok(None),
            Err(status) => return Err(status),
        };
        let token: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| Status::internal("etcd issued a token that is not a valid header value"))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }

    /// Discards the token if `refusal` is etcd's message for a stale one, so that the next call requests
    /// another.
    pub(crate) fn check_token(&self, refusal: &str) -> bool {
        let is_stale = STALE_TOKEN.iter().any(|words| refusal.contains(*words));
        if is_stale {
            self.forget_token();
        }
        is_stale
    }

    fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn failure(&self, turn: usize, status: &Status) -> StorageError {
        let message = status.message();
        let text = format!("etcd at {}: {message}", self.at);
        let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
        if self.check_token(message) {
            return StorageError::Unavailable(text);
        }
        match status.code() {
            _ if has(&["database space exceeded"]) => StorageError::Full(self.full),
            _ if has(&["too large", "larger than max", "too many operations"]) => {
                StorageError::TooLarge(text)
            }
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted => {
                self.next(turn);
                match is_unsent(status) {
                    true => StorageError::Unavailable(text),
                    false => StorageError::Unanswered(text),
                }
            }
            Code::Unauthenticated => {
                self.forget_token();
                StorageError::Unavailable(text)
            }
            Code::ResourceExhausted => StorageError::Unavailable(text),
            _ => StorageError::Failed(text),
        }
    }
}

/// Whether a call failed before it was sent.
fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Checks the endpoints without connecting.
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn check(access: &EtcdAccess) -> Result<(), EndpointError> {
    access
        .endpoints
        .iter()
        .try_for_each(|endpoint| Target::read(endpoint).map(drop))
}

/// Address and connection settings of a member.
struct Target {
    endpoint: Endpoint,
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Target {
    fn read(endpoint: &str) -> Result<Self, EndpointError> {
        let wrong = |why: &str| EndpointError {
            endpoint: outrigger_redact::addresses(endpoint),
            why: why.to_owned(),
        };
        let (scheme, address) = endpoint.split_once("://").unwrap_or(("http", endpoint));
        let address = address.trim_end_matches('/').to_owned();
        let host = match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                host.trim_matches(['[', ']'])
            }
            _ => return Err(wrong("is not host:port, or a URL such as http://host:2379")),
        };
        let tls = match scheme {
            "http" => None,
            "https" => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|_| wrong("has no host name that a certificate can be checked against"))?;
                let mut config =
                    outrigger_tls::client_config(None, None).map_err(|why| wrong(&why.to_string()))?;
                config.alpn_protocols = vec![b"h2".to_vec()];
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            _ => return Err(wrong("has another scheme than http or https")),
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| wrong(&format!("is not a valid address: {error}")))?
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Self {
            endpoint,
            address,
            tls,
        })
    }

    fn stubs(self) -> Stubs {
        let Self {
            endpoint,
            address,
            tls,
        } = self;
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let (address, tls) = (address.clone(), tls.clone());
            async move {
                let dialling = timeout(CONNECT_TIMEOUT, dial(&address, tls));
                let stream = dialling
                    .await
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                stream.map(TokioIo::new)
            }
        }));
        Stubs {
            kv: KvClient::new(channel.clone())
                .max_decoding_message_size(MAX_ANSWER)
                .max_encoding_message_size(MAX_ANSWER),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER),
            maintenance: MaintenanceClient::new(channel.clone()),
            auth: AuthClient::new(channel),
        }
    }
}

async fn dial(address: &str, tls: Option<(TlsConnector, ServerName<'static>)>) -> io::Result<Box<dyn Bytes>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => Box::new(stream),
        Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(endpoints: &[&str]) -> Result<Client, EndpointError> {
        Client::new(&EtcdAccess {
            endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(),
            ..EtcdAccess::default()
        })
    }

    #[test]
    fn validates_endpoints() {
        let client = |endpoints: &[&str]| {
            check(&EtcdAccess {
                endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(),
                ..EtcdAccess::default()
            })
        };
        for good in [
            "localhost:2379",
            "http://127.0.0.1:1",
            "https://etcd.example:2379/",
            "[::1]:2379",
        ] {
            assert!(client(&[good]).is_ok(), "{good}");
        }
        for bad in ["", "localhost", "http://", "ftp://a:1", "a:b", ":1"] {
            let error = client(&["a:1", bad])
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(error.contains(&format!("{bad:?}")), "{bad}: {error}");
        }
        let error = client(&["http://me:hush@host"]).unwrap_err().to_string();
        assert!(error.contains("***@host") && !error.contains("hush"), "{error}");
    }

    #[tokio::test]
    async fn classifies_failures() {
        let client = client(&["a:1", "b:1"]).unwrap();
        let is = |status: Status| client.failure(client.turn.load(Ordering::Relaxed), &status);
        let unanswered = is(Status::unavailable("etcdserver: leader changed"));
        assert!(matches!(unanswered, StorageError::Unanswered(_)), "{unanswered}");
        assert_eq!(client.turn.load(Ordering::Relaxed), 1, "another member is asked");
        let refused = is(Status::unauthenticated("etcdserver: invalid auth token"));
        assert!(matches!(refused, StorageError::Unavailable(_)), "{refused}");
        // With `jwt` tokens, after any change of accounts.
        *client.token.lock().unwrap() = Some(MetadataValue::from_static("old"));
        let old = is(Status::invalid_argument(
            "etcdserver: revision of auth store is old",
        ));
        assert!(matches!(old, StorageError::Unavailable(_)), "{old}");
        assert!(
            client.token.lock().unwrap().is_none(),
            "the next call has the same"
        );
        let full = is(Status::resource_exhausted(
            "etcdserver: mvcc: database space exceeded",
        ));
        assert_eq!(full, StorageError::Full(Full::Etcd));
        assert!(full.to_string().contains("etcdctl alarm disarm"), "{full}");
        let large = is(Status::invalid_argument("etcdserver: request is too large"));
        assert!(matches!(large, StorageError::TooLarge(_)), "{large}");
        let other = is(Status::permission_denied("etcdserver: permission denied"));
        assert!(matches!(other, StorageError::Failed(_)), "{other}");
    }
}
