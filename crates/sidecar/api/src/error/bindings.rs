use http::StatusCode;
use outrigger_blocks::bindings::BindingError;
use tonic::Code;

use super::ApiError;

impl ApiError {
    /// A failed call of an output binding.
    pub fn output_binding(name: &str, error: &BindingError) -> Self {
        Self::new(
            "ERR_INVOKE_OUTPUT_BINDING",
            "binding",
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            format!("error invoking output binding {name}: {error}"),
        )
        .named_over_grpc()
    }
}
