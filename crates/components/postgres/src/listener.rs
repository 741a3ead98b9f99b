use std::time::Duration;

use outrigger_component::{Error, Kind, Result};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client};
use tokio_util::task::AbortOnDropHandle;

use super::{connector::Connector, pool::failure};
use outrigger_component::deadline::within;

/// Maximum queued notifications.
const QUEUE: usize = 256;

/// A dedicated connection that listens on a channel.
pub(super) struct Listener {
    /// Dropping it ends the connection.
    client: Client,
    _task: AbortOnDropHandle<()>,
    payloads: mpsc::Receiver<String>,
    /// Idle time before a probe, and timeout of the probe.
    probe_after: Duration,
}

impl Listener {
    /// Connects and starts listening on the channel.
    pub(super) async fn open(
        config: &tokio_postgres::Config,
        tls: Connector,
        channel: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let name = identifier(channel)?;
        within(timeout, "PostgreSQL", async {
            let (client, mut connection) = config.connect(tls).await.map_err(failure)?;
            let (sender, payloads) = mpsc::channel(QUEUE);
            let task = tokio::spawn(async move {
                loop {
                    match std::future::poll_fn(|context| connection.poll_message(context)).await {
                        Some(Ok(AsyncMessage::Notification(notification))) => {
                            if sender.send(notification.payload().to_owned()).await.is_err() {
                                return;
                            }
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            tracing::warn!(target: "dapr.contrib", "cannot listen to PostgreSQL: {error}");
                            return;
                        }
                        None => return,
                    }
                }
            });
            let task = AbortOnDropHandle::new(task);
            client
                .batch_execute(&format!("LISTEN {name}"))
                .await
                .map_err(failure)?;
            Ok(Self {
                client,
                _task: task,
                payloads,
                probe_after: timeout,
            })
        })
        .await
    }

    /// The next payload; `None` if the connection ended or the server does not answer a probe.
    pub(super) async fn next(&mut self) -> Option<String> {
        loop {
            if let Ok(payload) = tokio::time::timeout(self.probe_after, self.payloads.recv()).await {
                return payload;
            }
            let asked = tokio::time::timeout(self.probe_after, self.client.check_connection());
            match asked.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }
}

/// A quoted channel name, lowercase as if it were unquoted.
fn identifier(channel: &str) -> Result<String> {
    let word = channel
        .chars()
        .all(|c| c.is_alphanumeric() || c == '_' || c == '$');
    if channel.is_empty() || !word {
        let text = format!(
            "pgNotifyChannel {channel:?} is not a valid name of a channel: use letters, digits and _"
        );
        return Err(Error::new(Kind::InvalidRequest, text));
    }
    Ok(format!("\"{}\"", channel.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::identifier;

    #[test]
    fn channel_names_cannot_inject_sql() {
        assert_eq!(identifier("Config_1").unwrap(), "\"config_1\"");
        for wrong in ["", "a;b", "a b", "a\"b"] {
            assert!(identifier(wrong).is_err(), "{wrong}");
        }
    }
}
