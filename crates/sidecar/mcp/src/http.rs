//! Requests to a server over HTTP, with its headers and authentication.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use futures::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use outrigger_resources::mcp_server::Http;
use reqwest::{Client, Url};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    StreamableHttpResponseLimits,
};
use sse_stream::Sse;
use tokio::time::timeout;

use crate::Surroundings;
use crate::auth::Authentication;
use crate::limits::{HEAD_TIMEOUT, MAX_ANSWER};

pub(crate) type HttpError = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

/// The client of one server.
#[derive(Clone)]
pub(crate) struct HttpClient {
    pub(crate) client: Client,
    /// On every request.
    headers: Arc<Headers>,
    authentication: Arc<Authentication>,
}

impl HttpClient {
    pub(crate) async fn new(server: &Http, with: &Surroundings, namespace: &str) -> Result<Self, String> {
        let url = Url::parse(&server.url).map_err(|error| format!("the URL is not valid: {error}"))?;
        let client = outrigger_webclient::client(&url).map_err(|error| error.to_string())?;
        let mut headers = Headers::new();
        for item in &server.headers {
            let invalid = || format!("the header {:?} is not valid", item.name);
            let name = HeaderName::try_from(&item.name).map_err(|_| invalid())?;
            let mut value = HeaderValue::try_from(item.text()).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self {
            client,
            headers: Arc::new(headers),
            authentication: Arc::new(Authentication::new(&server.auth, with, namespace).await?),
        })
    }

    /// The headers of a request.
    pub(crate) async fn headers(&self) -> Result<Headers, HttpError> {
        let mut headers = (*self.headers).clone();
        let header = self.authentication.header().await;
        headers.extend(header.map_err(|why| HttpError::Io(io::Error::other(why)))?);
        Ok(headers)
    }

    async fn with(&self, own: Headers) -> Result<Headers, HttpError> {
        let mut headers = self.headers().await?;
        headers.extend(own);
        Ok(headers)
    }
}

/// Limits the time until the head of a response.
pub(crate) async fn head<T>(request: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
    let limited = timeout(HEAD_TIMEOUT, request).await;
    limited.unwrap_or_else(|_| {
        let why = format!("the server did not answer within {} s", HEAD_TIMEOUT.as_secs());
        Err(HttpError::Io(io::Error::new(io::ErrorKind::TimedOut, why)))
    })
}

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        // A server may answer a call only when its tool has ended, so the time limit of the call counts.
        let is_call = matches!(
            &message,
            JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_))
        );
        let headers = self.with(headers).await?;
        let request = self
            .client
            .post_message_with_response_limits(uri, message, session, token, headers, limits);
        match is_call {
            true => request.await,
            false => head(request).await,
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), HttpError> {
        let headers = self.with(headers).await?;
        head(self.client.delete_session(uri, session, token, headers)).await
    }

    /// Resumes a response. No stream is opened for other messages of the server.
    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<Events, HttpError> {
        if last_event.is_none() {
            return Err(HttpError::ServerDoesNotSupportSse);
        }
        let headers = self.with(headers).await?;
        let client = &self.client;
        head(client.get_stream_with_max_sse_event_size(uri, session, last_event, token, headers, MAX_ANSWER))
            .await
    }
}
