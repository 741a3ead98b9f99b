//! The connection to a cluster.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use outrigger_component::{Error, Kind, Metadata, MetadataError, Result};
use outrigger_tls::client_config;
use prost::Message;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Timeout of connecting and of each call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time before a keepalive ping; etcd requires at least 5 s.
const PING_AFTER: Duration = Duration::from_secs(10);
/// Timeout of a ping; afterwards the client connects to another member.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Link {
    channel: Channel,
    at: String,
    max_answer: usize,
    closed: AtomicBool,
}

/// The members of the cluster; the client connects to one of them.
#[derive(Clone)]
struct Members {
    addresses: Arc<[Member]>,
    /// Index of the member that the next connection tries first, so that an unresponsive member is skipped.
    turn: Arc<AtomicUsize>,
    tls: Option<TlsConnector>,
}

struct Member {
    address: String,
    host: String,
}

trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

impl Members {
    fn read(metadata: &Metadata) -> Result<Self> {
        const ENDPOINTS: &[&str] = &["endpoints"];
        let endpoints = metadata.required(ENDPOINTS)?;
        let secure = metadata.flag(&["tlsEnable"], false);
        let tls = if secure { tls(metadata)? } else { None };
        let mut addresses = Vec::new();
        for text in endpoints.split(',').map(str::trim) {
            let address = text
                .split_once("://")
                .map_or(text, |(_, rest)| rest)
                .trim_end_matches('/');
            // Like Dapr, ignore user and password.
            let address = address.rsplit_once('@').map_or(address, |(_, host)| host);
            let member = address
                .rsplit_once(':')
                .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            let Some((host, _)) = member else {
                return Err(metadata
                    .wrong(ENDPOINTS, "host:port is expected, several with commas")
                    .into());
            };
            addresses.push(Member {
                host: host.trim_matches(['[', ']']).to_owned(),
                address: address.to_owned(),
            });
        }
        Ok(Self {
            addresses: addresses.into(),
            turn: Arc::default(),
            tls,
        })
    }

    /// Connects to the first reachable member, starting at `turn`.
    async fn dial(self) -> io::Result<Box<dyn Bytes>> {
        let mut failed = io::Error::other("there is no endpoint");
        let count = self.addresses.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % count.max(1);
        for member in self.addresses.iter().cycle().skip(turn).take(count) {
            let dialling = timeout(CALL_TIMEOUT, member.dial(self.tls.as_ref()));
            match dialling
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl Member {
    async fn dial(&self, tls: Option<&TlsConnector>) -> io::Result<Box<dyn Bytes>> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

/// `None` if one of the three properties is missing or invalid while errors are collected, so that checking
/// continues.
fn tls(metadata: &Metadata) -> Result<Option<TlsConnector>, MetadataError> {
    const NAMES: [&str; 3] = ["ca", "cert", "key"];
    let [ca, cert, key] = NAMES.map(|name| metadata.required(&[name]));
    let texts = [ca?, cert?, key?];
    for (name, text) in NAMES.into_iter().zip(texts) {
        if !text.is_empty() && !text.contains("-----BEGIN ") {
            return Err(metadata.wrong(&[name], "PEM text is expected"));
        }
    }
    if texts.contains(&"") {
        return Ok(None);
    }
    let [ca, cert, key] = texts.map(str::as_bytes);
    let mut config = client_config(Some(ca), Some((cert, key))).map_err(|error| {
        let [ca, cert, key] = NAMES;
        metadata.wrong(&[error.among(ca, cert, key)], &error.to_string())
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

impl Link {
    /// Connects on first use and reconnects after failures.
    pub(super) fn new(metadata: &Metadata) -> Result<Self> {
        let members = Members::read(metadata)?;
        let at: Vec<&str> = members
            .addresses
            .iter()
            .map(|member| member.address.as_str())
            .collect();
        let at = at.join(",");
        // Ping while idle too, so that the first call after a pause does not hit a dead connection.
        let endpoint = Endpoint::from_static("http://etcd")
            .timeout(CALL_TIMEOUT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let members = members.clone();
            async move { members.dial().await.map(TokioIo::new) }
        }));
        Ok(Self {
            channel,
            at,
            max_answer: metadata.max_answer(),
            closed: AtomicBool::new(false),
        })
    }

    /// Calls `method`, e.g. `KV/Range`.
    pub(super) async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed());
        }
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(self.max_answer);
        let calling = async {
            grpc.ready()
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
            let path = PathAndQuery::from_static(method);
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            grpc.unary(Request::new(request), path, codec).await
        };
        match timeout(CALL_TIMEOUT, calling).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failure(&status)),
            Err(_) => Err(Error::new(
                Kind::Timeout,
                format!("etcd at {}: no answer within {CALL_TIMEOUT:?}", self.at),
            )),
        }
    }

    fn failure(&self, status: &Status) -> Error {
        let kind = match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => Kind::Timeout,
            Code::InvalidArgument | Code::OutOfRange => Kind::InvalidRequest,
            Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
            Code::ResourceExhausted => Kind::Internal,
            _ => Kind::Unavailable,
        };
        Error::new(kind, format!("etcd at {}: {}", self.at, status.message()))
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named, tls::Certificates};

    #[tokio::test]
    async fn ignores_and_hides_address_credentials() {
        let endpoints = "http://me:hush@127.0.0.1:1,me:p@ss@[::1]:2/";
        let setup = outrigger_components_testing::setup(&[("endpoints", endpoints)]);
        let members = super::Members::read(&setup.metadata).unwrap();
        let addresses: Vec<_> = members.addresses.iter().map(|member| &member.address).collect();
        assert_eq!(addresses, ["127.0.0.1:1", "[::1]:2"]);
        let link = super::Link::new(&setup.metadata).unwrap();
        assert_eq!(link.at, "127.0.0.1:1,[::1]:2");
    }

    async fn told(properties: &[(&str, &str)]) -> Vec<String> {
        let opened = Components::of(crate::add).state("state.etcd", "v2", properties);
        let mut told = named(opened.await);
        told.sort();
        told
    }

    /// Including a missing or invalid address.
    #[tokio::test]
    async fn reports_all_errors_together() {
        let wrong = [("maxTxnOps", "many"), ("tlsEnable", "true"), ("cert", "no PEM")];
        for address in [None, Some(("endpoints", "host"))] {
            let properties: Vec<_> = wrong.into_iter().chain(address).collect();
            let expected = ["ca", "cert", "endpoints", "key", "maxTxnOps"];
            assert_eq!(told(&properties).await, expected, "{address:?}");
        }
    }

    #[tokio::test]
    async fn names_damaged_certificate() {
        let of = Certificates::new();
        let good = [("ca", &*of.root), ("cert", &of.client), ("key", &of.client_key)];
        for (name, _) in good {
            let mut properties = [&[("endpoints", "127.0.0.1:1"), ("tlsEnable", "true")][..], &good].concat();
            let damaged = properties.iter_mut().find(|(other, _)| *other == name);
            damaged.unwrap().1 = "-----BEGIN ";
            assert_eq!(told(&properties).await, [name]);
        }
    }
}
