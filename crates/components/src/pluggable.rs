//! Components in processes of their own, which serve the component services over gRPC on a Unix socket.
//!
//! [`discover`] asks every socket of a folder which services it has and adds a type `<category>.<socket name>` for
//! each. A component resource of such a type is one [`link::Link`]: a connection of its own, whose calls carry the
//! resource's name, so that one process can tell its instances apart.

mod discovery;
mod input;
mod link;
mod output;
mod secrets;
mod state;
mod status;

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::HeaderValue;
use outrigger_component::{Error, Kind, Result, Setup};
use outrigger_wire::components::v1::MetadataRequest;

pub use self::discovery::{DEFAULT_FOLDER, FOLDER_VARIABLE, discover};
use self::link::{Link, LinkError};

/// Where components are looked for, and what they may do.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of the sockets.
    pub folder: PathBuf,
    /// How long a socket may take to say which services it has.
    pub wait: Duration,
    /// The largest value, in bytes, that is taken from a component.
    pub max_value: usize,
}

impl Options {
    /// The largest message: a value, its key, ETag and metadata.
    fn max_message(&self) -> usize {
        self.max_value.saturating_add(64 << 10)
    }
}

/// What the process is told about a component resource: its name, with every call, and its properties, at Init.
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
        Err(LinkError::Greeting { status, .. }) => Err(status::error(&status)),
        Err(error) => Err(Error::new(Kind::Unavailable, error.to_string())),
    }
}
