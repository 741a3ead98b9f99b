//! A connection to a broker: frames in both directions, and keepalive.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use futures::{SinkExt, StreamExt};
use outrigger_component::{Error, Kind, Result, deadline::within};
use outrigger_tls::{AnyCertificate, Verifier};
use pulsar::{
    error::ConnectionError,
    message::{Codec, Message},
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::codec::{Decoder, Encoder, Framed};
use url::Url;

use super::{command, lookup::TLS, settings::Settings};

/// Timeout of calls to a broker.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time before a ping, and timeout of its answer.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum message size until the broker announces its own, bytes.
const DEFAULT_MAX_MESSAGE: usize = 5 * 1024 * 1024;
/// Maximum message size that a broker may announce, bytes.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// Maximum size of a frame in addition to its message, bytes.
const MAX_OVERHEAD: usize = 1024 * 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An authenticated connection to a broker.
pub(super) struct Connection {
    frames: Framed<Box<dyn Stream>, Frames>,
    settings: Arc<Settings>,
    /// Address of the broker.
    url: Url,
    request: u64,
    heard: Instant,
    asked: bool,
    /// Sent before anything else is awaited.
    answers: Vec<Box<Message>>,
}

/// Codec of the protocol's frames, with a size limit.
struct Frames {
    most: usize,
}

impl Decoder for Frames {
    type Item = Box<Message>;
    type Error = ConnectionError;

    fn decode(&mut self, from: &mut BytesMut) -> Result<Option<Box<Message>>, ConnectionError> {
        if let Some(mut size) = from.get(..4) {
            let size = usize::try_from(size.get_u32()).unwrap_or(usize::MAX);
            if size > self.most {
                let text = format!("a frame of {size} bytes exceeds the limit of {}", self.most);
                return Err(ConnectionError::Decoding(text));
            }
        }
        Ok(Codec.decode(from)?.map(Box::new))
    }
}

impl Encoder<Box<Message>> for Frames {
    type Error = ConnectionError;

    fn encode(&mut self, message: Box<Message>, to: &mut BytesMut) -> Result<(), ConnectionError> {
        Codec.encode(*message, to)
    }
}

impl Connection {
    /// Connects to one of the configured hosts.
    pub(super) async fn to_any(settings: &Arc<Settings>) -> Result<Self> {
        let mut failed = None;
        for url in &settings.hosts {
            match Self::to(settings, url, None).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Configuration, "there is no host")))
    }

    /// Connects to the broker at `url`, or through a proxy there to `broker`.
    pub(super) async fn to(settings: &Arc<Settings>, url: &Url, broker: Option<String>) -> Result<Self> {
        let connecting = async {
            let stream = connect(settings, url).await?;
            let frames = Frames {
                most: DEFAULT_MAX_MESSAGE + MAX_OVERHEAD,
            };
            let mut connection = Self {
                frames: Framed::new(stream, frames),
                settings: Arc::clone(settings),
                url: url.clone(),
                request: 0,
                heard: Instant::now(),
                asked: false,
                answers: Vec::new(),
            };
            connection.introduce(broker).await?;
            Ok(connection)
        };
        within(CALL_TIMEOUT, &format!("Pulsar at {url}"), connecting).await
    }

    async fn introduce(&mut self, broker: Option<String>) -> Result<()> {
        let (method, data) = self.settings.credentials.shown().await?;
        self.send(command::connect(method, data, broker)).await?;
        let answer = self.next().await?.command;
        if let Some(error) = answer.error {
            let what = format!("Pulsar at {}", self.url);
            return Err(command::refused(&what, error.error, &error.message));
        }
        let Some(connected) = answer.connected else {
            return Err(self.lost(&"it does not speak the protocol of Pulsar"));
        };
        let most = connected
            .max_message_size
            .and_then(|most| usize::try_from(most).ok());
        let most = most
            .filter(|most| *most > 0)
            .unwrap_or(DEFAULT_MAX_MESSAGE)
            .min(MAX_MESSAGE);
        self.frames.codec_mut().most = most + MAX_OVERHEAD;
        Ok(())
    }

    /// Maximum size of a payload with metadata, bytes.
    pub(super) fn largest(&self) -> usize {
        self.frames.codec().most - MAX_OVERHEAD
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// A new request id.
    pub(super) fn request(&mut self) -> u64 {
        self.request += 1;
        self.request
    }

    pub(super) fn lost(&self, why: &dyn std::fmt::Display) -> Error {
        Error::new(Kind::Unavailable, format!("Pulsar at {}: {why}", self.url))
    }

    /// # Errors
    /// The connection is broken.
    pub(super) async fn send(&mut self, message: Box<Message>) -> Result<()> {
        match timeout(CALL_TIMEOUT, self.frames.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(&error)),
            Err(_) => Err(self.lost(&"it no longer accepts data")),
        }
    }

    /// The next message except pings. Cancel-safe.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn next(&mut self) -> Result<Box<Message>> {
        loop {
            // Removed only after it is in the send buffer.
            while let Some(answer) = self.answers.last() {
                let answer = answer.clone();
                let fed = timeout(CALL_TIMEOUT, self.frames.feed(answer)).await;
                self.answers.pop();
                match fed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Err(self.lost(&error)),
                    Err(_) => return Err(self.lost(&"it no longer accepts data")),
                }
            }
            if let Err(error) = SinkExt::<Box<Message>>::flush(&mut self.frames).await {
                return Err(self.lost(&error));
            }
            let limit = self.heard
                + if self.asked {
                    PING_INTERVAL * 2
                } else {
                    PING_INTERVAL
                };
            let message = tokio::select! {
                // Data already received counts as a sign of life, however late it is read.
                biased;
                message = self.frames.next() => match message {
                    Some(Ok(message)) => message,
                    Some(Err(error)) => return Err(self.lost(&error)),
                    None => return Err(self.lost(&"it closed the connection")),
                },
                () = sleep_until(limit) => {
                    if self.asked {
                        return Err(self.lost(&"it no longer answers"));
                    }
                    self.asked = true;
                    self.answers.push(command::ping());
                    continue;
                }
            };
            self.heard = Instant::now();
            self.asked = false;
            if message.command.ping.is_some() {
                self.answers.push(command::pong());
            } else if message.command.auth_challenge.is_some() {
                let (method, data) = self.settings.credentials.shown().await?;
                self.answers.push(command::auth_response(method, data));
            } else if message.command.pong.is_none() {
                return Ok(message);
            }
        }
    }

    /// Sends a request and waits for its answer. Other messages are dropped.
    pub(super) async fn ask<T>(
        &mut self,
        what: &str,
        request: Box<Message>,
        answer: impl Fn(&Message) -> Option<T> + Send + Sync,
    ) -> Result<T>
    where
        T: Send,
    {
        let asking = async {
            self.send(request).await?;
            loop {
                let message = self.next().await?;
                if let Some(error) = &message.command.error {
                    return Err(command::refused(what, error.error, &error.message));
                }
                if let Some(answer) = answer(&message) {
                    return Ok(answer);
                }
            }
        };
        within(CALL_TIMEOUT, what, asking).await
    }
}

