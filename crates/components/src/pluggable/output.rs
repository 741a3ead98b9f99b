//! Output bindings in processes of their own.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Error, Kind, OutputBinding, Result, Setup,
    bindings::{Invoke, Invoked},
    catalog::Version,
};
use outrigger_wire::components::v1::{
    InvokeRequest, ListOperationsRequest, OutputBindingInitRequest, PingRequest,
    output_binding_client::OutputBindingClient,
};

use super::{
    Options,
    link::{Caller, Conn, Link, origin},
    status,
};

/// No binding has as many operations.
const MOST_OPERATIONS: usize = 256;

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let (socket, limit) = (socket.to_owned(), options.max_message());
    catalog
        .output_bindings
        .add(Entry::new(&[name], Version::Only, move |setup| {
            let socket = socket.clone();
            async move { Ok(Arc::new(Binding::open(&socket, setup, limit).await?) as Arc<dyn OutputBinding>) }
        }));
}

struct Binding {
    link: Arc<Link>,
    limit: usize,
    operations: Vec<String>,
}

impl Binding {
    async fn open(socket: &Path, setup: Setup, limit: usize) -> Result<Self> {
        let (instance, metadata) = super::introduction(&setup)?;
        let link = Link::new(socket, instance, move |conn: Conn| {
            let metadata = Some(metadata.clone());
            let mut client = OutputBindingClient::with_origin(conn, origin());
            async move { client.init(OutputBindingInitRequest { metadata }).await.map(drop) }
        });
        let mut binding = Self {
            link,
            limit,
            operations: Vec::new(),
        };
        super::start(&binding.link).await?;
        let answer = binding.client().list_operations(ListOperationsRequest {}).await;
        let answer = answer.map_err(|status| status::error(&status))?.into_inner();
        if answer.operations.len() > MOST_OPERATIONS {
            let text = format!("the component lists more than {MOST_OPERATIONS} operations");
            return Err(Error::new(Kind::Internal, text));
        }
        binding.operations = answer.operations;
        Ok(binding)
    }

    fn client(&self) -> OutputBindingClient<Caller> {
        OutputBindingClient::with_origin(Caller(Arc::clone(&self.link)), origin())
            .max_decoding_message_size(self.limit)
    }
}

#[async_trait]
impl OutputBinding for Binding {
    fn operations(&self) -> Vec<&str> {
        self.operations.iter().map(String::as_str).collect()
    }

    async fn invoke(&self, request: &Invoke) -> Result<Option<Invoked>> {
        let request = InvokeRequest {
            data: request.data.clone(),
            metadata: request.metadata.clone(),
            operation: request.operation.clone(),
        };
        let answer = self.client().invoke(request).await;
        let answer = answer.map_err(|status| status::error(&status))?.into_inner();
        Ok(Some(Invoked {
            data: answer.data,
            metadata: answer.metadata,
            content_type: Some(answer.content_type).filter(|kind| !kind.is_empty()),
        }))
    }

    async fn ping(&self) -> Result<()> {
        let answer = self.client().ping(PingRequest {}).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn close(&self) {
        self.link.close();
    }
}
