//! A process with pluggable components: a server on a Unix socket with one in-memory store per component
//! resource. It has its own threads and stops like a killed process.
#![allow(unreachable_pub, reason = "a module of test binaries")]
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod bindings;
mod pubsub;
mod secrets;
mod state;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use outrigger_component::{Pairs, PubSub, StateStore};
use outrigger_wire::components::v1::{
    MetadataRequest, PingResponse, ReadRequest, ReadResponse, input_binding_server::InputBindingServer,
    output_binding_server::OutputBindingServer, pub_sub_server::PubSubServer,
    queriable_state_store_server::QueriableStateStoreServer, secret_store_server::SecretStoreServer,
    state_store_server::StateStoreServer, transactional_state_store_server::TransactionalStateStoreServer,
    transactional_store_multi_max_size_server::TransactionalStoreMultiMaxSizeServer,
};
use tokio::{net::UnixListener, runtime::Runtime, sync::mpsc};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, transport::Server};

/// A fault instead of normal work.
#[derive(Clone)]
pub enum Fault {
    Answer(Status),
    Hang,
    /// A value of this size in bytes.
    Huge(usize),
}

/// State that outlives the process: recorded calls and instructions.
#[derive(Default)]
pub struct Desk {
    /// Instances and properties of every Init, in order.
    pub inits: Mutex<Vec<(String, Pairs)>>,
    pub fault: Mutex<Option<Fault>>,
    /// Features of its state stores.
    pub features: Mutex<Vec<&'static str>>,
    pub max_size: Mutex<Option<i64>>,
    /// Filters of queries, as JSON.
    pub queries: Mutex<Vec<String>>,
    /// Publish attempts: a topic, or the ids of a bulk.
    pub published: Mutex<Vec<Vec<String>>>,
    /// Remaining refusals of bulk entries, by id.
    pub refused: Mutex<HashMap<String, u32>>,
    /// Number of Pause calls.
    pub pauses: Mutex<usize>,
    /// Answers to pulled messages: ids, and whether they were refused.
    pub answers: Mutex<Vec<(String, bool)>>,
    /// Events and acks of the input binding.
    pub events: Mutex<Vec<ReadResponse>>,
    pub acks: Mutex<Vec<ReadRequest>>,
    pub streams: Mutex<Vec<mpsc::Sender<Result<ReadResponse, Status>>>>,
}

impl Desk {
    pub fn new() -> Arc<Self> {
        let desk = Self::default();
        *desk.features.lock().unwrap() = vec!["ETAG", "TRANSACTIONAL", "TTL"];
        Arc::new(desk)
    }

    pub fn faulty(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn inits(&self) -> usize {
        self.inits.lock().unwrap().len()
    }

    async fn fault(&self) -> Result<Option<usize>, Status> {
        let fault = self.fault.lock().unwrap().clone();
        match fault {
            None => Ok(None),
            Some(Fault::Answer(status)) => Err(status),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Huge(size)) => Ok(Some(size)),
        }
    }
}

/// The process. Dropping it is like killing it; the socket file remains.
pub struct Process {
    pub socket: PathBuf,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Services {
    desk: Arc<Desk>,
    /// By instance; lost with the process.
    stores: Arc<Mutex<HashMap<String, Arc<dyn StateStore>>>>,
    brokers: Arc<Mutex<HashMap<String, Arc<dyn PubSub>>>>,
    /// Message folder of the brokers.
    folder: PathBuf,
}

impl Process {
    /// Listens on `<folder>/<name>.sock`.
    pub fn start(folder: &Path, name: &str, desk: &Arc<Desk>) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        if socket.exists() {
            std::fs::remove_file(&socket).unwrap();
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let services = Services {
            desk: Arc::clone(desk),
            stores: Arc::default(),
            brokers: Arc::default(),
            folder: folder.to_owned(),
        };
        let listener = runtime.block_on_elsewhere(&socket);
        runtime.spawn(services.serve(listener));
        Self {
            socket,
            runtime: Some(runtime),
        }
    }
}

trait Listening {
    fn block_on_elsewhere(&self, socket: &Path) -> UnixListener;
}

impl Listening for Runtime {
    /// On another thread, because a test's runtime must not block on another.
    fn block_on_elsewhere(&self, socket: &Path) -> UnixListener {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let _here = self.enter();
        UnixListener::from_std(listener).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Services {
    async fn serve(self, listener: UnixListener) {
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(outrigger_wire::FILE_DESCRIPTOR_SET)
            .with_service_name("dapr.proto.components.v1.StateStore")
            .with_service_name("dapr.proto.components.v1.PubSub")
            .with_service_name("dapr.proto.components.v1.SecretStore")
            .with_service_name("dapr.proto.components.v1.InputBinding")
            .with_service_name("dapr.proto.components.v1.OutputBinding")
            .build_v1alpha()
            .unwrap();
        Server::builder()
            .add_service(reflection)
            .add_service(StateStoreServer::new(self.clone()).max_decoding_message_size(usize::MAX))
            .add_service(TransactionalStateStoreServer::new(self.clone()))
            .add_service(QueriableStateStoreServer::new(self.clone()))
            .add_service(TransactionalStoreMultiMaxSizeServer::new(self.clone()))
            .add_service(PubSubServer::new(self.clone()))
            .add_service(SecretStoreServer::new(self.clone()))
            .add_service(InputBindingServer::new(self.clone()))
            .add_service(OutputBindingServer::new(self))
            .serve_with_incoming(UnixListenerStream::new(listener))
            .await
            .unwrap();
    }

    /// Records an Init, unless a fault is injected.
    async fn initialised<T>(
        &self,
        request: &Request<T>,
        metadata: &Option<MetadataRequest>,
    ) -> Result<(), Status> {
        self.desk.fault().await?;
        let properties = metadata.clone().map(|metadata| metadata.properties);
        let init = (instance(request), properties.unwrap_or_default());
        self.desk.inits.lock().unwrap().push(init);
        Ok(())
    }

    async fn pong(&self) -> Answer<PingResponse> {
        self.desk.fault().await?;
        Ok(Response::new(PingResponse::default()))
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// The component resource of a call.
fn instance<T>(request: &Request<T>) -> String {
    let name = request.metadata().get("x-component-instance").unwrap();
    name.to_str().unwrap().to_owned()
}
