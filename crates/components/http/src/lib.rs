//! `bindings.http`: requests to a URL and to paths below it.

mod client;
mod gzip;
mod metadata;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, OutputBinding, Result, Unit,
    bindings::{Invoke, Invoked},
    catalog::Version,
};
use outrigger_offload::offload;
use outrigger_resources::value::truthy;
use outrigger_webclient::{causes, shown, within};
use reqwest::{Client, Method, Request, Response, Url};
use tokio::time::timeout;

const LOG: &str = "dapr.contrib";
const OPERATIONS: &[&str] = &[
    "create", "get", "head", "post", "put", "patch", "delete", "options", "trace",
];
/// Default of `maxResponseBodySize`, bytes.
const DEFAULT_MAX_RESPONSE: i64 = 100 << 20;
/// Maximum gap between parts of a response body. Until the response starts, only `responseTimeout` applies.
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .output_bindings
        .add(Entry::new(&["http"], Version::Only, |setup| async move {
            let binding = HttpBinding::open(&setup.metadata)?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        }));
}

struct HttpBinding {
    client: Client,
    url: String,
    /// Requests stay below this URL.
    base: Url,
    /// A header for every request.
    token: Option<metadata::Header>,
    timeout: Option<Duration>,
    /// Maximum bytes read of a response.
    most: Option<usize>,
    only_success: bool,
    closed: AtomicBool,
    component: Arc<str>,
}

impl HttpBinding {
    fn open(metadata: &Metadata) -> Result<Self> {
        let url = metadata.required(&["url"])?.to_owned();
        let size = metadata.filled(&["maxResponseBodySize"]);
        let size = size.map(outrigger_resources::value::quantity).transpose();
        let size = size.map_err(|error| metadata.wrong(&["maxResponseBodySize"], &error.to_string()))?;
        let timeout = metadata.duration(&["responseTimeout"], Unit::Seconds)?;
        // After the other properties, so that their errors are reported too.
        let parsed = parse(&url).map_err(|error| {
            metadata.wrong(
                &["url"],
                &format!("an http or https URL with a host is expected: {error}"),
            )
        })?;
        Ok(Self {
            client: client::build(metadata, &parsed)?,
            url,
            base: parsed,
            token: metadata::token(metadata)?,
            timeout: timeout.and_then(outrigger_component::GoDuration::positive),
            most: usize::try_from(size.unwrap_or(DEFAULT_MAX_RESPONSE))
                .ok()
                .filter(|most| *most > 0),
            only_success: metadata.filled(&["errorIfNot2XX"]).is_none_or(truthy),
            closed: AtomicBool::new(false),
            component: metadata.component().clone(),
        })
    }

    fn request(&self, call: &Invoke) -> Result<Request> {
        let (method, has_body) = method(&call.operation)?;
        let url = match call.metadata.get("path").filter(|path| !path.is_empty()) {
            Some(path) => format!(
                "{}/{}",
                self.url.trim_end_matches('/'),
                path.trim_start_matches('/')
            ),
            None => self.url.clone(),
        };
        let url = Url::parse(&url).map_err(|error| {
            Error::invalid_request(format!(
                "the metadata item path does not give a valid URL: {error}"
            ))
        })?;
        if !within(&self.base, &url) {
            let base = shown(&self.base);
            return Err(Error::invalid_request(format!(
                "the metadata item path points outside the binding's url {base}"
            )));
        }
        let mut request = Request::new(method, url);
        *request.headers_mut() = metadata::headers(&call.metadata, self.token.as_ref(), has_body)?;
        if has_body {
            *request.body_mut() = Some(call.data.clone().into());
        }
        *request.timeout_mut() = self.timeout;
        Ok(request)
    }

    async fn send(&self, call: &Invoke) -> Result<Invoked> {
        let only_success = match call.metadata.get("errorIfNot2XX").filter(|text| !text.is_empty()) {
            Some(text) => truthy(text),
            None => self.only_success,
        };
        let mut request = self.request(call)?;
        let asked = gzip::request_gzip(&mut request);
        let shown = format!("{} {}", request.method(), shown(request.url()));
        let response = self.client.execute(request).await;
        let response = response.map_err(|error| failure(&shown, error))?;
        let status = response.status();
        let packed = asked && gzip::is_packed(&response);
        let answer = metadata::answer(&response, packed);
        let (data, whole) = self.body(response, &shown).await?;
        let (data, whole) = if packed {
            self.unpacked(data, whole, &shown).await?
        } else {
            (data, whole)
        };
        if !whole {
            tracing::warn!(
                target: LOG,
                "http binding {}: the response of {shown} is truncated after {} bytes; raise \
                 maxResponseBodySize to get all of it",
                self.component,
                data.len()
            );
        }
        if only_success && !status.is_success() {
            let text = format!("received status code {}", status.as_u16());
            return Err(Error::new(Kind::Internal, text).with_metadata(answer));
        }
        Ok(Invoked {
            data,
            metadata: answer,
            content_type: None,
        })
    }

