//! Opens bindings from Component resources; one component has up to two directions.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_component::catalog::{LookupError, only_of_dapr};
use outrigger_component::{Section, Setup};
use outrigger_nearest::hint;
use outrigger_runtime::components::{Category, OpenError, Opened, Opening, Step};

use super::{Bindings, LOG, NewInput};

impl Category for Bindings {
    fn name(&self) -> &'static str {
        "bindings"
    }

    /// Starts a binding for each direction that the type supports and the property `direction` allows.
    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            check_known(opening)?;
            let setup = opening.setup(opening.properties().await?)?;
            let opened = self.both(opening, &setup).await;
            opening.show_unused(&setup.metadata, opened.is_ok());
            opened
        })
    }
}

/// The direction `input` or `output` in the property `direction` of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The property lists it.
    Declared,
    /// The property is absent.
    Unspecified,
    /// The property lists only the other direction.
    Excluded,
}

impl Direction {
    /// Reads the comma-separated property for `direction`: `input` or `output`.
    fn of(property: Option<&str>, direction: &str) -> Self {
        let Some(list) = property else {
            return Self::Unspecified;
        };
        let named = list
            .split(',')
            .any(|item| item.trim().eq_ignore_ascii_case(direction));
        if named { Self::Declared } else { Self::Excluded }
    }
}

impl Bindings {
    async fn both(self: Arc<Self>, opening: &Opening<'_>, setup: &Setup) -> Result<Opened, OpenError> {
        let direction = setup.metadata.text(&["direction"]);
        let (reads, writes) = (
            Direction::of(direction, "input"),
            Direction::of(direction, "output"),
        );
        let catalog = opening.catalog();
        let input = match reads {
            Direction::Excluded => None,
            _ => build(opening, setup, &catalog.input_bindings, "input").await?,
        };
        let mut capabilities = Vec::new();
        if input.is_some() {
            capabilities.push("INPUT_BINDING");
        }
        let output = match writes {
            Direction::Excluded => Ok(None),
            _ => build(opening, setup, &catalog.output_bindings, "output").await,
        };
        let output = match (output, &input) {
            (Ok(output), _) => output,
            (Err(error), input) => {
                if let Some(input) = input {
                    input.close().await;
                }
                return Err(error);
            }
        };
        if output.is_some() {
            capabilities.push("OUTPUT_BINDING");
        }
        let mut opened = Opened::new(capabilities);
        let name = opening.name();
        if let Some(component) = input {
            if self.dependencies.app.is_none() && (reads == Direction::Declared || output.is_none()) {
                tracing::warn!(
                    target: LOG,
                    "{}: events of input binding {name:?} are not read: the app has no port (give --app-port, in \
                     Kubernetes the annotation dapr.io/app-port)",
                    opening.component.source
                );
            }
            let route = setup.metadata.filled(&["route"]).unwrap_or(name);
            let input = NewInput {
                name: name.to_owned(),
                route: route.trim_start_matches('/').to_owned(),
                declared: reads == Direction::Declared,
                component: Arc::clone(&component),
            };
            let block = Arc::clone(&self);
            opened = opened.part(move || block.insert_input(input), async move {
                component.close().await;
            });
        }
        if let Some(component) = output {
            let (name, closing) = (name.to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            opened = opened.part(move || self.insert_output(&name, component, hidden), async move {
                closing.close().await;
            });
        }
        Ok(opened)
    }
}

/// Fails if neither direction knows the type.
fn check_known(opening: &Opening<'_>) -> Result<(), OpenError> {
    let component = opening.component;
    let (kind, version) = (&component.kind, &component.version);
    let (inputs, outputs) = (
        &opening.catalog().input_bindings,
        &opening.catalog().output_bindings,
    );
    let (Err(input), Err(output)) = (inputs.find(kind, version), outputs.find(kind, version)) else {
        return Ok(());
    };
    let name = component.log_name();
    let (text, value) = match (&input, &output) {
        (LookupError::UnknownType { known: reads, .. }, LookupError::UnknownType { known: writes, .. }) => {
            let known = [inputs.known(), outputs.known()].concat();
            let near = || hint(kind, known.iter().map(String::as_str));
            let hint = only_of_dapr(kind).unwrap_or_else(near);
            (
                format!("{hint}this build has as input {reads}; as output {writes}"),
                "spec.type",
            )
        }
        // The type is known, its version is not.
        _ => (format!("as input: {input}; as output: {output}"), "spec.version"),
    };
    let text = format!("couldn't find binding {name}: {text}");
    Err(opening.failed(Step::Create, text).at(component, value))
}

/// Builds the component for one direction, if its type supports it.
async fn build<T: ?Sized>(
    opening: &Opening<'_>,
    setup: &Setup,
    section: &Section<T>,
    direction: &str,
) -> Result<Option<Arc<T>>, OpenError> {
    let component = opening.component;
    let Ok(entry) = section.find(&component.kind, &component.version) else {
        return Ok(None);
    };
    let built = opening.build_part(&entry, setup.clone()).await?;
    tracing::info!(
        target: LOG,
        "successful init for {direction} binding ({})",
        component.log_name()
    );
    Ok(Some(built))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_direction_list() {
        let says = |property| {
            (
                Direction::of(property, "input"),
                Direction::of(property, "output"),
            )
        };
        let (declared, excluded) = (Direction::Declared, Direction::Excluded);
        assert_eq!(says(None), (Direction::Unspecified, Direction::Unspecified));
        assert_eq!(says(Some("input")), (declared, excluded));
        assert_eq!(says(Some(" Output , INPUT")), (declared, declared));
        assert_eq!(says(Some("")), (excluded, excluded));
    }
}
