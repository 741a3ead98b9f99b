//! Discovery of schedulers. Each scheduler knows all others and reports changes.

use std::sync::Arc;
use std::time::Duration;

use outrigger_backoff::Backoff;
use outrigger_identity::{Expect, server_name};
use outrigger_transport::conn::{Channel, DialError, Dialer, H2Pool, KeepAlive};
use outrigger_wire::scheduler::v1::WatchHostsRequest;
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{LOG, Scheduler, Settings};
use crate::life::Condition;

/// Timeout of opening a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the first list. A scheduler without a leader may take long, while another already has the list.
const FIRST_LIST: Duration = Duration::from_secs(30);
/// Backoff before a scheduler is asked again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// Smallest message limit for schedulers, bytes, because lists contain jobs that others scheduled.
const MAX_MESSAGE: usize = 64 << 20;

/// One scheduler.
pub(super) struct Host {
    address: String,
    channel: Channel,
    client: SchedulerClient<Channel>,
}

impl Host {
    pub(super) fn new(address: &str, settings: &Settings) -> Self {
        let dialer = match &settings.identity {
            Some((identity, id)) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let expect = Expect::Exact(id.clone());
                Dialer::mutual(address, identity, expect, server_name(host), CONNECT_TIMEOUT)
            }
            None => Dialer::plain(address, CONNECT_TIMEOUT),
        };
        let channel = Channel::new(H2Pool::new(dialer, Some(KeepAlive::OF_SCHEDULERS)));
        let limit = settings.max_message.max(MAX_MESSAGE);
        Self {
            address: address.to_owned(),
            client: SchedulerClient::new(channel.clone())
                .max_decoding_message_size(limit)
                .max_encoding_message_size(usize::MAX),
            channel,
        }
    }

    /// `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Connects if there is no connection.
    pub(super) async fn connect(&self) -> Result<(), DialError> {
        self.channel.connect().await
    }

    /// The client for calls.
    pub(super) fn client(&self) -> SchedulerClient<Channel> {
        self.client.clone()
    }
}

/// Why a scheduler's stream of addresses ended.
enum Ended {
    /// After a list was received.
    After(Option<Status>),
    /// Without any list.
    Failed(Status),
    /// The scheduler does not implement the call.
    Unimplemented,
}

/// Asks the configured schedulers in turn, forever.
pub(super) async fn follow(scheduler: &Scheduler, known: &Condition) {
    let configured = &scheduler.settings.addresses;
    let mut pauses = PAUSES;
    loop {
        let index = rand::random_range(0..configured.len());
        // The caller has checked `is_configured`.
        let Some(address) = configured.get(index) else {
            return;
        };
        let ended = ask(scheduler, address, known).await;
        if let Ended::After(_) = ended {
            pauses.reset();
        }
        let pause = pauses.pause();
        match ended {
            Ended::Unimplemented => {
                scheduler.know(configured.iter().map(String::as_str));
                known.met();
                return std::future::pending().await;
            }
            Ended::After(status) => {
                let cause =
                    status.map_or_else(|| "it ended the stream".to_owned(), |status| status.to_string());
                tracing::debug!(target: LOG, "lost the stream of scheduler addresses from {address}: {cause}");
            }
            Ended::Failed(status) => {
                let cause = super::calls::described(&status);
                tracing::error!(
                    target: LOG,
                    "Failed to connect to scheduler host {address}: {cause}; trying again in {pause:?}"
                );
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Follows the address list of one scheduler.
async fn ask(scheduler: &Scheduler, address: &str, known: &Condition) -> Ended {
    let mut client = scheduler.host(address).client();
    let first = async {
        let mut lists = client.watch_hosts(WatchHostsRequest {}).await?.into_inner();
        let first = lists.message().await?;
        Ok::<_, Status>((first, lists))
    };
    let first = timeout(FIRST_LIST, first).await;
    let first = first.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!(
            "no list of schedulers within {FIRST_LIST:?}"
        )))
    });
    let (first, mut lists) = match first {
        Ok((Some(first), lists)) => (first, lists),
        Ok((None, _)) => {
            return Ended::Failed(Status::unavailable(
                "it ended the stream without a list of schedulers",
            ));
        }
        Err(status) if status.code() == Code::Unimplemented => return Ended::Unimplemented,
        Err(status) => return Ended::Failed(status),
    };
    let mut list = first;
    loop {
        let addresses: Vec<_> = list.hosts.iter().map(|host| host.address.as_str()).collect();
        tracing::info!(
            target: LOG,
            "Connected and received scheduler hosts addresses: {addresses:?}"
        );
        scheduler.know(addresses.into_iter());
        known.met();
        list = match lists.message().await {
            Ok(Some(list)) => list,
            Ok(None) => return Ended::After(None),
            Err(status) => return Ended::After(Some(status)),
        };
    }
}

impl Scheduler {
    /// The scheduler at `address`; known ones keep their connections.
    fn host(&self, address: &str) -> Arc<Host> {
        let known = self.hosts.borrow();
        let mut known = known.iter().flat_map(|hosts| hosts.iter());
        match known.find(|host| host.address == address) {
            Some(host) => Arc::clone(host),
            None => Arc::new(Host::new(address, &self.settings)),
        }
    }

    /// Replaces the list of schedulers.
    pub(super) fn know<'a>(&self, addresses: impl Iterator<Item = &'a str>) {
        let mut hosts: Vec<Arc<Host>> = Vec::new();
        for address in addresses.filter(|address| !address.is_empty()) {
            if hosts.iter().any(|host| host.address == address) {
                continue;
            }
            hosts.push(self.host(address));
        }
        self.hosts.send_if_modified(|known| {
            let same = known.as_ref().is_some_and(|known| {
                known.len() == hosts.len() && known.iter().zip(&hosts).all(|(a, b)| Arc::ptr_eq(a, b))
            });
            if !same {
                *known = Some(hosts.into());
            }
            !same
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Seven times the expected time, and below the timeout of any server.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn gives_up_silent_scheduler() {
        let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let settings = Settings {
            app_id: "app".into(),
            namespace: "ns".into(),
            addresses: Vec::new(),
            streams: 1,
            identity: None,
            max_message: 0,
            limits: Vec::new(),
        };
        let host = Host::new(&silent.local_addr().unwrap().to_string(), &settings);
        let mut client = host.client();
        let asked = timeout(LONG, client.watch_hosts(WatchHostsRequest {})).await;
        asked.expect("the attempt has no timeout").unwrap_err();
    }
}
