//! Discovers components: sockets in a folder, and the services behind them.

use std::{
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
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
    output, pubsub, secrets, state, status,
};

pub(super) const LOG: &str = "pluggable-components-grpc-connector";

/// Environment variable naming the socket folder.
const FOLDER_VARIABLE: &str = "DAPR_COMPONENTS_SOCKETS_FOLDER";

/// Maximum size of a list of services.
const MAX_LIST: usize = 256 << 10;
/// Delay between connection attempts to a socket that refuses.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Mode bit: others may write.
const OTHERS_WRITE: u32 = 0o002;
/// Mode bit: the group may write.
const GROUP_WRITES: u32 = 0o020;

/// A gRPC service that is a component.
struct Service {
    name: &'static str,
    /// Adds its component type to a catalog.
    add: fn(&mut Catalog, &str, &Path, &Options),
    /// Its component type.
    kind: fn(&str) -> String,
    /// Whether a catalog has a type of this category and name.
    knows: fn(&Catalog, &str) -> bool,
}

/// Input and output binding share a type: a built-in implementation of either reserves it.
const SERVICES: [Service; 5] = [
    Service {
        name: "dapr.proto.components.v1.StateStore",
        add: state::add,
        kind: |name| format!("state.{name}"),
        knows: |catalog, name| catalog.state.has(name),
    },
    Service {
        name: "dapr.proto.components.v1.PubSub",
        add: pubsub::add,
        kind: |name| format!("pubsub.{name}"),
        knows: |catalog, name| catalog.pubsub.has(name),
    },
    Service {
        name: "dapr.proto.components.v1.SecretStore",
        add: secrets::add,
        kind: |name| format!("secretstores.{name}"),
        knows: |catalog, name| catalog.secrets.has(name),
    },
    Service {
        name: "dapr.proto.components.v1.InputBinding",
        add: input::add,
        kind: |name| format!("bindings.{name}"),
        knows: has_binding,
    },
    Service {
        name: "dapr.proto.components.v1.OutputBinding",
        add: output::add,
        kind: |name| format!("bindings.{name}"),
        knows: has_binding,
    },
];

fn has_binding(catalog: &Catalog, name: &str) -> bool {
    catalog.input_bindings.has(name) || catalog.output_bindings.has(name)
}

/// Adds the components of the folder's sockets to `catalog`. Unreachable sockets are logged and skipped. So
/// are names of existing types, because a writer to the folder could otherwise obtain their secrets.
pub async fn discover(catalog: &mut Catalog, options: &Options) {
    let sockets = match check_owner(&options.folder, options.in_pod).and_then(|()| sockets(&options.folder)) {
        Ok(sockets) => sockets,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            tracing::error!(
                target: LOG,
                "could not initialize pluggable components: the folder {}: {error}",
                options.folder.display()
            );
            return;
        }
    };
    let lists = sockets.iter().map(|(_, socket)| services(socket, options.wait));
    let lists = join_all(lists).await;
    let built_in = |service: &Service, name: &str| (service.knows)(catalog, name);
    let known: Vec<Vec<bool>> = sockets
        .iter()
        .map(|(name, _)| SERVICES.iter().map(|service| built_in(service, name)).collect())
        .collect();
    for (((name, socket), services), known) in sockets.iter().zip(lists).zip(known) {
        match services {
            Ok(services) => register(catalog, name, socket, (&services, &known), options),
            Err(cause) => tracing::error!(
                target: LOG,
                "pluggable component '{name}' is ignored: socket {}: {cause}; start its process before the \
                 sidecar, or remove the socket",
                socket.display()
            ),
        }
    }
}

/// `offered` lists the socket's services, and which of [`SERVICES`] have a built-in type of its name.
fn register(
    catalog: &mut Catalog,
    name: &str,
    socket: &Path,
    (offered, built_in): (&[String], &[bool]),
    options: &Options,
) {
    for (service, built_in) in SERVICES.iter().zip(built_in) {
        if !offered.iter().any(|offered| offered == service.name) {
            continue;
        }
        let kind = (service.kind)(name);
        if *built_in {
            tracing::error!(
                target: LOG,
                "pluggable component '{name}' is not used for '{}': {kind} is a built-in type, which a socket must not \
                 replace; give the socket {} another name",
                service.name,
                socket.display()
            );
            continue;
        }
        (service.add)(catalog, name, socket, options);
        tracing::info!(
            target: LOG,
            "pluggable component '{name}' was successfully registered for '{}'",
            service.name
        );
    }
}

/// User and groups of this process.
struct ProcessIds {
    user: u32,
    groups: Vec<u32>,
}

impl ProcessIds {
    fn read() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        Self::parse(&status).ok_or_else(|| io::Error::other("/proc/self/status names no user and group"))
    }

    /// Parses the status of a process in `/proc` (proc_pid_status(5)).
    fn parse(status: &str) -> Option<Self> {
        let numbers = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let numbers = line.unwrap_or_default().split_whitespace();
            numbers.filter_map(|number| number.parse::<u32>().ok())
        };
        // The real ids come first, then the effective ones.
        let group = numbers("Gid:").nth(1)?;
        Some(Self {
            user: numbers("Uid:").nth(1)?,
            groups: numbers("Groups:").chain([group]).collect(),
        })
    }
}

