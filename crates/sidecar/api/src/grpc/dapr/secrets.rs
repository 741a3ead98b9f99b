//! Secret methods.

use outrigger_wire::runtime::v1::{
    GetBulkSecretRequest, GetBulkSecretResponse, GetSecretRequest, GetSecretResponse, SecretResponse,
};
use tonic::{Request, Response, Status};

use super::DaprService;
use crate::grpc::describe_database;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of("secrets", "v1", &["GetSecret", "GetBulkSecret"])];

impl DaprService {
    pub(super) async fn secret_get(
        &self,
        request: Request<GetSecretRequest>,
    ) -> Result<Response<GetSecretResponse>, Status> {
        describe_database(&request, "secrets", &request.get_ref().store_name);
        let request = request.into_inner();
        let secret = self
            .blocks
            .secrets
            .get(&request.store_name, &request.key, &request.metadata);
        let data = secret.await.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(GetSecretResponse { data }))
    }

    pub(super) async fn secret_bulk_get(
        &self,
        request: GetBulkSecretRequest,
    ) -> Result<Response<GetBulkSecretResponse>, Status> {
        let secrets = self
            .blocks
            .secrets
            .bulk_get(&request.store_name, &request.metadata);
        let secrets = secrets.await.map_err(|error| self.fail(&error.into()))?;
        let data = secrets
            .into_iter()
            .map(|(name, secrets)| (name, SecretResponse { secrets }));
        Ok(Response::new(GetBulkSecretResponse { data: data.collect() }))
    }
}
