//! Single key operations.

use outrigger_blocks::crypto::CryptoError;
use outrigger_wire::runtime::v1::{
    SubtleDecryptRequest, SubtleDecryptResponse, SubtleEncryptRequest, SubtleEncryptResponse,
    SubtleGetKeyRequest, SubtleGetKeyResponse, SubtleSignRequest, SubtleSignResponse, SubtleUnwrapKeyRequest,
    SubtleUnwrapKeyResponse, SubtleVerifyRequest, SubtleVerifyResponse, SubtleWrapKeyRequest,
    SubtleWrapKeyResponse,
};
use tonic::{Response, Status};

use super::DaprService;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of(
    "subtlecrypto",
    "v1alpha1",
    &[
        "SubtleGetKeyAlpha1",
        "SubtleEncryptAlpha1",
        "SubtleDecryptAlpha1",
        "SubtleWrapKeyAlpha1",
        "SubtleUnwrapKeyAlpha1",
        "SubtleSignAlpha1",
        "SubtleVerifyAlpha1",
    ],
)];

type RpcResult<T> = Result<Response<T>, Status>;

impl DaprService {
    fn subtle<T>(&self, outcome: Result<T, CryptoError>) -> RpcResult<T> {
        outcome
            .map(Response::new)
            .map_err(|error| self.fail(&error.into()))
    }

    pub(super) async fn subtle_get_key(
        &self,
        request: SubtleGetKeyRequest,
    ) -> RpcResult<SubtleGetKeyResponse> {
        self.subtle(self.blocks.crypto.get_key(request).await)
    }

    pub(super) async fn subtle_encrypt(
        &self,
        request: SubtleEncryptRequest,
    ) -> RpcResult<SubtleEncryptResponse> {
        self.subtle(self.blocks.crypto.encrypt(request).await)
    }

    pub(super) async fn subtle_decrypt(
        &self,
        request: SubtleDecryptRequest,
    ) -> RpcResult<SubtleDecryptResponse> {
        self.subtle(self.blocks.crypto.decrypt(request).await)
    }

    pub(super) async fn subtle_wrap_key(
        &self,
        request: SubtleWrapKeyRequest,
    ) -> RpcResult<SubtleWrapKeyResponse> {
        self.subtle(self.blocks.crypto.wrap_key(request).await)
    }

    pub(super) async fn subtle_unwrap_key(
        &self,
        request: SubtleUnwrapKeyRequest,
    ) -> RpcResult<SubtleUnwrapKeyResponse> {
        self.subtle(self.blocks.crypto.unwrap_key(request).await)
    }

    pub(super) async fn subtle_sign(&self, request: SubtleSignRequest) -> RpcResult<SubtleSignResponse> {
        self.subtle(self.blocks.crypto.sign(request).await)
    }

    pub(super) async fn subtle_verify(
        &self,
        request: SubtleVerifyRequest,
    ) -> RpcResult<SubtleVerifyResponse> {
        self.subtle(self.blocks.crypto.verify(request).await)
    }
}
