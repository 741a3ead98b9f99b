//! Topic permissions of an app: `allowedTopics`, `protectedTopics`, `publishingScopes` and
//! `subscriptionScopes` of the component.

use outrigger_component::Metadata;

/// The topics that an app may publish and subscribe to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topics {
    allowed: Vec<String>,
    protected: Vec<String>,
    publishing: Option<Vec<String>>,
    subscribing: Option<Vec<String>>,
}

impl Topics {
    /// Parses the properties of a component for the app `app_id`.
    pub fn read(metadata: &Metadata, app_id: &str) -> Self {
        let text = |name| metadata.text(&[name]).unwrap_or_default();
        Self {
            allowed: list(text("allowedTopics")),
            protected: list(text("protectedTopics")),
            publishing: scope(text("publishingScopes"), app_id),
            subscribing: scope(text("subscriptionScopes"), app_id),
        }
    }

    /// Whether the app may publish to a topic.
    pub fn may_publish(&self, topic: &str) -> bool {
        self.permits(topic, self.publishing.as_deref())
    }

    /// Whether the app may subscribe to a topic.
    pub fn may_subscribe(&self, topic: &str) -> bool {
        self.permits(topic, self.subscribing.as_deref())
    }

    fn permits(&self, topic: &str, scope: Option<&[String]>) -> bool {
        let lists = |topics: &[String]| topics.iter().any(|one| one == topic);
        if !self.allowed.is_empty() && !lists(&self.allowed) {
            return false;
        }
        match scope {
            Some(scope) => lists(scope),
            None => !lists(&self.protected),
        }
    }
}

/// Parses `a,b`; spaces are ignored.
fn list(text: &str) -> Vec<String> {
    let names = text.split(',').map(|name| name.replace(' ', ""));
    names.filter(|name| !name.is_empty()).collect()
}

/// The topics of an app in `app1=a,b;app2=c`. An app with an empty list may use none; an unlisted app is
/// `None`.
fn scope(text: &str, app_id: &str) -> Option<Vec<String>> {
    let text = text.replace(' ', "");
    text.split(';').find_map(|entry| {
        let (app, topics) = entry.split_once('=')?;
        (app == app_id && !topics.contains('=')).then(|| list(topics))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(properties: &[(&str, &str)]) -> Topics {
        let owned = properties.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Topics::read(&Metadata::new("broker", owned.collect::<Vec<_>>()).unwrap(), "me")
    }

    #[test]
    fn allows_all_topics_without_rules() {
        let free = topics(&[("publishingScopes", ""), ("allowedTopics", " ")]);
        assert!(free.may_publish("any") && free.may_subscribe("any"));
    }

    #[test]
    fn combines_lists_and_scopes() {
        let rules = topics(&[
            ("ALLOWEDTOPICS", "a, b ,p"),
            ("protectedTopics", "p"),
            ("publishingScopes", "other=a; me = p,x"),
        ]);
        for (topic, publish, subscribe) in [
            ("a", false, true),
            ("b", false, true),
            ("p", true, false),
            ("x", false, false),
            ("c", false, false),
        ] {
            assert_eq!(
                (rules.may_publish(topic), rules.may_subscribe(topic)),
                (publish, subscribe),
                "{topic}"
            );
        }
        let nothing = topics(&[("subscriptionScopes", "me=")]);
        assert!(nothing.may_publish("a") && !nothing.may_subscribe("a"));
    }
}