    /// The body up to the limit, and whether it is complete.
    async fn body(&self, mut response: Response, shown: &str) -> Result<(Bytes, bool)> {
        let limit = self.timeout.map_or(STALL_TIMEOUT, |all| all.max(STALL_TIMEOUT));
        let mut body = BytesMut::new();
        loop {
            let Ok(chunk) = timeout(limit, response.chunk()).await else {
                let text = format!("{shown}: no further response data within {limit:?}");
                return Err(Error::new(Kind::Timeout, text));
            };
            let Some(chunk) = chunk.map_err(|error| failure(shown, error))? else {
                return Ok((body.freeze(), true));
            };
            let remaining = self.most.map_or(usize::MAX, |most| most - body.len());
            if chunk.len() > remaining {
                body.extend_from_slice(&chunk[..remaining]);
                return Ok((body.freeze(), false));
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// Decompresses a body; the limit applies to the decompressed size.
    async fn unpacked(&self, data: Bytes, whole: bool, shown: &str) -> Result<(Bytes, bool)> {
        let most = self.most;
        // Always offloaded, because content may grow by a large factor.
        let unpacked = offload(usize::MAX, move || gzip::unpack(&data, whole, most)).await;
        unpacked.map_err(|error| {
            let text = format!("{shown}: the server sent an invalid gzip body");
            Error::new(Kind::Internal, text).because(error)
        })
    }
}

/// Parses a URL and checks that requests can be sent to it.
fn parse(text: &str) -> std::result::Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("its scheme is {}", url.scheme()));
    }
    // For `http:///path` the parser would take `path` as the host.
    let behind = text.split_once("://").map(|(_, behind)| behind);
    if behind.is_none_or(|behind| behind.starts_with(['/', '\\', '?', '#'])) {
        return Err("it has no host".to_owned());
    }
    Ok(url)
}

/// The HTTP method of an operation, and whether it has a body.
fn method(operation: &str) -> Result<(Method, bool)> {
    Ok(match operation.to_ascii_uppercase().as_str() {
        "CREATE" | "POST" => (Method::POST, true),
        "PUT" => (Method::PUT, true),
        "PATCH" => (Method::PATCH, true),
        "GET" => (Method::GET, false),
        "HEAD" => (Method::HEAD, false),
        "DELETE" => (Method::DELETE, false),
        "OPTIONS" => (Method::OPTIONS, false),
        "TRACE" => (Method::TRACE, false),
        _ => return Err(Error::unsupported(format!("invalid operation: {operation}"))),
    })
}

fn failure(shown: &str, error: reqwest::Error) -> Error {
    let kind = if error.is_timeout() {
        Kind::Timeout
    } else if error.is_builder() {
        Kind::InvalidRequest
    } else {
        Kind::Unavailable
    };
    Error::new(kind, shown).because(causes(&error))
}

#[async_trait]
impl OutputBinding for HttpBinding {
    fn operations(&self) -> Vec<&str> {
        OPERATIONS.to_vec()
    }

    async fn invoke(&self, call: &Invoke) -> Result<Option<Invoked>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed().of(&self.component));
        }
        match self.send(call).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => Err(error.of(&self.component)),
        }
    }

    /// Only connects, because a request could have side effects.
    async fn ping(&self) -> Result<()> {
        let Ok(url) = Url::parse(&self.url) else {
            return Ok(());
        };
        let address = (
            url.host_str().unwrap_or_default().trim_matches(['[', ']']),
            url.port_or_known_default().unwrap_or_default(),
        );
        let dial = tokio::net::TcpStream::connect(address);
        match timeout(client::CONNECT, dial).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Error::new(Kind::Unavailable, shown(&url)).because(error)),
            Err(_) => Err(Error::new(Kind::Timeout, shown(&url))),
        }
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use outrigger_offload::done_at_once;

    use super::*;

    #[tokio::test]
    async fn offloads_decompression() {
        let properties = [("url".to_owned(), "http://localhost".to_owned())];
        let binding = HttpBinding::open(&Metadata::new("web", properties).unwrap()).unwrap();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"little, and could be much").unwrap();
        let packed = encoder.finish().unwrap().into();
        let (was_at_once, unpacked) = done_at_once(binding.unpacked(packed, true, "GET /")).await;
        assert!(!was_at_once);
        assert_eq!(unpacked.unwrap().0, "little, and could be much");
    }
}
