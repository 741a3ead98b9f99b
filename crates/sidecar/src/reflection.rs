//! gRPC reflection, so that tools such as grpcurl can list what a server offers.

use http::{Request, Response};
use http_body_util::BodyExt;
use tonic::body::Body as TonicBody;
use tonic::service::Routes;
use tower::ServiceExt;

use crate::body::Body;

/// `grpc.reflection` v1 and v1alpha over the whole contract.
#[derive(Clone)]
pub struct Reflection(Routes);

impl Reflection {
    /// Over the contract's descriptors.
    pub fn new() -> Result<Self, tonic_reflection::server::Error> {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(outrigger_wire::FILE_DESCRIPTOR_SET)
        };
        let routes = Routes::new(builder().build_v1()?).add_service(builder().build_v1alpha()?);
        Ok(Self(routes))
    }

    /// Whether `path` belongs to a reflection service.
    pub fn serves(path: &str) -> bool {
        path.starts_with("/grpc.reflection.")
    }

    /// Answers a request.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        let request =
            request.map(|body| TonicBody::new(body.map_err(|e| tonic::Status::internal(e.to_string()))));
        match self.0.clone().oneshot(request).await {
            Ok(response) => response.map(Body::stream),
            Err(never) => match never {},
        }
    }
}
