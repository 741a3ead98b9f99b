//! Bindings: one component, up to two directions.

use std::sync::Arc;

use outrigger_component::catalog::LookupError;
use outrigger_component::{InputBinding, OutputBinding, SecretStore, Setup};
use outrigger_nearest::hint;
use outrigger_resources::Component;

use super::{Context, LOG, OpenError, Opened, Step, in_time, resolve, setup, show_unused};
use crate::blocks::bindings::{OpenedInput, Use};

/// Starts a binding in each direction that it has and that its property `direction` leaves.
pub(super) async fn open(
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<Opened, OpenError> {
    check_known(component, context)?;
    let properties = resolve(component, secrets, context).await?;
    let setup = setup(component, properties.items, context)?;
    let opened = both(component, &setup, context).await;
    show_unused(component, &setup.metadata, opened.is_ok());
    opened
}

async fn both(component: &Component, setup: &Setup, context: &Context) -> Result<Opened, OpenError> {
    let direction = setup.metadata.text(&["direction"]);
    let (reads, writes) = (Use::of(direction, "input"), Use::of(direction, "output"));
    let route = setup.metadata.filled(&["route"]).unwrap_or(&component.name);
    let route = route.trim_start_matches('/').to_owned();
    let input = match reads {
        Use::Not => None,
        _ => input(component, setup, context).await?,
    };
    let output = match writes {
        Use::Not => None,
        _ => match output(component, setup, context).await {
            Ok(output) => output,
            Err(error) => {
                if let Some(input) = input {
                    input.close().await;
                }
                return Err(error);
            }
        },
    };
    let input = input.map(|input| OpenedInput {
        name: component.name.clone(),
        component: input,
        route,
        declared: reads == Use::Declared,
    });
    Ok(Opened::Bindings { input, output })
}

/// A type that is known in one direction only is used in that one.
fn check_known(component: &Component, context: &Context) -> Result<(), OpenError> {
    let (kind, version) = (&component.kind, &component.version);
    let (inputs, outputs) = (&context.catalog.input_bindings, &context.catalog.output_bindings);
    let (Err(input), Err(output)) = (inputs.find(kind, version), outputs.find(kind, version)) else {
        return Ok(());
    };
    let name = component.log_name();
    let (text, value) = match (&input, &output) {
        (LookupError::UnknownType { known: reads, .. }, LookupError::UnknownType { known: writes, .. }) => {
            let known = [inputs.known(), outputs.known()].concat();
            let hint = hint(kind, known.iter().map(String::as_str));
            (
                format!("{hint}this build has as input {reads}; as output {writes}"),
                "spec.type",
            )
        }
        // The type is known, its version is not.
        _ => (format!("as input: {input}; as output: {output}"), "spec.version"),
    };
    let text = format!("couldn't find binding {name}: {text}");
    Err(OpenError::new(Step::Create, component, text).at(component, value))
}

async fn input(
    component: &Component,
    setup: &Setup,
    context: &Context,
) -> Result<Option<Arc<dyn InputBinding>>, OpenError> {
    let entry = context
        .catalog
        .input_bindings
        .find(&component.kind, &component.version);
    let Ok(entry) = entry else { return Ok(None) };
    let built = in_time(component, entry.build(setup.clone())).await?;
    tracing::info!(target: LOG, "successful init for input binding ({})", component.log_name());
    Ok(Some(built))
}

async fn output(
    component: &Component,
    setup: &Setup,
    context: &Context,
) -> Result<Option<Arc<dyn OutputBinding>>, OpenError> {
    let entry = context
        .catalog
        .output_bindings
        .find(&component.kind, &component.version);
    let Ok(entry) = entry else { return Ok(None) };
    let built = in_time(component, entry.build(setup.clone())).await?;
    tracing::info!(target: LOG, "successful init for output binding ({})", component.log_name());
    Ok(Some(built))
}
