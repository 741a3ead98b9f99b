//! Output bindings in other processes.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, OutputBinding, Result, Setup,
    bindings::{Invoke, Invoked},
};
use outrigger_wire::components::v1::{
    InvokeRequest, ListOperationsRequest, OutputBindingInitRequest, PingRequest,
    output_binding_client::OutputBindingClient,
};

use super::{
    Opened, Options, Process,
    link::{Caller, Link, origin},
    status,
};

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let entry = super::entry(name, socket, options, |process, setup| async move {
        let opened = Binding::open(&process, &setup).await?;
        Ok(Arc::new(opened) as Arc<dyn OutputBinding>)
    });
    catalog.output_bindings.add(entry);
}

struct Binding {
    link: Arc<Link>,
    limit: usize,
    operations: Vec<String>,
}

impl Binding {
    async fn open(process: &Process, setup: &Setup) -> Result<Self> {
        let init = |conn, metadata| async move {
            let mut client = OutputBindingClient::with_origin(conn, origin());
            client.init(OutputBindingInitRequest { metadata }).await.map(drop)
        };
        let Opened { link, limit, .. } = process.open(setup, init).await?;
        let mut binding = Self {
            link,
            limit,
            operations: Vec::new(),
        };
        let answer = binding.client().list_operations(ListOperationsRequest {}).await;
        let answer = answer.map_err(|status| status::error(&status))?.into_inner();
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
