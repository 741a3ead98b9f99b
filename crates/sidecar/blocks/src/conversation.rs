//! Conversations with language models, in both versions of the API.

mod messages;
mod pii;

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_component::Conversation;
use outrigger_component::conversation::{Choice, Message, Request, Response, Role};
use outrigger_offload::offload;
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::components::{Category, OpenError, Opened, Opening};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;
use outrigger_wire::runtime::v1 as proto;
use prost::Message as _;

use super::outbound::{FamilyNames, Operation, Outbound};

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_conversation_count",
    latencies: "component_conversation_latencies",
};

/// Cost per byte of scrubbing, relative to other processing.
const SCRUBBING: usize = 8;

/// Why a conversation failed.
#[derive(Debug)]
pub enum ConversationError {
    /// There is no component with this name.
    NotFound(String),
    /// The request has no inputs.
    MissingInputs(String),
    /// A request parameter is invalid.
    InvalidParameters {
        /// Name of the conversation component.
        component: String,
        /// The problem and the remedy.
        what: String,
    },
    /// The component failed.
    Invoke {
        /// Name of the conversation component.
        component: String,
        /// The reason, for the message.
        cause: String,
    },
}

/// All conversation components of the sidecar.
pub struct Conversations {
    models: Registry<Model>,
    resilience: Arc<Resilience>,
}

impl Conversations {
    /// No components yet; later ones are called under the policies and metrics of `resilience`.
    pub fn new(resilience: Arc<Resilience>) -> Self {
        Self {
            models: Registry::default(),
            resilience,
        }
    }

    /// Adds or replaces a component.
    fn insert(&self, name: &str, component: Arc<dyn Conversation>, hidden: Secrets) -> Registration {
        self.models
            .insert(name, Model::new(name, component, &self.resilience, hidden))
    }

    /// API version alpha1: texts in, texts out.
    ///
    /// # Errors
    /// [`ConversationError`].
    pub async fn alpha1(
        &self,
        request: proto::ConversationRequest,
    ) -> Result<proto::ConversationResponse, ConversationError> {
        self.model(&request.name)?.alpha1(request).await
    }

    /// API version alpha2: messages of all roles, and tools.
    ///
    /// # Errors
    /// [`ConversationError`].
    pub async fn alpha2(
        &self,
        request: proto::ConversationRequestAlpha2,
    ) -> Result<proto::ConversationResponseAlpha2, ConversationError> {
        self.model(&request.name)?.alpha2(request).await
    }

    fn model(&self, name: &str) -> Result<Arc<Model>, ConversationError> {
        let found = self.models.get(name);
        found.ok_or_else(|| ConversationError::NotFound(name.to_owned()))
    }
}

impl Category for Conversations {
    fn name(&self) -> &'static str {
        "conversation"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let component = opening.start(&opening.catalog().conversation).await?;
            let (name, closing) = (opening.name().to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            Ok(
                Opened::new(Vec::new()).part(move || self.insert(&name, component, hidden), async move {
                    closing.close().await
                }),
            )
        })
    }
}

/// A component with its policy and metrics.
struct Model {
    name: String,
    component: Arc<dyn Conversation>,
    outbound: Outbound,
    operation: Operation,
}

impl Model {
    fn new(name: &str, component: Arc<dyn Conversation>, resilience: &Resilience, hidden: Secrets) -> Self {
        let registry = &resilience.metrics.all().registry;
        Self {
            name: name.to_owned(),
            component,
            outbound: Outbound::new(name, ComponentKind::Conversation, resilience, hidden),
            operation: Operation::single(registry, FAMILIES, name),
        }
    }

    async fn ask(&self, request: &Request) -> Result<Response, ConversationError> {
        let attempt = || self.component.converse(request);
        let response = self.outbound.run(&self.operation, attempt).await;
        response.map_err(|cause| ConversationError::Invoke {
            component: self.name.clone(),
            cause: cause.to_string(),
        })
    }

    fn missing_inputs(&self) -> ConversationError {
        ConversationError::MissingInputs(self.name.clone())
    }

    async fn alpha1(
        &self,
        request: proto::ConversationRequest,
    ) -> Result<proto::ConversationResponse, ConversationError> {
        if request.inputs.is_empty() {
            return Err(self.missing_inputs());
        }
        let inputs = request.inputs;
        let wanted = inputs.iter().filter(|input| input.scrub_pii.unwrap_or_default());
        let scrubbing = SCRUBBING * wanted.map(|input| input.content.len()).sum::<usize>();
        let size = scrubbing + inputs.len() * size_of::<Message>();
        let read = |input: proto::ConversationInput| {
            let role = role_named(input.role());
            let text = scrubbed(input.scrub_pii.unwrap_or_default(), input.content);
            Message::new(role, vec![text])
        };
        let question = Request {
            messages: offload(size, move || inputs.into_iter().map(read).collect()).await,
            temperature: request.temperature.unwrap_or_default(),
            ..Request::default()
        };
        let response = self.ask(&question).await?;
        let response = without_personal_data(request.scrub_pii.unwrap_or_default(), response).await;
        let outputs = response
            .choices
            .into_iter()
            .map(|choice| proto::ConversationResult {
                result: choice.content,
                parameters: request.parameters.clone(),
            });
        Ok(proto::ConversationResponse {
            context_id: request.context_id.filter(|id| !id.is_empty()),
            outputs: outputs.collect(),
        })
    }

    async fn alpha2(
        &self,
        request: proto::ConversationRequestAlpha2,
    ) -> Result<proto::ConversationResponseAlpha2, ConversationError> {
        if request.inputs.is_empty() {
            return Err(self.missing_inputs());
        }
        let scrub = request.scrub_pii.unwrap_or_default();
        let context_id = request.context_id.clone().filter(|id| !id.is_empty());
        let scrubs = request
            .inputs
            .iter()
            .any(|input| input.scrub_pii.unwrap_or_default());
        let times = if scrubs { SCRUBBING } else { 1 };
        let size = times * request.encoded_len();
        let question = offload(size, move || messages::question(request)).await;
        let question = question.map_err(|what| ConversationError::InvalidParameters {
            component: self.name.clone(),
            what,
        })?;
        let response = without_personal_data(scrub, self.ask(&question).await?).await;
        Ok(proto::ConversationResponseAlpha2 {
            context_id,
            outputs: messages::outputs(response),
        })
    }
}

async fn without_personal_data(wanted: bool, mut response: Response) -> Response {
    if !wanted {
        return response;
    }
    let said: usize = response.choices.iter().map(|choice| choice.content.len()).sum();
    let scrub = |choice: Choice| Choice {
        content: pii::scrub(&choice.content),
        ..choice
    };
    let choices = std::mem::take(&mut response.choices);
    response.choices = offload(SCRUBBING * said, move || choices.into_iter().map(scrub).collect()).await;
    response
}

fn scrubbed(wanted: bool, text: String) -> String {
    if wanted { pii::scrub(&text) } else { text }
}

/// Roles of alpha1, including the names used by other libraries.
fn role_named(name: &str) -> Role {
    match name {
        "system" => Role::System,
        "assistant" | "ai" => Role::Assistant,
        // Providers refuse tool results without their call, so they become user messages.
        _ => Role::User,
    }
}

#[cfg(test)]
mod tests;
