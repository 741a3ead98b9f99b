//! Opens brokers from Component resources, with the topics that the app may use.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_resources::NameValue;
use outrigger_runtime::components::{Category, DEFAULT_NAMESPACE, OpenError, Opened, Opening, Properties};

use super::{PubSubs, Topics};

/// The consumer group.
const CONSUMER_ID: &str = "consumerID";
/// Placeholder in a property; it makes the component's topics those of the namespace.
const NAMESPACE: &str = "{namespace}";

impl Category for PubSubs {
    fn name(&self) -> &'static str {
        "pubsub"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let entry = opening.find(&opening.catalog().pubsub)?;
            let mut properties = opening.properties().await?;
            name_group(&mut properties, opening.app_id());
            let setup = opening.setup(properties)?;
            let topics = Topics::read(&setup.metadata, opening.app_id());
            let prefix = prefix(opening);
            let component = opening.build(&entry, setup).await?;
            let (name, closing) = (opening.name().to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            let capabilities = component.features().names();
            Ok(Opened::new(capabilities).part(
                move || self.insert(&name, component, topics, prefix, hidden),
                async move { closing.close().await },
            ))
        })
    }
}

/// Defaults the consumer group to the app id, so that all instances of the app share messages.
fn name_group(properties: &mut Properties, app_id: &str) {
    let is_group = |name: &str| name.eq_ignore_ascii_case(CONSUMER_ID);
    let mut named = false;
    for item in properties.items.iter_mut().filter(|item| is_group(&item.name)) {
        let group = item.text().trim();
        let group = if group.is_empty() { app_id } else { group };
        item.value = Some(group.to_owned());
        named = true;
    }
    if !named {
        properties.items.push(NameValue::new(CONSUMER_ID, app_id));
    }
}

fn prefix(opening: &Opening<'_>) -> String {
    let values = opening.component.metadata.iter();
    let scoped = values
        .filter_map(|item| item.value.as_deref())
        .any(|value| value.contains(NAMESPACE));
    let namespace = opening.namespace().unwrap_or(DEFAULT_NAMESPACE);
    if scoped {
        namespace.to_owned()
    } else {
        String::new()
    }
}
