//! `/v1.0-alpha1/conversation/…` and `/v1.0-alpha2/conversation/…`.

use http::{Request, Response};
use outrigger_wire::runtime::v1::{ConversationRequest, ConversationRequestAlpha2};

use super::HttpApi;
use super::route::Parameters;
use crate::body::Body;

impl HttpApi {
    pub(super) async fn converse_alpha1(
        &self,
        parameters: Parameters,
        request: Request<Body>,
    ) -> Response<Body> {
        let mut message: ConversationRequest = match self.message("ConversationRequest", request).await {
            Ok(message) => message,
            Err(response) => return *response,
        };
        message.name = match self.parameter("name", &parameters[0]) {
            Ok(name) => name,
            Err(response) => return *response,
        };
        let outcome = self.blocks.conversation.alpha1(message).await;
        self.message_response("ConversationResponse", outcome.map_err(Into::into))
            .await
    }

    pub(super) async fn converse_alpha2(
        &self,
        parameters: Parameters,
        request: Request<Body>,
    ) -> Response<Body> {
        let name = "ConversationRequestAlpha2";
        let mut message: ConversationRequestAlpha2 = match self.message(name, request).await {
            Ok(message) => message,
            Err(response) => return *response,
        };
        message.name = match self.parameter("name", &parameters[0]) {
            Ok(name) => name,
            Err(response) => return *response,
        };
        let outcome = self.blocks.conversation.alpha2(message).await;
        self.message_response("ConversationResponseAlpha2", outcome.map_err(Into::into))
            .await
    }
}
