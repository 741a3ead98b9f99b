//! Client of the other replicas.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::impls::EmptyNode;
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use outrigger_accept::Listen;
use outrigger_identity::{Expect, Identity, server_name};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::Types;
use super::messages::{RaftRequest, RaftResponse, RequestKind};
use super::server::METHOD;
use crate::config::Replica;

/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before retrying an unreachable replica.
const PAUSE: Duration = Duration::from_millis(300);

type RequestError<E> = RPCError<u64, EmptyNode, E>;

/// The other replicas.
pub(super) struct Peers {
    members: BTreeMap<u64, Replica>,
    identity: Option<Identity>,
}

/// One other replica.
pub(super) struct Peer {
    channel: Option<Channel>,
    address: String,
}

impl Peers {
    pub(super) fn new(members: BTreeMap<u64, Replica>, identity: Option<Identity>) -> Self {
        Self { members, identity }
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _: &EmptyNode) -> Peer {
        match self.members.get(&target) {
            Some(replica) => Peer {
                channel: channel(&replica.listen, self.identity.as_ref()),
                address: format!("{} ({}:{})", replica.id, replica.listen.host, replica.listen.port),
            },
            None => Peer {
                channel: None,
                address: format!("a replica that --initial-cluster does not name ({target:x})"),
            },
        }
    }
}

/// A lazy connection that reconnects when lost.
fn channel(at: &Listen, identity: Option<&Identity>) -> Option<Channel> {
    let (host, port): (Arc<str>, u16) = (at.host.trim_matches(['[', ']']).into(), at.port);
    // All replicas have the same identity.
    let tls = identity.map(|identity| identity.client_config(Expect::Exact(identity.id())));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let authority = format!("{}:{port}", at.host);
    let endpoint = Endpoint::from_shared(format!("http://{authority}")).ok()?;
    let endpoint = endpoint.origin(format!("{scheme}://{authority}").parse().ok()?);
    Some(endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let (host, tls) = (Arc::clone(&host), tls.clone());
        async move {
            let tcp = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((&*host, port))).await??;
            tcp.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(match tls {
                None => Connected::Plain(tcp),
                Some(tls) => {
                    let handshake = TlsConnector::from(tls).connect(server_name(&host), tcp);
                    let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await??;
                    Connected::Tls(Box::new(stream))
                }
            }))
        }
    })))
}

impl Peer {
    async fn send<E: std::error::Error>(
        &self,
        kind: RequestKind,
        option: &RPCOption,
    ) -> Result<RaftResponse, RequestError<E>> {
        let asked = tokio::time::timeout(option.hard_ttl(), self.exchange(kind)).await;
        asked
            .unwrap_or_else(|_| Err(tonic::Status::deadline_exceeded("no answer in time")))
            .map_err(|status| {
                tracing::debug!(
                    target: super::LOG,
                    "replica {} does not answer: {}: {}", self.address, status.code(), status.message()
                );
                RPCError::Unreachable(Unreachable::new(&status))
            })
    }

    async fn exchange(&self, kind: RequestKind) -> Result<RaftResponse, tonic::Status> {
        let channel = self.channel.clone();
        let mut client = tonic::client::Grpc::new(
            channel.ok_or_else(|| tonic::Status::unavailable("its address is not known"))?,
        );
        client
            .ready()
            .await
            .map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let request = tonic::Request::new(RaftRequest { kind: Some(kind) });
        let codec = ProstCodec::<RaftRequest, RaftResponse>::default();
        let answer = client
            .unary(request, PathAndQuery::from_static(METHOD), codec)
            .await?;
        Ok(answer.into_inner())
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RequestError<RaftError<u64>>> {
        let answer = self.send(RequestKind::Append(request.into()), &option).await?;
        Ok(answer.into())
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RequestError<RaftError<u64, InstallSnapshotError>>> {
        let answer = self.send(RequestKind::Snapshot(request.into()), &option).await?;
        Ok(answer.into())
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RequestError<RaftError<u64>>> {
        let answer = self.send(RequestKind::Vote(request.into()), &option).await?;
        Ok(answer.into())
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}

/// A connection with or without TLS.
enum Connected {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Connected {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connected {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
