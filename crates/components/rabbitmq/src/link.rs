use std::{collections::HashSet, sync::Arc, time::Duration};

use lapin::{
    Channel, Connection, ConnectionProperties, ErrorKind,
    auth::AuthProvider,
    options::ConfirmSelectOptions,
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError, constants::FRAME_MIN_SIZE},
    tcp::AsyncTcpStream,
    uri::{AMQPScheme, AMQPUri},
};
use outrigger_component::{Error, Kind, Metadata, Result, Unit, deadline::within};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    frames::{Limits, MAX_FRAME},
    settings::Options,
    short,
    socket::{self, Tls},
    topology,
};

/// Timeout of connecting and of each call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Maximum cached topics with a declared exchange.
const MAX_TOPICS: usize = 10_000;

/// The connection, which reconnects after a failure.
pub(super) struct Link {
    uri: AMQPUri,
    tls: Option<Tls>,
    name: Option<String>,
    external: bool,
    /// Maximum body size of a message in bytes.
    max_body: usize,
    reconnect_wait: Duration,
    live: Mutex<Live>,
    publishing: Mutex<Publishing>,
}

#[derive(Default)]
struct Live {
    connection: Option<Arc<Connection>>,
    /// Time and cause of the last failed connect.
    failed: Option<(Instant, Kind, String)>,
    closed: bool,
}

/// The publishing channel, and topics whose exchange was declared on it.
#[derive(Default)]
struct Publishing {
    channel: Option<Channel>,
    declared: HashSet<String>,
}

/// SASL EXTERNAL: the certificate identifies the client.
struct External;
impl AuthProvider for External {}

impl Link {
    pub(super) fn new(metadata: &Metadata, reconnect_wait: Duration) -> Result<Self> {
        let uri = uri(metadata)?;
        let tls = match uri.scheme {
            AMQPScheme::AMQPS => Some(tls(metadata, &uri.authority.host)?),
            AMQPScheme::AMQP => None,
        };
        let external = metadata.flag(&["saslExternal"], false);
        if external && (tls.is_none() || metadata.filled(&["clientCert"]).is_none()) {
            let text = "it needs amqps:// and caCert, clientCert and clientKey";
            return Err(metadata.wrong(&["saslExternal"], text).into());
        }
        Ok(Self {
            uri,
            tls,
            name: metadata.filled(&["clientName"]).map(str::to_owned),
            external,
            max_body: metadata.max_answer(),
            reconnect_wait,
            live: Mutex::default(),
            publishing: Mutex::default(),
        })
    }

