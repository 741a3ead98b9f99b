//! HTTP/1.1 POST to a collector over a kept connection.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use tokio::task::AbortHandle;

use super::ExportError;
use super::dial::Dialer;

/// Most of an error body that is repeated in the log.
const ERROR_BODY: usize = 4096;

#[derive(Debug)]
pub(super) struct Poster {
    uri: Uri,
    dialer: Dialer,
    headers: HeaderMap,
    connection: Option<Connected>,
}

#[derive(Debug)]
struct Connected {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Poster {
    pub(super) fn new(uri: Uri, dialer: Dialer, content_type: &'static str, mut headers: HeaderMap) -> Self {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(host) = uri
            .authority()
            .and_then(|a| HeaderValue::from_str(a.as_str()).ok())
        {
            headers.insert(HOST, host);
        }
        Self {
            uri,
            dialer,
            headers,
            connection: None,
        }
    }

    pub(super) async fn post(&mut self, body: Bytes) -> Result<(), ExportError> {
        // Taken out, so that an attempt that is cut off leaves no half-used connection behind.
        let kept = self
            .connection
            .take()
            .filter(|connected| !connected.sender.is_closed());
        let mut connected = match kept {
            Some(connected) => connected,
            None => self.connect().await?,
        };
        connected.sender.ready().await.map_err(unavailable)?;
        let path = self.uri.path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path
            .parse()
            .map_err(|e: http::uri::InvalidUri| ExportError::Refused(e.to_string()))?;
        *request.headers_mut() = self.headers.clone();
        let response = connected
            .sender
            .send_request(request)
            .await
            .map_err(unavailable)?;
        judge(response).await?;
        self.connection = Some(connected);
        Ok(())
    }

    async fn connect(&self) -> Result<Connected, ExportError> {
        let io = self.dialer.connect(&self.uri).await.map_err(unavailable)?;
        let (sender, connection) = handshake(io).await.map_err(unavailable)?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Connected { sender, driver })
    }
}

fn unavailable(error: impl std::fmt::Display) -> ExportError {
    ExportError::Unavailable(error.to_string())
}

/// Reads the answer to its end, so that the connection can be used again.
async fn judge(response: Response<Incoming>) -> Result<(), ExportError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), ERROR_BODY).collect().await;
    if status.is_success() {
        return Ok(());
    }
    let text = body
        .map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned())
        .unwrap_or_default();
    let text = format!("{status} {text}");
    match status.as_u16() {
        408 | 429 | 502..=504 => Err(ExportError::Unavailable(text)),
        _ => Err(ExportError::Refused(text)),
    }
}
