use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use outrigger_component::bindings::{Invoke, Invoked};
use outrigger_component::{OutputBinding, Pairs};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::resilience::Resilience;

use crate::outbound::{Cause, FamilyNames, Operation, Outbound};

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_output_binding_count",
    latencies: "component_output_binding_latencies",
};

/// Why a call of an output binding failed. Displays only the reason; the caller adds the binding's name.
#[derive(Debug)]
pub enum BindingError {
    /// The call names no operation.
    NoOperation,
    /// There is no binding with this name.
    NotFound {
        /// The name.
        binding: String,
    },
    /// The binding does not support the operation.
    Unsupported {
        /// Name of the binding component.
        binding: String,
        /// The operation of the request.
        operation: String,
        /// The operations that the binding supports.
        supported: Vec<String>,
    },
    /// The call of the binding failed.
    Call(Cause),
}

impl fmt::Display for BindingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOperation => f.write_str("operation field is missing from request"),
            Self::NotFound { binding } => write!(f, "couldn't find output binding {binding}"),
            Self::Unsupported {
                binding,
                operation,
                supported,
            } => write!(
                f,
                "binding {binding} does not support operation {operation}. supported operations:{}",
                supported.join(" ")
            ),
            Self::Call(cause) => cause.fmt(f),
        }
    }
}

impl BindingError {
    /// Response metadata that reach the caller despite the error.
    pub fn metadata(&self) -> &Pairs {
        static NONE: LazyLock<Pairs> = LazyLock::new(Pairs::new);
        match self {
            Self::Call(Cause::Component(error)) => error.metadata(),
            _ => &NONE,
        }
    }
}

/// An output binding with its policy and metrics.
pub(super) struct Output {
    component: Arc<dyn OutputBinding>,
    outbound: Outbound,
    operations: HashMap<String, Operation>,
}

impl Output {
    pub(super) fn new(
        name: &str,
        component: Arc<dyn OutputBinding>,
        resilience: &Resilience,
        hidden: Secrets,
    ) -> Self {
        let registry = &resilience.metrics.all().registry;
        let operations = component.operations().into_iter().map(|operation| {
            let counted = Operation::new(registry, FAMILIES, name, operation);
            (operation.to_owned(), counted)
        });
        let operations = operations.collect();
        Self {
            component,
            outbound: Outbound::new(name, ComponentKind::Binding, resilience, hidden),
            operations,
        }
    }

    pub(super) async fn invoke(&self, name: &str, call: &Invoke) -> Result<Option<Invoked>, BindingError> {
        let Some(operation) = self.operations.get(&call.operation) else {
            let supported = self.component.operations();
            return Err(BindingError::Unsupported {
                binding: name.to_owned(),
                operation: call.operation.clone(),
                supported: supported.into_iter().map(str::to_owned).collect(),
            });
        };
        let attempt = || self.component.invoke(call);
        let done = self.outbound.run(operation, attempt).await;
        done.map_err(BindingError::Call)
    }
}