async fn connect(settings: &Settings, url: &Url) -> Result<Box<dyn Stream>> {
    let is_tls = url.scheme() == TLS;
    let host = url.host_str().unwrap_or_default();
    // IPv6 addresses have brackets in a URL.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port().unwrap_or(if is_tls { 6651 } else { 6650 });
    let failed = |error: &io::Error| Error::new(Kind::Unavailable, format!("Pulsar at {url}: {error}"));
    let stream = TcpStream::connect((host, port)).await;
    let stream = stream.map_err(|error| failed(&error))?;
    stream.set_nodelay(true).map_err(|error| failed(&error))?;
    if !is_tls {
        return Ok(Box::new(stream));
    }
    let wrong = |error: &dyn std::fmt::Display| {
        Error::new(Kind::Configuration, format!("Pulsar at {url}: TLS: {error}"))
    };
    let mut config = outrigger_tls::client_config(None, None).map_err(|error| wrong(&error))?;
    if !settings.verifies {
        let verifier = Verifier::new(AnyCertificate, config.crypto_provider());
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|error| wrong(&error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_frames() {
        let mut frames = Frames { most: 100 };
        let mut large = BytesMut::from(&[0, 0, 0, 101, 0][..]);
        let error = frames.decode(&mut large).unwrap_err().to_string();
        assert!(error.contains("101 bytes"), "{error}");
        let mut begun = BytesMut::from(&[0, 0, 0, 100, 0][..]);
        assert!(frames.decode(&mut begun).unwrap().is_none());
        let mut sent = BytesMut::new();
        frames.encode(command::ping(), &mut sent).unwrap();
        let came = frames.decode(&mut sent).unwrap().unwrap();
        assert!(came.command.ping.is_some());
    }
}