/// Checks that only this user, root and this process's groups can add sockets to a folder. In a pod the
/// folder is an empty volume, which the kubelet makes world-writable; only containers that mount it have
/// access.
fn check_owner(folder: &Path, in_pod: bool) -> io::Result<()> {
    let file = std::fs::metadata(folder)?;
    let refused = refusal(
        &ProcessIds::read()?,
        (file.uid(), file.gid()),
        file.mode(),
        in_pod,
    );
    refused.map_or(Ok(()), |why| {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    })
}

/// Why a folder with this owner, group and mode is refused.
fn refusal(ids: &ProcessIds, (user, group): (u32, u32), mode: u32, in_pod: bool) -> Option<String> {
    if ![0, ids.user].contains(&user) {
        return Some(format!(
            "it belongs to user {user}: only sockets in a folder of this user ({}) or of root are used; change its \
             owner, or name another folder in {FOLDER_VARIABLE}",
            ids.user
        ));
    }
    let (who, remedy) = if mode & OTHERS_WRITE != 0 {
        ("every user of this machine".to_owned(), "o-w")
    } else if mode & GROUP_WRITES != 0 && !ids.groups.contains(&group) {
        (
            format!("every user of group {group}, which this one is not in,"),
            "g-w",
        )
    } else {
        return None;
    };
    (!in_pod).then(|| {
        format!(
            "{who} can write to it (mode {:o}), and a process that puts a socket there gets the secrets of components; \
             run chmod {remedy} on it, or name another folder in {FOLDER_VARIABLE}",
            mode & 0o7777
        )
    })
}

/// Names and paths of a folder's sockets, sorted by name.
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

/// The services behind a socket; waits for a process that is not listening yet.
async fn services(socket: &Path, wait: Duration) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + wait;
    let mut cause = String::from("no process answers on it");
    let asking = async {
        loop {
            match link::connect(socket, &HeaderValue::from_static("discovery")).await {
                Ok(conn) => return list(conn).await.map_err(|status| status::text(&status)),
                Err(error) => cause = error,
            }
            sleep(RETRY_PAUSE).await;
        }
    };
    let answered = timeout_at(deadline, asking).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {wait:?}: {cause}")))
}

/// Queries reflection, first in the older version that every SDK serves.
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
                ServerReflectionClient::with_origin(conn, origin()).max_decoding_message_size(MAX_LIST);
            // The request stream stays open until the answer, because some servers stop at its end.
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
                    "unexpected reflection answer {other:?} to the list of services"
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
    fn name_is_file_without_extension() {
        let name = |file: &str| component_name(&Path::new("/run").join(file));
        assert_eq!(name("redis.sock").as_deref(), Some("redis"));
        assert_eq!(name("my.store.sock").as_deref(), Some("my.store"));
        assert_eq!(name("plain").as_deref(), Some("plain"));
        assert_eq!(name(".sock"), None);
    }

    #[test]
    fn rejects_folders_of_others() {
        let ids = ProcessIds {
            user: 1000,
            groups: vec![1000, 27],
        };
        let (mine, of_root) = ((1000, 1000), (0, 0));
        for (owner, mode, outside, in_pod) in [
            (mine, 0o700, None, None),
            (mine, 0o755, None, None),
            // The result of umask 002, and a folder shared by a group.
            (mine, 0o775, None, None),
            ((0, 27), 0o2770, None, None),
            (of_root, 0o755, None, None),
            (of_root, 0o775, Some("chmod g-w"), None),
            ((1000, 100), 0o775, Some("chmod g-w"), None),
            ((1000, 100), 0o755, None, None),
            (mine, 0o777, Some("chmod o-w"), None),
            (mine, 0o1777, Some("chmod o-w"), None),
            (mine, 0o702, Some("chmod o-w"), None),
            // An empty volume, without and with fsGroup.
            (of_root, 0o777, Some("chmod o-w"), None),
            ((0, 27), 0o2777, Some("chmod o-w"), None),
            (
                (12_345, 1000),
                0o700,
                Some("belongs to user 12345"),
                Some("belongs to user 12345"),
            ),
        ] {
            for (pod, words) in [(false, outside), (true, in_pod)] {
                let why = refusal(&ids, owner, mode, pod);
                let fits = match (&why, words) {
                    (Some(why), Some(words)) => why.contains(words),
                    (why, words) => why.is_none() && words.is_none(),
                };
                assert!(fits, "{owner:?} {mode:o}, in a pod: {pod}: {why:?}");
            }
        }
    }

    #[test]
    fn checks_folder_against_process_ids() {
        use std::os::unix::fs::{PermissionsExt, chown};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let with_mode = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        with_mode(0o770);
        check_owner(path, false).unwrap();
        with_mode(0o777);
        check_owner(path, true).unwrap();
        check_owner(path, false).unwrap_err();
        // Only root can assign a group of which it is not a member.
        if chown(path, None, Some(12_345)).is_ok() {
            with_mode(0o770);
            check_owner(path, true).unwrap();
            let error = check_owner(path, false).unwrap_err().to_string();
            assert!(error.contains("group 12345, which this one is not in"), "{error}");
        }
        let absent = check_owner(&path.join("absent"), false).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn parses_process_status() {
        let ids = |groups| {
            let status =
                format!("Name:\tdaprd\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t{groups}\nNStgid:\t9\n");
            ProcessIds::parse(&status).map(|ids| (ids.user, ids.groups))
        };
        assert_eq!(ids("27 1000 "), Some((2, vec![27, 1000, 6])));
        assert_eq!(ids(" "), Some((2, vec![6])));
        assert!(ProcessIds::parse("Uid:\t1\t2\t3\t4\n").is_none());
    }

    #[test]
    fn ignores_other_files() {
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
