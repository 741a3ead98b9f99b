//! A scripted authority.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use outrigger_identity::testing::{Algorithm, Authority, Leaf};
use outrigger_identity::{Identity, TrustAnchors};
use outrigger_wire::sentry::v1::ca_server::{Ca, CaServer};
use outrigger_wire::sentry::v1::{SignCertificateRequest, SignCertificateResponse};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status};

/// Modifies a valid response.
type Bend = Box<dyn FnOnce(&mut SignCertificateResponse) + Send>;

/// The response to one request.
pub(crate) enum Answer {
    Sign,
    SignThen(Bend),
    Refuse(Status),
    /// Never responds.
    Hang,
    /// Closes the connection.
    Drop,
}

impl Answer {
    fn bent(bend: impl FnOnce(&mut SignCertificateResponse) + Send + 'static) -> Self {
        Self::SignThen(Box::new(bend))
    }

    pub(crate) fn without_time() -> Self {
        Self::bent(|response| response.valid_until = None)
    }

    pub(crate) fn with_time(seconds: i64) -> Self {
        Self::bent(move |response| {
            if let Some(until) = &mut response.valid_until {
                until.seconds = seconds;
            }
        })
    }

    pub(crate) fn with_certificate(pem: &str) -> Self {
        let pem = pem.to_owned();
        Self::bent(move |response| response.workload_certificate = pem.into())
    }

    pub(crate) fn with_jwt(token: &str) -> Self {
        let token = token.to_owned();
        Self::bent(move |response| response.jwt = Some(token))
    }

    /// Like [`Answer::with_jwt`], with a token for one audience.
    pub(crate) fn with_jwts(token: &str, audience: &str, of_audience: &str) -> Self {
        let (token, entry) = (token.to_owned(), (audience.to_owned(), of_audience.to_owned()));
        Self::bent(move |response| {
            response.jwt = Some(token);
            response.per_audience_jwts.extend([entry]);
        })
    }
}

/// A token with this audience (as JSON), valid for an hour.
pub(crate) fn jwt(audience: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = format!(r#"{{"aud":{audience},"iat":{now},"exp":{}}}"#, now + 3600);
    let header = r#"{"alg":"RS256","typ":"JWT"}"#;
    format!(
        "{}.{}.c2ln",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(claims)
    )
}

/// A running authority; stops on drop.
pub(crate) struct StubCa {
    pub(crate) address: String,
    pub(crate) authority: Arc<Authority>,
    script: Arc<Script>,
    listening: AbortHandle,
}

impl StubCa {
    /// Serves as `id`, with one response per request.
    pub(crate) async fn start(id: &str, answers: Vec<Answer>) -> Self {
        let authority = Arc::new(Authority::new("localhost", Algorithm::P256));
        let svid = authority.issue(Leaf::workload(id)).into_svid();
        let identity = Identity::new(svid, TrustAnchors::new(authority.bundle()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let script = Arc::new(Script {
            authority: Arc::clone(&authority),
            answers: Mutex::new(answers.into()),
            requests: Mutex::default(),
        });
        let listening = tokio::spawn(listen(listener, identity, Arc::clone(&script))).abort_handle();
        Self {
            address,
            authority,
            script,
            listening,
        }
    }

    /// Requests received so far.
    pub(crate) fn requests(&self) -> Vec<SignCertificateRequest> {
        self.script.requests.lock().unwrap().clone()
    }
}

impl Drop for StubCa {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, identity: Identity, script: Arc<Script>) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            return;
        };
        let tls = TlsAcceptor::from(identity.server_config_no_client_auth());
        let script = Arc::clone(&script);
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(tcp).await else { return };
            let close = Arc::new(Notify::new());
            let service = TowerToHyperService::new(CaServer::new(Connection {
                script,
                close: Arc::clone(&close),
            }));
            let http = Builder::new(TokioExecutor::new()).http2_only();
            tokio::select! {
                _ = http.serve_connection(TokioIo::new(stream), service) => {}
                () = close.notified() => {}
            }
        });
    }
}

struct Script {
    authority: Arc<Authority>,
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<SignCertificateRequest>>,
}

impl Script {
    fn sign(&self, request: &SignCertificateRequest) -> SignCertificateResponse {
        let uri = format!("spiffe://public/ns/{}/{}", request.namespace, request.id);
        let certificate = self
            .authority
            .sign_request(&request.certificate_signing_request, Leaf::workload(&uri));
        SignCertificateResponse {
            workload_certificate: certificate.into(),
            trust_chain_certificates: vec![self.authority.root_pem().into()],
            valid_until: Some((SystemTime::now() + Duration::from_secs(24 * 3600)).into()),
            jwt: None,
            per_audience_jwts: Default::default(),
        }
    }
}

struct Connection {
    script: Arc<Script>,
    close: Arc<Notify>,
}

#[tonic::async_trait]
impl Ca for Connection {
    async fn sign_certificate(
        &self,
        request: Request<SignCertificateRequest>,
    ) -> Result<Response<SignCertificateResponse>, Status> {
        let request = request.into_inner();
        self.script.requests.lock().unwrap().push(request.clone());
        let answer = self.script.answers.lock().unwrap().pop_front();
        match answer.expect("an answer for every request") {
            Answer::Sign => Ok(Response::new(self.script.sign(&request))),
            Answer::SignThen(bend) => {
                let mut response = self.script.sign(&request);
                bend(&mut response);
                Ok(Response::new(response))
            }
            Answer::Refuse(status) => Err(status),
            Answer::Hang => std::future::pending().await,
            Answer::Drop => {
                self.close.notify_one();
                std::future::pending().await
            }
        }
    }
}
