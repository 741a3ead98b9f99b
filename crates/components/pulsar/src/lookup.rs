//! Looks up the broker and the partitions of a topic.

use std::sync::Arc;

use outrigger_component::{Error, Kind, Result};
use pulsar::proto::{
    command_lookup_topic_response::LookupType,
    command_partitioned_topic_metadata_response::LookupType as PartitionsFound,
};
use url::Url;

use super::{command, connection::Connection, settings::Settings};

/// URL scheme with TLS.
pub(super) const TLS: &str = "pulsar+ssl";
/// Maximum redirects between brokers.
const MAX_REDIRECTS: u32 = 20;
/// Maximum partitions of a topic: each needs a connection.
const MAX_PARTITIONS: u32 = 256;

/// Full names of a topic's partitions; the topic itself if not partitioned.
pub(super) async fn partitions(settings: &Arc<Settings>, topic: &str) -> Result<Vec<String>> {
    let mut connection = Connection::to_any(settings).await?;
    let request = command::partitions(topic, connection.request());
    let what = format!("topic {topic}");
    let found = connection
        .ask(&what, request, |message| {
            message.command.partition_metadata_response.clone()
        })
        .await?;
    if found.response == Some(PartitionsFound::Failed as i32) {
        let text = found.message.unwrap_or_default();
        return Err(command::refused(&what, found.error.unwrap_or_default(), &text));
    }
    match found.partitions.unwrap_or(0) {
        0 => Ok(vec![topic.to_owned()]),
        count if count > MAX_PARTITIONS => {
            let text = format!("{what} has {count} partitions, more than the {MAX_PARTITIONS} supported");
            Err(Error::new(Kind::Unsupported, text))
        }
        count => Ok((0..count)
            .map(|number| format!("{topic}-partition-{number}"))
            .collect()),
    }
}

/// Connects to the broker of a topic or partition.
pub(super) async fn open(settings: &Arc<Settings>, topic: &str) -> Result<Connection> {
    let mut connection = Connection::to_any(settings).await?;
    let entrance = connection.url().clone();
    let mut authoritative = false;
    let what = format!("topic {topic}");
    for _ in 0..MAX_REDIRECTS {
        let request = command::lookup(topic, authoritative, connection.request());
        let found = connection
            .ask(&what, request, |message| {
                message.command.lookup_topic_response.clone()
            })
            .await?;
        let kind = found.response.and_then(|kind| LookupType::try_from(kind).ok());
        if kind.is_none_or(|kind| kind == LookupType::Failed) {
            let text = found.message.unwrap_or_default();
            return Err(command::refused(&what, found.error.unwrap_or_default(), &text));
        }
        let text = match entrance.scheme() {
            TLS => found.broker_service_url_tls,
            _ => found.broker_service_url,
        };
        let text = text.unwrap_or_default();
        let through = found.proxy_through_service_url.unwrap_or(false);
        if kind == Some(LookupType::Connect) && through {
            // A proxy names the broker by the address it uses itself, possibly without TLS.
            let broker = text.split_once("://").map_or(text.as_str(), |(_, broker)| broker);
            let broker = broker.trim_end_matches('/').to_owned();
            return Connection::to(settings, &entrance, Some(broker)).await;
        }
        let url = address(&what, &entrance, &text)?;
        match kind {
            Some(LookupType::Connect) if is_same(connection.url(), &url) => return Ok(connection),
            Some(LookupType::Connect) => return Connection::to(settings, &url, None).await,
            _ => {
                authoritative = found.authoritative.unwrap_or(false);
                connection = Connection::to(settings, &url, None).await?;
            }
        }
    }
    let text = format!("{what}: too many redirects from broker to broker");
    Err(Error::new(Kind::Unavailable, text))
}

/// Validates the address that a broker returned for a topic. A client connected by TLS must not send its
/// token without TLS.
fn address(what: &str, entrance: &Url, text: &str) -> Result<Url> {
    let scheme = entrance.scheme();
    match Url::parse(text) {
        Ok(url) if scheme == TLS && url.scheme() != TLS => {
            let text = format!("{what}: the lookup returned {url}, but {scheme}:// is expected");
            Err(Error::new(Kind::Unavailable, text))
        }
        Ok(url) => Ok(url),
        Err(_) => {
            let text = format!("{what}: its broker has no address for {scheme}://");
            Err(Error::new(Kind::Unavailable, text))
        }
    }
}

fn is_same(one: &Url, other: &Url) -> bool {
    (one.host_str(), one.port()) == (other.host_str(), other.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_lookup_never_downgrades() {
        let entrance = |url: &str| Url::parse(url).unwrap();
        let tls = entrance("pulsar+ssl://broker:6651");
        let found = address("topic a", &tls, "pulsar+ssl://other:6651").unwrap();
        assert_eq!(found.host_str(), Some("other"));
        for text in ["pulsar://other:6650", "http://other", "other:6650", ""] {
            let error = address("topic a", &tls, text).unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{text}");
            assert!(error.to_string().contains("pulsar+ssl://"), "{error}");
        }
        let plain = entrance("pulsar://broker:6650");
        address("topic a", &plain, "pulsar://other:6650").unwrap();
        address("topic a", &plain, "").unwrap_err();
    }
}
