//! `/v1.0-alpha1/subtlecrypto/…`.

use http::Method;

use super::route::Endpoint;

/// A route for each operation: parses the message `$request`, calls the block and responds with the message
/// `$response`.
macro_rules! operations {
    ($($name:literal $path:literal $operation:ident: $request:ident -> $response:ident,)+) => {
        pub(super) static ROUTES: &[Endpoint] = &[
            $(Endpoint::alpha1(
                Method::POST,
                "subtlecrypto",
                &["subtlecrypto", "{name}", $path],
                $name,
                |api, context| {
                    Box::pin(async move {
                        let component = context.parameter(0)?;
                        let mut message: outrigger_wire::runtime::v1::$request =
                            api.message(stringify!($request), context.request).await?;
                        // Over HTTP, the path names the component.
                        message.component_name = component;
                        let response = api.blocks.crypto.$operation(message).await?;
                        api.message_response(stringify!($response), response).await
                    })
                },
            ),)+
        ];
    };
}

operations! {
    "SubtleGetKey" "getkey" get_key: SubtleGetKeyRequest -> SubtleGetKeyResponse,
    "SubtleEncrypt" "encrypt" encrypt: SubtleEncryptRequest -> SubtleEncryptResponse,
    "SubtleDecrypt" "decrypt" decrypt: SubtleDecryptRequest -> SubtleDecryptResponse,
    "SubtleWrapKey" "wrapkey" wrap_key: SubtleWrapKeyRequest -> SubtleWrapKeyResponse,
    "SubtleUnwrapKey" "unwrapkey" unwrap_key: SubtleUnwrapKeyRequest -> SubtleUnwrapKeyResponse,
    "SubtleSign" "sign" sign: SubtleSignRequest -> SubtleSignResponse,
    "SubtleVerify" "verify" verify: SubtleVerifyRequest -> SubtleVerifyResponse,
}
