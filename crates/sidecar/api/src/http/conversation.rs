//! `/v1.0-alpha1/conversation/…` and `/v1.0-alpha2/conversation/…`.

use http::Method;
use outrigger_wire::runtime::v1::{ConversationRequest, ConversationRequestAlpha2};

use super::route::{Endpoint, Handler, HandlerResult};
use super::{Context, HttpApi};

pub(super) static ROUTES: &[Endpoint] = &[
    converse(("v1alpha1", "v1.0-alpha1"), |api, context| {
        Box::pin(api.converse_alpha1(context))
    }),
    converse(("v1alpha2", "v1.0-alpha2"), |api, context| {
        Box::pin(api.converse_alpha2(context))
    }),
];

const fn converse(version: (&'static str, &'static str), handler: Handler) -> Endpoint {
    let path = &["conversation", "{name}", "converse"];
    Endpoint::new(
        Some(Method::POST),
        version,
        "conversation",
        path,
        "Converse",
        handler,
    )
}

impl HttpApi {
    async fn converse_alpha1(&self, context: Context<'_>) -> HandlerResult {
        let name = context.parameter(0);
        let mut message: ConversationRequest = self.message("ConversationRequest", context.request).await?;
        message.name = name?;
        let response = self.blocks.conversation.alpha1(message).await?;
        self.message_response("ConversationResponse", response).await
    }

    async fn converse_alpha2(&self, context: Context<'_>) -> HandlerResult {
        let name = context.parameter(0);
        let request = self.message("ConversationRequestAlpha2", context.request);
        let mut message: ConversationRequestAlpha2 = request.await?;
        message.name = name?;
        let response = self.blocks.conversation.alpha2(message).await?;
        self.message_response("ConversationResponseAlpha2", response)
            .await
    }
}
