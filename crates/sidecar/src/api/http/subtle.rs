//! `/v1.0-alpha1/subtlecrypto/…`.

use http::{Request, Response};

use super::HttpApi;
use super::route::{Parameters, Subtle};
use crate::body::Body;

/// Reads the message `$request`, has the block's `$operation` done and answers with the message `$response`.
macro_rules! operation {
    ($api:expr, $component:expr, $http:expr, $operation:ident, $request:literal, $response:literal) => {{
        match $api.message($request, $http).await {
            Err(response) => *response,
            Ok(mut message) => {
                component_of(&mut message, $component);
                let outcome = $api.blocks.crypto.$operation(message).await;
                $api.message_response($response, outcome.map_err(Into::into))
                    .await
            }
        }
    }};
}

/// A request that names a component; the path names it over HTTP.
trait Component {
    fn set(&mut self, name: String);
}

macro_rules! component {
    ($($message:ident),+) => {
        $(impl Component for outrigger_wire::runtime::v1::$message {
            fn set(&mut self, name: String) {
                self.component_name = name;
            }
        })+
    };
}

component!(
    SubtleGetKeyRequest,
    SubtleEncryptRequest,
    SubtleDecryptRequest,
    SubtleWrapKeyRequest,
    SubtleUnwrapKeyRequest,
    SubtleSignRequest,
    SubtleVerifyRequest
);

fn component_of(message: &mut impl Component, name: String) {
    message.set(name);
}

impl HttpApi {
    pub(super) async fn subtle(
        &self,
        operation: Subtle,
        parameters: Parameters,
        request: Request<Body>,
    ) -> Response<Body> {
        let name = match self.parameter("name", &parameters[0]) {
            Ok(name) => name,
            Err(response) => return *response,
        };
        match operation {
            Subtle::GetKey => {
                operation!(
                    self,
                    name,
                    request,
                    get_key,
                    "SubtleGetKeyRequest",
                    "SubtleGetKeyResponse"
                )
            }
            Subtle::Encrypt => {
                operation!(
                    self,
                    name,
                    request,
                    encrypt,
                    "SubtleEncryptRequest",
                    "SubtleEncryptResponse"
                )
            }
            Subtle::Decrypt => {
                operation!(
                    self,
                    name,
                    request,
                    decrypt,
                    "SubtleDecryptRequest",
                    "SubtleDecryptResponse"
                )
            }
            Subtle::WrapKey => {
                operation!(
                    self,
                    name,
                    request,
                    wrap_key,
                    "SubtleWrapKeyRequest",
                    "SubtleWrapKeyResponse"
                )
            }
            Subtle::UnwrapKey => operation!(
                self,
                name,
                request,
                unwrap_key,
                "SubtleUnwrapKeyRequest",
                "SubtleUnwrapKeyResponse"
            ),
            Subtle::Sign => operation!(
                self,
                name,
                request,
                sign,
                "SubtleSignRequest",
                "SubtleSignResponse"
            ),
            Subtle::Verify => {
                operation!(
                    self,
                    name,
                    request,
                    verify,
                    "SubtleVerifyRequest",
                    "SubtleVerifyResponse"
                )
            }
        }
    }
}
