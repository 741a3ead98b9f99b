//! Multicast DNS in Dapr's variant: the app ID itself is the service type (`APPID.local.`). General DNS-SD
//! libraries reject that, hence this codec, responder and browser.
//!
//! Protocol sources: RFC 6762, RFC 6763, and the records that Dapr's sidecars send.

mod browser;
mod driver;
mod links;
mod message;
mod name;
mod service;
mod wire;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use self::{
    browser::{Browser, Search},
    driver::Driver,
    links::Links,
    service::Service,
};
pub use self::{links::NoMulticast, name::NameError};
use crate::{Address, Addresses, Registration, ResolveError, Resolver};

/// Why multicast DNS failed to start.
#[derive(Debug, thiserror::Error)]
pub enum MdnsError {
    /// The registration has no app id.
    #[error("mDNS: the app id is missing")]
    MissingAppId,
    /// The host address is not an IP address.
    #[error(
        "mDNS: the host address `{0}` is not an IP address; set DAPR_HOST_IP to the address other \
         sidecars can reach"
    )]
    HostAddress(String),
    /// The internal port is 0.
    #[error("mDNS: the internal gRPC port is missing")]
    MissingPort,
    /// App ID, instance or host name is not a valid DNS name.
    #[error("mDNS: {0}")]
    Name(#[from] NameError),
    /// No socket could join the multicast group.
    #[error("mDNS: {0}")]
    NoMulticast(#[from] NoMulticast),
}

/// Finds sidecars on the local link and announces this one.
pub struct Mdns {
    shared: Arc<MdnsInner>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by lookups and the socket task.
struct MdnsInner {
    browser: Mutex<Browser>,
    /// Signals that the browser has work before its last deadline.
    wake: Notify,
}

impl MdnsInner {
    fn browser(&self) -> MutexGuard<'_, Browser> {
        self.browser.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mdns {
    /// Starts announcing the registration and browsing. Needs a tokio runtime.
    pub fn start(registration: &Registration) -> Result<Self, MdnsError> {
        let service = service_of(registration)?;
        let this = Self::run(Some(service))?;
        tracing::info!(
            target: "dapr.contrib",
            "local service entry announced: {} -> {}:{}",
            registration.app_id,
            registration.host_address,
            registration.internal_port,
        );
        Ok(this)
    }

    /// Starts browsing only.
    pub fn browse_only() -> Result<Self, MdnsError> {
        Self::run(None)
    }

    fn run(service: Option<Service>) -> Result<Self, MdnsError> {
        let shared = Arc::new(MdnsInner {
            browser: Mutex::default(),
            wake: Notify::new(),
        });
        let stop = CancellationToken::new();
        let driver = Driver {
            shared: Arc::clone(&shared),
            links: Links::open()?,
            service,
            stop: stop.clone(),
        };
        Ok(Self {
            shared,
            stop,
            task: Mutex::new(Some(tokio::spawn(driver.run()))),
        })
    }
}

impl Drop for Mdns {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[async_trait]
impl Resolver for Mdns {
    fn name(&self) -> &'static str {
        "mdns"
    }

    async fn resolve(&self, app_id: &str, _namespace: &str) -> Result<Addresses, ResolveError> {
        if self.stop.is_cancelled() {
            return Err(ResolveError::Closed);
        }
        let search = self.shared.browser().search(app_id, Instant::now())?;
        match search {
            Search::Known(addresses) => Ok(addresses),
            Search::Waiting(mut receiver, until) => {
                self.shared.wake.notify_one();
                if let Ok(Ok(found)) = timeout_at(until, receiver.wait_for(|found| !found.is_empty())).await {
                    return Ok(Arc::clone(&found));
                }
                drop(receiver);
                self.shared.browser().give_up(app_id);
                Err(ResolveError::NotFound {
                    app_id: app_id.to_owned(),
                })
            }
        }
    }

    fn watch(&self, app_id: &str, _namespace: &str) -> watch::Receiver<Addresses> {
        let receiver = self.shared.browser().watch(app_id, Instant::now());
        self.shared.wake.notify_one();
        receiver
    }

    fn evict(&self, app_id: &str, _namespace: &str, address: &Address) {
        self.shared.browser().evict(app_id, address, Instant::now());
        self.shared.wake.notify_one();
    }

    async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A panic of the task was already reported.
            let _ = task.await;
        }
    }
}

fn service_of(registration: &Registration) -> Result<Service, MdnsError> {
    if registration.app_id.is_empty() {
        return Err(MdnsError::MissingAppId);
    }
    if registration.internal_port == 0 {
        return Err(MdnsError::MissingPort);
    }
    let ip: IpAddr = registration
        .host_address
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .map_err(|_| MdnsError::HostAddress(registration.host_address.clone()))?;
    let host = hostname::get().map_or_else(
        |_| "localhost".to_owned(),
        |host| host.to_string_lossy().into_owned(),
    );
    let default_instance = format!("{host}:{}", std::process::id());
    let instance = registration.instance.as_deref().unwrap_or(&default_instance);
    let (app_id, port) = (&registration.app_id, registration.internal_port);
    Ok(Service::new(app_id, instance, &host, ip, port)?)
}

/// Fuzzing entry point: decodes a message, encodes it, and decodes it again.
///
/// # Panics
///
/// If the second message differs from the first.
#[cfg(feature = "fuzzing")]
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(message) = message::Message::decode(bytes) {
        // The content of other types is not retained, and names that were compressed may make the message
        // longer.
        let whole = !message
            .records()
            .any(|record| matches!(record.data, message::Data::Other(_)));
        let written = message.encode();
        if whole && written.len() <= message::MAX_MESSAGE {
            assert_eq!(message::Message::decode(&written).as_ref(), Ok(&message));
        }
    }
}
