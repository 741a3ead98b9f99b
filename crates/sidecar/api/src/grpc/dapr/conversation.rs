//! Conversation methods.

use outrigger_wire::runtime::v1::{
    ConversationRequest, ConversationRequestAlpha2, ConversationResponse, ConversationResponseAlpha2,
};
use tonic::{Request, Response, Status};

use super::DaprService;
use crate::grpc::describe_conversation;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of("conversation", "v1alpha1", &["ConverseAlpha1"]),
    Group::of("conversation", "v1alpha2", &["ConverseAlpha2"]),
];

impl DaprService {
    pub(super) async fn conversation_alpha1(
        &self,
        request: Request<ConversationRequest>,
    ) -> Result<Response<ConversationResponse>, Status> {
        describe_conversation(&request, &request.get_ref().name);
        let response = self.blocks.conversation.alpha1(request.into_inner()).await;
        response
            .map(Response::new)
            .map_err(|error| self.fail(&error.into()))
    }

    pub(super) async fn conversation_alpha2(
        &self,
        request: Request<ConversationRequestAlpha2>,
    ) -> Result<Response<ConversationResponseAlpha2>, Status> {
        describe_conversation(&request, &request.get_ref().name);
        let response = self.blocks.conversation.alpha2(request.into_inner()).await;
        response
            .map(Response::new)
            .map_err(|error| self.fail(&error.into()))
    }
}
