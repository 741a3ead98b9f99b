//! gRPC reflection, so that tools such as grpcurl can list the services.

use std::sync::{Arc, OnceLock};

use http::{Request, Response};
use http_body_util::BodyExt;
use outrigger_transport::body::Body;
use outrigger_transport::grpc::{self, RequestKind};
use tonic::body::Body as TonicBody;
use tonic::service::Routes;
use tower::ServiceExt;

/// `grpc.reflection` v1 and v1alpha for the whole contract. Descriptors are parsed on first use: few sidecars
/// are asked, and the parsed descriptors take more memory than the rest of an idle sidecar.
#[derive(Clone, Default)]
pub struct Reflection(Arc<OnceLock<Result<Routes, String>>>);

fn routes() -> Result<Routes, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(outrigger_wire::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

impl Reflection {
    /// Whether `path` belongs to a reflection service.
    pub fn serves(path: &str) -> bool {
        path.starts_with("/grpc.reflection.")
    }

    /// Handles a request.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        let built = self.0.get_or_init(|| routes().map_err(|e| e.to_string()));
        let routes = match built {
            Ok(routes) => routes.clone(),
            Err(error) => return grpc::status_response(&tonic::Status::internal(error)),
        };
        let request = request.map(|body| {
            let body = grpc::decoded_messages(body, RequestKind::Streaming);
            TonicBody::new(body.map_err(|e| grpc::body_status(&e)))
        });
        match routes.oneshot(request).await {
            Ok(response) => response.map(Body::stream),
            Err(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn parses_descriptors() {
        super::routes().unwrap();
    }
}
