//! A sentry that runs for the length of a test, and ways to call it.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use outrigger_accept::Limits;
use outrigger_flags::{Parsed, parse};
use outrigger_identity::{Expect, TrustAnchors, TrustBundle, anonymous_client_config, pem};
use outrigger_sentry::{Addresses, Config, Sentry, SentryError, config::FLAGS};
use outrigger_wire::sentry::v1::{
    SignCertificateRequest, SignCertificateResponse, ca_client::CaClient,
    sign_certificate_request::TokenValidator,
};
use rustls_pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// The identity of sentries in these tests.
pub(crate) const SENTRY: &str = "spiffe://localhost/ns/default/dapr-sentry";
/// Deadline for background events.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A sentry before its start.
pub(crate) struct Prepared {
    /// Folder of the CA's files.
    pub(crate) credentials: TempDir,
    /// Replaces the limits of the gRPC server.
    pub(crate) connections: Option<Limits>,
    configuration: TempDir,
    flags: Vec<String>,
}

/// A serving sentry.
pub(crate) struct Running {
    pub(crate) credentials: TempDir,
    pub(crate) addresses: Addresses,
    drain: CancellationToken,
    task: JoinHandle<Result<(), SentryError>>,
    _configuration: TempDir,
}

/// A sentry with these flags, in a temporary folder on free ports.
pub(crate) fn prepare(flags: &[&str]) -> Prepared {
    let prepared = Prepared {
        credentials: tempfile::tempdir().unwrap(),
        connections: None,
        configuration: tempfile::tempdir().unwrap(),
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    prepared.configure("");
    prepared
}

impl Prepared {
    pub(crate) fn configuration_file(&self) -> PathBuf {
        self.configuration.path().join("sentry.yaml")
    }

    /// Writes the `mtls` settings as YAML.
    pub(crate) fn configure(&self, mtls: &str) {
        let text = if mtls.is_empty() {
            String::new()
        } else {
            format!("apiVersion: dapr.io/v1alpha1\nkind: Configuration\nspec:\n  mtls: {mtls}\n")
        };
        std::fs::write(self.configuration_file(), text).unwrap();
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "-port=0",
            "-listen-address=127.0.0.1",
            "-healthz-port=0",
            "-metrics-port=0",
            "-oidc-server-listen-port=0",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!(
            "-issuer-credentials={}",
            self.credentials.path().display()
        ));
        arguments.push(format!("-config={}", self.configuration_file().display()));
        arguments.extend(self.flags.iter().cloned());
        arguments
    }

    pub(crate) async fn build(&self, drain: &CancellationToken) -> Result<Sentry, SentryError> {
        let Ok(Parsed::Run(flags)) = parse(FLAGS, self.arguments()) else {
            panic!("{:?}", self.flags)
        };
        let mut config = Config::from_flags(&flags, |_| None).unwrap();
        config.connections = self.connections.unwrap_or(config.connections);
        Sentry::build(config, |_| None, drain.clone()).await
    }

    /// The error with which this sentry fails to start.
    pub(crate) async fn refusal(&self) -> String {
        match self.build(&CancellationToken::new()).await {
            Ok(_) => panic!("sentry started"),
            Err(error) => outrigger_controlplane::chain(&error),
        }
    }

    /// Starts it and waits until it is healthy.
    pub(crate) async fn start(self) -> Running {
        let drain = CancellationToken::new();
        let sentry = self.build(&drain).await.unwrap();
        let addresses = sentry.addresses();
        let task = tokio::spawn(sentry.run());
        let running = Running {
            credentials: self.credentials,
            addresses,
            drain,
            task,
            _configuration: self.configuration,
        };
        let healthz = format!("http://{}/healthz", local(addresses.healthz));
        eventually(async || get(&healthz).await.0 == 200).await;
        running
    }
}

pub(crate) async fn start(flags: &[&str]) -> Running {
    prepare(flags).start().await
}

impl Running {
    /// Shuts it down; returns the result.
    pub(crate) async fn stop(self) -> Result<(), SentryError> {
        self.drain.cancel();
        tokio::time::timeout(TIMEOUT, self.task)
            .await
            .expect("still running")
            .unwrap()
    }

    pub(crate) fn root(&self) -> Vec<u8> {
        std::fs::read(self.credentials.path().join("ca.crt")).unwrap()
    }

    /// A client that accepts only this sentry as a server.
    pub(crate) fn client(&self) -> CaClient<Channel> {
        let anchors = TrustAnchors::new(TrustBundle::from_pem(&self.root()).unwrap());
        let tls = anonymous_client_config(anchors, Expect::Exact(SENTRY.parse().unwrap()));
        let mut tls = (*tls).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let (tls, address) = (TlsConnector::from(Arc::new(tls)), self.addresses.grpc);
        let connector = tower::service_fn(move |_| {
            let tls = tls.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let stream = tls
                    .connect(ServerName::try_from("localhost").unwrap(), stream)
                    .await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        CaClient::new(Endpoint::from_static("http://sentry").connect_with_connector_lazy(connector))
    }

    pub(crate) async fn sign(
        &self,
        request: SignCertificateRequest,
    ) -> Result<SignCertificateResponse, Status> {
        Ok(self.client().sign_certificate(request).await?.into_inner())
    }

    /// The value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let (status, text) = get(&format!(
            "http://{}/metrics",
            local(self.addresses.metrics.unwrap())
        ))
        .await;
        assert_eq!(status, 200);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))
            .parse()
            .unwrap()
    }
}

/// The loopback address of a server on all addresses.
pub(crate) fn local(address: SocketAddr) -> SocketAddr {
    ([127, 0, 0, 1], address.port()).into()
}

/// A valid request for `default/myapp`.
pub(crate) fn request() -> SignCertificateRequest {
    let key = rcgen::KeyPair::generate().unwrap();
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    SignCertificateRequest {
        id: "myapp".to_owned(),
        namespace: "default".to_owned(),
        certificate_signing_request: csr.pem().unwrap().into_bytes().into(),
        ..SignCertificateRequest::default()
    }
}

/// Like `request`, with a token.
pub(crate) fn request_with(token: String) -> SignCertificateRequest {
    SignCertificateRequest {
        token,
        token_validator: TokenValidator::Jwks.into(),
        ..request()
    }
}

/// The certificates of a response, leaf first.
pub(crate) fn chain(response: &SignCertificateResponse) -> Vec<CertificateDer<'static>> {
    pem::parse_certificates(&response.workload_certificate).unwrap()
}

/// Status and body of a GET request over plain HTTP.
pub(crate) async fn get(url: &str) -> (u16, String) {
    get_trusting(url, &[]).await
}

/// Status and body of a GET request that trusts these roots.
pub(crate) async fn get_trusting(url: &str, roots: &[CertificateDer<'static>]) -> (u16, String) {
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let tls =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(store)
            .with_no_client_auth();
    let client = outrigger_webclient::builder(tls).no_proxy().build().unwrap();
    let response = client.get(url).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Waits until a condition holds.
pub(crate) async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .expect("it did not happen");
}
