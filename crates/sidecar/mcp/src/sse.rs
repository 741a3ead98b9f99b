//! The transport of MCP before 2025: the server sends on one event stream, whose first event names the URL
//! for requests.

use futures::stream::{BoxStream, StreamExt as _};
use http::header::CONTENT_TYPE;
use reqwest::Url;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_client::StreamableHttpClient as _;

use crate::LOG;
use crate::http::{HttpClient, HttpError, head};
use crate::limits::MAX_ANSWER;

/// Name and data of an event.
type Event = Result<(Option<String>, Option<String>), HttpError>;

/// A connection to a server.
pub(crate) struct SseTransport {
    http: HttpClient,
    /// The URL for requests.
    endpoint: Url,
    events: BoxStream<'static, Event>,
}

impl SseTransport {
    /// Opens the stream and waits for its first event.
    pub(crate) async fn open(http: HttpClient, url: &str) -> Result<Self, HttpError> {
        let base = Url::parse(url).map_err(|error| unexpected(error.to_string()))?;
        let headers = http.headers().await?;
        let opening =
            http.client
                .get_stream_with_max_sse_event_size(url.into(), None, None, None, headers, MAX_ANSWER);
        let events = head(opening).await?;
        let mut events: BoxStream<'static, Event> = events
            .map(|event| Ok(event.map(|event| (event.event, event.data))?))
            .boxed();
        let first = async {
            match events.next().await {
                Some(Ok((Some(name), Some(data)))) if name == "endpoint" => Ok(data),
                Some(Err(error)) => Err(error),
                _ => Err(unexpected(
                    "its stream did not begin with the event 'endpoint'".to_owned(),
                )),
            }
        };
        let named = head(first).await?;
        let endpoint = base.join(named.trim());
        let endpoint = endpoint.map_err(|error| unexpected(format!("its endpoint is no URL: {error}")))?;
        // Requests carry credentials of this server.
        if endpoint.origin() != base.origin() {
            return Err(unexpected("its endpoint has another origin".to_owned()));
        }
        Ok(Self {
            http,
            endpoint,
            events,
        })
    }
}

fn unexpected(why: String) -> HttpError {
    HttpError::UnexpectedServerResponse(why.into())
}

impl Transport<RoleClient> for SseTransport {
    type Error = HttpError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), HttpError>> + Send + 'static {
        let (http, endpoint) = (self.http.clone(), self.endpoint.clone());
        async move {
            let body = serde_json::to_vec(&message)?;
            let headers = http.headers().await?.into_iter().collect();
            let request = http.client.post(endpoint).headers(headers);
            let request = request.header(CONTENT_TYPE, "application/json").body(body);
            let response = head(async { Ok(request.send().await?) }).await?;
            match response.status() {
                status if status.is_success() => Ok(()),
                status => Err(unexpected(format!("it answered {status}"))),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let (name, data) = match self.events.next().await? {
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!(target: LOG, "the event stream of an MCP server failed: {error}");
                    return None;
                }
            };
            if name.is_some_and(|name| name != "message") {
                continue;
            }
            match serde_json::from_str(&data.unwrap_or_default()) {
                Ok(message) => return Some(message),
                Err(error) => {
                    tracing::warn!(target: LOG, "ignored an unreadable message of an MCP server: {error}");
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), HttpError> {
        self.events = futures::stream::empty().boxed();
        Ok(())
    }
}
