use outrigger_component::Pairs;
use outrigger_wire::components::v1::{
    BulkGetSecretRequest, BulkGetSecretResponse, FeaturesRequest, FeaturesResponse, GetSecretRequest,
    GetSecretResponse, PingRequest, PingResponse, SecretResponse, SecretStoreInitRequest,
    SecretStoreInitResponse, secret_store_server::SecretStore,
};
use tonic::{Request, Response, Status, async_trait};

use super::{Answer, Services};

fn anchor() -> Pairs {
    Pairs::from([
        ("chain".to_owned(), "iron".to_owned()),
        ("rope".to_owned(), "hemp".to_owned()),
    ])
}

/// A store with one secret, `anchor`.
#[async_trait]
impl SecretStore for Services {
    async fn init(&self, request: Request<SecretStoreInitRequest>) -> Answer<SecretStoreInitResponse> {
        self.initialised(&request, &request.get_ref().metadata).await?;
        Ok(Response::new(Default::default()))
    }

    async fn features(&self, _request: Request<FeaturesRequest>) -> Answer<FeaturesResponse> {
        let features = vec![
            "MULTIPLE_KEY_VALUES_PER_SECRET".to_owned(),
            "SOMETHING_NEW".to_owned(),
        ];
        Ok(Response::new(FeaturesResponse { features }))
    }

    async fn get(&self, request: Request<GetSecretRequest>) -> Answer<GetSecretResponse> {
        self.desk.fault().await?;
        match request.into_inner().key.as_str() {
            "anchor" => Ok(Response::new(GetSecretResponse { data: anchor() })),
            other => Err(Status::not_found(format!("no secret {other}"))),
        }
    }

    async fn bulk_get(&self, _request: Request<BulkGetSecretRequest>) -> Answer<BulkGetSecretResponse> {
        let secret = SecretResponse { secrets: anchor() };
        let data = [("anchor".to_owned(), secret)].into();
        Ok(Response::new(BulkGetSecretResponse { data }))
    }

    async fn ping(&self, _request: Request<PingRequest>) -> Answer<PingResponse> {
        self.pong().await
    }
}
