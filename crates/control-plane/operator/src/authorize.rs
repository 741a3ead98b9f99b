//! Authorizes callers: each may use only the namespace in its certificate.

use outrigger_controlplane::grpc::Caller;
use tonic::{Extensions, Status};

/// The app id of a caller that requests `namespace`.
///
/// # Errors
/// `PERMISSION_DENIED`, with the texts that clients of Dapr compare.
pub(crate) fn app_id(extensions: &Extensions, namespace: &str) -> Result<String, Status> {
    let Some(Caller::Workload(id)) = extensions.get::<Caller>() else {
        return Err(Status::permission_denied("failed to determine identity"));
    };
    if namespace.is_empty() || id.namespace() != namespace {
        return Err(Status::permission_denied(format!(
            "identity does not match requested namespace exp={namespace} got={}",
            id.namespace()
        )));
    }
    Ok(id.app_id().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_namespaces() {
        let mut extensions = Extensions::default();
        let denied = app_id(&extensions, "ns").unwrap_err();
        assert_eq!(denied.message(), "failed to determine identity");
        extensions.insert(Caller::Workload("spiffe://public/ns/mine/app".parse().unwrap()));
        assert_eq!(app_id(&extensions, "mine").unwrap(), "app");
        for other in ["", "other", "mine2", "MINE"] {
            let denied = app_id(&extensions, other).unwrap_err();
            assert_eq!(denied.code(), tonic::Code::PermissionDenied);
            let text = format!("identity does not match requested namespace exp={other} got=mine");
            assert_eq!(denied.message(), text);
        }
    }
}
