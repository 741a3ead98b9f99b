use std::sync::Arc;

use outrigger_wire::components::v1::{
    InputBindingInitRequest, InputBindingInitResponse, InvokeRequest, InvokeResponse, ListOperationsRequest,
    ListOperationsResponse, OutputBindingInitRequest, OutputBindingInitResponse, PingRequest, PingResponse,
    ReadRequest, ReadResponse, input_binding_server::InputBinding, output_binding_server::OutputBinding,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Streaming, async_trait, codegen::BoxStream};

use super::{Answer, Services};

#[async_trait]
impl InputBinding for Services {
    async fn init(&self, request: Request<InputBindingInitRequest>) -> Answer<InputBindingInitResponse> {
        self.initialised(&request, &request.get_ref().metadata).await?;
        Ok(Response::new(Default::default()))
    }

    /// Sends the desk's events and later ones from the test; records the acks.
    async fn read(&self, request: Request<Streaming<ReadRequest>>) -> Answer<BoxStream<ReadResponse>> {
        let (events, stream) = mpsc::channel(1024);
        for event in self.desk.events.lock().unwrap().iter() {
            events.try_send(Ok(event.clone())).unwrap();
        }
        self.desk.streams.lock().unwrap().push(events);
        let (desk, mut acks) = (Arc::clone(&self.desk), request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(ack)) = acks.message().await {
                desk.acks.lock().unwrap().push(ack);
            }
            desk.streams.lock().unwrap().clear();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn ping(&self, _request: Request<PingRequest>) -> Answer<PingResponse> {
        self.pong().await
    }
}

/// A binding that returns its input.
#[async_trait]
impl OutputBinding for Services {
    async fn init(&self, request: Request<OutputBindingInitRequest>) -> Answer<OutputBindingInitResponse> {
        self.initialised(&request, &request.get_ref().metadata).await?;
        Ok(Response::new(Default::default()))
    }

    async fn invoke(&self, request: Request<InvokeRequest>) -> Answer<InvokeResponse> {
        self.desk.fault().await?;
        let InvokeRequest {
            data,
            mut metadata,
            operation,
        } = request.into_inner();
        metadata.insert("operation".to_owned(), operation);
        Ok(Response::new(InvokeResponse {
            data,
            metadata,
            content_type: "text/plain".to_owned(),
        }))
    }

    async fn list_operations(
        &self,
        _request: Request<ListOperationsRequest>,
    ) -> Answer<ListOperationsResponse> {
        let operations = vec!["echo".to_owned(), "shout".to_owned()];
        Ok(Response::new(ListOperationsResponse { operations }))
    }

    async fn ping(&self, _request: Request<PingRequest>) -> Answer<PingResponse> {
        self.pong().await
    }
}