    /// The current or a new connection. After a failure, further attempts fail at once for a while.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>> {
        let mut live = self.live.lock().await;
        if live.closed {
            return Err(Error::closed());
        }
        if let Some(connection) = &live.connection
            && connection.status().connected()
        {
            return Ok(Arc::clone(connection));
        }
        let pause = self.reconnect_wait.min(Duration::from_secs(1));
        if let Some((when, kind, text)) = &live.failed
            && when.elapsed() < pause
        {
            return Err(Error::new(*kind, text.clone()));
        }
        live.connection = None;
        match self.dial().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                live.connection = Some(Arc::clone(&connection));
                live.failed = None;
                Ok(connection)
            }
            Err(error) => {
                live.failed = Some((Instant::now(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    async fn dial(&self) -> Result<Connection> {
        let mut properties = ConnectionProperties::default();
        if let Some(name) = &self.name {
            properties = properties.with_connection_name(name.as_str().into());
        }
        if self.external {
            properties = properties.with_auth_provider(External);
        }
        let tls = self.tls.clone();
        let limits = Limits {
            frame: self.uri.query.frame_max.unwrap_or(MAX_FRAME),
            body: self.max_body,
        };
        let connecting = Connection::connector(
            self.uri.clone(),
            socket::runtime(),
            async move |uri, _| {
                let (host, port) = (uri.authority.host.trim_matches(['[', ']']), uri.authority.port);
                Ok(AsyncTcpStream::Plain(
                    socket::connect(host, port, tls.as_ref(), limits).await?,
                ))
            },
            properties,
        );
        let at = format!(
            "RabbitMQ at {}:{}",
            self.uri.authority.host, self.uri.authority.port
        );
        let connecting = async { connecting.await.map_err(|error| dialled(&error, &at)) };
        within(CALL_TIMEOUT, &at, connecting).await
    }

    /// The publishing channel, with the exchange of `topic` declared.
    pub(super) async fn publisher(&self, topic: &str, options: &Options) -> Result<Channel> {
        let mut publishing = self.publishing.lock().await;
        let channel = match &publishing.channel {
            Some(channel) if channel.status().connected() => channel.clone(),
            _ => {
                publishing.declared.clear();
                publishing.channel = None;
                let channel = self.channel().await?;
                let confirmed = channel.confirm_select(ConfirmSelectOptions::default());
                call(confirmed).await?;
                publishing.channel.insert(channel).clone()
            }
        };
        if !publishing.declared.contains(topic) {
            self.declare(topic, options).await?;
            if publishing.declared.len() >= MAX_TOPICS {
                publishing.declared.clear();
            }
            publishing.declared.insert(topic.to_owned());
        }
        Ok(channel)
    }

    /// Declares a topic's exchange on a separate channel: if it exists with other properties, the server
    /// closes the channel with all messages in flight. Dropping a channel closes it.
    async fn declare(&self, topic: &str, options: &Options) -> Result<()> {
        let name = short(topic, "topic")?;
        let channel = self.channel().await?;
        call(topology::exchange(
            &channel,
            &name,
            &options.exchange_kind,
            options,
        ))
        .await
    }

    /// Discards a failed channel.
    pub(super) async fn forget_publisher(&self, failed: &Channel) {
        let mut publishing = self.publishing.lock().await;
        if publishing
            .channel
            .as_ref()
            .is_some_and(|channel| channel.id() == failed.id())
        {
            publishing.channel = None;
        }
    }

    /// A new channel.
    pub(super) async fn channel(&self) -> Result<Channel> {
        let connection = self.connection().await?;
        call(connection.create_channel()).await
    }

    pub(super) async fn close(&self) {
        let connection = {
            let mut live = self.live.lock().await;
            live.closed = true;
            live.connection.take()
        };
        if let Some(connection) = connection {
            // An unresponsive broker notices by itself.
            let _late = timeout(CALL_TIMEOUT, connection.close(200, "OK".into())).await;
        }
    }
}

/// Waits for an answer, with a timeout.
pub(super) async fn call<T: Send>(answer: impl Future<Output = lapin::Result<T>> + Send) -> Result<T> {
    let answer = async { answer.await.map_err(|error| failure(&error)) };
    within(CALL_TIMEOUT, "RabbitMQ", answer).await
}

/// Converts a client error, with a remedy.
pub(super) fn failure(error: &lapin::Error) -> Error {
    let ErrorKind::ProtocolError(amqp) = error.kind() else {
        return Error::new(Kind::Unavailable, format!("RabbitMQ: {error}"));
    };
    let kind = match amqp.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => Kind::Denied,
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => {
            let text = format!(
                "RabbitMQ has it with other properties: {}; make the settings of the component and of the subscription \
                 the same everywhere, or delete it there",
                amqp.get_message()
            );
            return Error::new(Kind::Configuration, text);
        }
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => Kind::Denied,
        _ => Kind::Unavailable,
    };
    Error::new(kind, format!("RabbitMQ: {}", amqp.get_message()))
}

/// The error of a failed connect.
fn dialled(error: &lapin::Error, at: &str) -> Error {
    let failed = failure(error);
    let text = match failed.kind() {
        Kind::Denied => format!("{at} refuses the credentials: {failed}"),
        _ => format!("{at}: {failed}"),
    };
    Error::new(failed.kind(), text)
}

fn uri(metadata: &Metadata) -> Result<AMQPUri> {
    const STRING: &[&str] = &["connectionString", "host"];
    let protocol = metadata.filled(&["protocol"]);
    let mut uri: AMQPUri = match metadata.filled(STRING) {
        Some(text) => {
            let uri: AMQPUri = text.parse().map_err(|error| {
                metadata.wrong(
                    STRING,
                    &format!("a URI like amqp://user:password@host:5672 is expected: {error}"),
                )
            })?;
            if protocol.is_some_and(|protocol| protocol != uri.scheme.to_string()) {
                return Err(metadata
                    .wrong(&["protocol"], "the connection string says another one")
                    .into());
            }
            uri
        }
        None => {
            let scheme = protocol.unwrap_or("amqp");
            let host = metadata.filled(&["hostname"]).unwrap_or("localhost");
            format!("{scheme}://{host}").parse().map_err(|error| {
                metadata.wrong(
                    &["hostname", "protocol"],
                    &format!("amqp or amqps and a host are expected: {error}"),
                )
            })?
        }
    };
    let account = &mut uri.authority.userinfo;
    if let Some(name) = metadata.filled(&["username"]) {
        name.clone_into(&mut account.username);
    }
    if let Some(password) = metadata.filled(&["password"]) {
        password.clone_into(&mut account.password);
    }
    let heartbeat = metadata.duration(&["heartBeat"], Unit::Seconds)?;
    let heartbeat = heartbeat.map_or(HEARTBEAT, |given| given.positive().unwrap_or_default());
    uri.query.heartbeat = Some(u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX));
    uri.query.frame_max = uri
        .query
        .frame_max
        .filter(|most| *most >= FRAME_MIN_SIZE)
        .or(Some(MAX_FRAME));
    Ok(uri)
}

fn tls(metadata: &Metadata, host: &str) -> Result<Tls> {
    let config = metadata.client_tls()?;
    Tls::new(config, host).map_err(|error| metadata.wrong(&["connectionString", "hostname"], &error).into())
}
