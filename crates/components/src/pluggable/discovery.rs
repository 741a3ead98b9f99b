//! Which components there are: sockets in a folder, and the services behind them.

use std::{
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream};
use http::HeaderValue;
use outrigger_component::Catalog;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};
use tonic_reflection::pb::{v1, v1alpha};

use super::{
    Options, input,
    link::{self, Conn, origin},
    output, secrets, state, status,
};

pub(super) const LOG: &str = "pluggable-components-grpc-connector";

/// The environment variable that names the folder of the sockets.
pub const FOLDER_VARIABLE: &str = "DAPR_COMPONENTS_SOCKETS_FOLDER";
/// The folder where the variable is not set.
pub const DEFAULT_FOLDER: &str = "/tmp/dapr-components-sockets";

/// A list of services is short.
const LIST: usize = 256 << 10;
/// Between two tries to reach a socket that is there but refuses.
const AGAIN: Duration = Duration::from_millis(100);

/// How a service becomes a type of component.
type Add = fn(&mut Catalog, &str, &Path, &Options);

/// The services that are components.
const SERVICES: [(&str, Add); 4] = [
    ("dapr.proto.components.v1.StateStore", state::add),
    ("dapr.proto.components.v1.SecretStore", secrets::add),
    ("dapr.proto.components.v1.InputBinding", input::add),
    ("dapr.proto.components.v1.OutputBinding", output::add),
];
/// One that this release has no block for.
const PUBSUB: &str = "dapr.proto.components.v1.PubSub";

/// Adds what the sockets of the folder offer to `catalog`. What cannot be reached is logged and left out.
pub async fn discover(catalog: &mut Catalog, options: &Options) {
    let sockets = match sockets(&options.folder) {
        Ok(sockets) => sockets,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::error!(
                target: LOG,
                "could not initialize pluggable components: cannot list the folder {}: {error}",
                options.folder.display()
            );
            return;
        }
    };
    let lists = sockets.iter().map(|(_, socket)| services(socket, options.wait));
    for ((name, socket), services) in sockets.iter().zip(join_all(lists).await) {
        match services {
            Ok(services) => register(catalog, name, socket, &services, options),
            Err(cause) => tracing::error!(
                target: LOG,
                "pluggable component '{name}' is left out: socket {}: {cause}; start its process before the \
                 sidecar, or remove the socket",
                socket.display()
            ),
        }
    }
}

fn register(catalog: &mut Catalog, name: &str, socket: &Path, services: &[String], options: &Options) {
    for service in services {
        if let Some((_, add)) = SERVICES.iter().find(|(known, _)| known == service) {
            add(catalog, name, socket, options);
            tracing::info!(
                target: LOG,
                "pluggable component '{name}' was successfully registered for '{service}'"
            );
        } else if service == PUBSUB {
            tracing::warn!(
                target: LOG,
                "pluggable component '{name}' serves '{service}', which this release does not use"
            );
        }
    }
}

/// Names and paths of the sockets of a folder, in the order of their names.
fn sockets(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(file) = std::fs::metadata(&path) else {
            continue; // gone again
        };
        if file.is_dir() {
            continue;
        }
        match component_name(&path) {
            Some(name) if file.file_type().is_socket() => sockets.push((name, path)),
            _ => tracing::warn!(target: LOG, "could not use socket for file {}", path.display()),
        }
    }
    sockets.sort_unstable();
    Ok(sockets)
}

/// The file name without its extension.
fn component_name(socket: &Path) -> Option<String> {
    let file = socket.file_name()?.to_str()?;
    let name = file.rsplit_once('.').map_or(file, |(name, _)| name);
    (!name.is_empty()).then(|| name.to_owned())
}

/// The services behind a socket; waits for a process that does not listen yet.
async fn services(socket: &Path, wait: Duration) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + wait;
    let mut cause = String::from("nobody answers");
    let asking = async {
        loop {
            match link::connect(socket, &HeaderValue::from_static("discovery")).await {
                Ok(conn) => return list(conn).await.map_err(|status| status::text(&status)),
                Err(error) => cause = error,
            }
            sleep(AGAIN).await;
        }
    };
    let answered = timeout_at(deadline, asking).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {wait:?}: {cause}")))
}

/// Asks by reflection; the older version first, which every SDK serves.
async fn list(conn: Conn) -> Result<Vec<String>, Status> {
    match list_v1alpha(conn.clone()).await {
        Err(status) if status.code() == Code::Unimplemented => list_v1(conn).await,
        listed => listed,
    }
}

macro_rules! list {
    ($name:ident, $version:ident) => {
        async fn $name(conn: Conn) -> Result<Vec<String>, Status> {
            use $version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let request = ServerReflectionRequest {
                message_request: Some(MessageRequest::ListServices(String::new())),
                ..ServerReflectionRequest::default()
            };
            let mut client =
                ServerReflectionClient::with_origin(conn, origin()).max_decoding_message_size(LIST);
            // The question stays open until the answer is there: some servers stop at its end.
            let questions = stream::iter([request]).chain(stream::pending());
            let mut answers = client.server_reflection_info(questions).await?.into_inner();
            match answers
                .message()
                .await?
                .and_then(|answer| answer.message_response)
            {
                Some(MessageResponse::ListServicesResponse(list)) => Ok(list
                    .service
                    .into_iter()
                    .map(|service| service.name)
                    .collect()),
                other => Err(Status::internal(format!(
                    "reflection answered {other:?} to the question which services there are"
                ))),
            }
        }
    };
}

list!(list_v1alpha, v1alpha);
list!(list_v1, v1);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_name_is_the_file_without_its_extension() {
        let name = |file: &str| component_name(&Path::new("/run").join(file));
        assert_eq!(name("redis.sock").as_deref(), Some("redis"));
        assert_eq!(name("my.store.sock").as_deref(), Some("my.store"));
        assert_eq!(name("plain").as_deref(), Some("plain"));
        assert_eq!(name(".sock"), None);
    }

    #[test]
    fn only_sockets_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file.sock"), "").unwrap();
        std::fs::create_dir(path("folder.sock")).unwrap();
        let _held = ["b.sock", "a.sock"].map(|name| UnixListener::bind(path(name)).unwrap());
        let found = sockets(folder.path()).unwrap();
        assert_eq!(
            found,
            [("a".to_owned(), path("a.sock")), ("b".to_owned(), path("b.sock"))]
        );
        assert!(sockets(&path("absent")).is_err());
    }
}
