//! Components in other processes, which serve the component services over gRPC on a Unix socket.
//!
//! [`discover`] lists the services of every socket in a folder and adds a type `<category>.<socket name>` for
//! each. A component resource of such a type is one [`link::Link`]: a separate connection whose calls carry
//! the resource's name, so that a process can tell its instances apart.

mod discovery;
mod input;
mod link;
mod output;
mod pubsub;
mod secrets;
mod state;
mod status;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use outrigger_component::{Entry, Error, Kind, Result, Setup, catalog::Version};
use outrigger_wire::components::v1::MetadataRequest;
use tonic::Status;

pub use self::discovery::discover;
use self::link::{Conn, Link, LinkError};

/// Maximum size of a message in addition to its value, bytes.
const MAX_OVERHEAD: usize = 64 << 10;

/// Settings for discovery.
#[derive(Debug, Clone)]
pub struct Options {
    /// The socket folder.
    pub folder: PathBuf,
    /// Whether the folder is a pod's volume, which may be world-writable.
    pub in_pod: bool,
    /// Timeout for listing the services of a socket.
    pub wait: Duration,
    /// Maximum value size in bytes accepted from a component.
    pub max_value: usize,
}

impl Options {
    /// Maximum message size: a value with its key, ETag and metadata.
    fn max_message(&self) -> usize {
        self.max_value.saturating_add(MAX_OVERHEAD)
    }
}

/// A process that serves components.
#[derive(Clone)]
struct Process {
    socket: Arc<Path>,
    /// Maximum message size accepted from it.
    limit: usize,
}

/// A component type served by a process; `open` creates a component.
fn entry<T, F, R>(name: &str, socket: &Path, options: &Options, open: F) -> Entry<T>
where
    T: ?Sized + 'static,
    F: Fn(Process, Setup) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Arc<T>>> + Send + 'static,
{
    let process = Process {
        socket: socket.into(),
        limit: options.max_message(),
    };
    Entry::new(&[name], Version::Only, move |setup| open(process.clone(), setup))
}

/// A component resource, initialised in its process.
struct Opened {
    name: Arc<str>,
    link: Arc<Link>,
    limit: usize,
}

impl Process {
    /// Connects for the first time; `init` initialises the component on every new connection.
    async fn open<F, R>(&self, setup: &Setup, init: F) -> Result<Opened>
    where
        F: Fn(Conn, Option<MetadataRequest>) -> R + Send + Sync + 'static,
        R: Future<Output = std::result::Result<(), Status>> + Send + 'static,
    {
        let (instance, metadata) = introduction(setup)?;
        let link = Link::new(&self.socket, instance, move |conn| {
            init(conn, Some(metadata.clone()))
        });
        start(&link).await?;
        Ok(Opened {
            name: Arc::clone(setup.metadata.component()),
            link,
            limit: self.limit,
        })
    }
}

/// The resource's name, sent with every call, and its properties, sent by Init.
fn introduction(setup: &Setup) -> Result<(HeaderValue, MetadataRequest)> {
    let name = setup.metadata.component();
    let instance = HeaderValue::from_str(name).map_err(|_| {
        let text = format!("the name {name:?} cannot be sent to a pluggable component: use ASCII letters");
        Error::new(Kind::Configuration, text)
    })?;
    let properties = setup.metadata.iter();
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let metadata = MetadataRequest {
        properties: properties.collect(),
    };
    Ok((instance, metadata))
}

/// Connects for the first time, which initialises the component.
async fn start(link: &Arc<Link>) -> Result<()> {
    match link.connect().await {
        Ok(_) => Ok(()),
        Err(LinkError::Init { status, .. }) => Err(status::error(&status)),
        Err(error) => Err(Error::new(Kind::Unavailable, error.to_string())),
    }
}
