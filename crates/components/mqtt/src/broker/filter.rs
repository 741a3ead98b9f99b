use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of subscription identifiers in MQTT 5, starting at 1.
const MAX_NUMBER: u64 = 268_435_455;

/// A topic filter, with `+` for one level and a final `#` for all remaining ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    /// The filter sent to the broker.
    pub(super) asked: String,
    /// The filter without a `$share/<group>/` prefix.
    topic: String,
}

impl Filter {
    pub(super) fn new(asked: &str) -> Self {
        let shared = asked
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'));
        Self {
            topic: shared.map_or(asked, |(_, topic)| topic).to_owned(),
            asked: asked.to_owned(),
        }
    }

    /// Subscription identifier. The broker stores it across restarts, so it depends only on the filter.
    pub(super) fn number(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        self.asked.hash(&mut hasher);
        u32::try_from(hasher.finish() % MAX_NUMBER + 1).unwrap_or(1)
    }

    /// Whether it is a shared subscription.
    pub(super) fn is_shared(&self) -> bool {
        self.topic.len() < self.asked.len()
    }

    /// Whether it equals this topic.
    pub(super) fn is(&self, topic: &str) -> bool {
        self.topic == topic
    }

    pub(super) fn matches(&self, topic: &str) -> bool {
        // A leading wildcard does not match the broker's own topics.
        if topic.starts_with('$') && self.topic.starts_with(['+', '#']) {
            return false;
        }
        let mut levels = topic.split('/');
        for wanted in self.topic.split('/') {
            match (wanted, levels.next()) {
                ("#", _) | ("+", Some(_)) => {}
                (wanted, Some(level)) if wanted == level => {}
                _ => return false,
            }
            if wanted == "#" {
                return true;
            }
        }
        levels.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_per_specification() {
        for (filter, topic, matches) in [
            ("orders", "orders", true),
            ("orders", "orders/a", false),
            ("orders/+", "orders/a", true),
            ("orders/+", "orders", false),
            ("orders/+", "orders/a/b", false),
            ("orders/+/b", "orders/a/b", true),
            ("orders/#", "orders", true),
            ("orders/#", "orders/a/b", true),
            ("#", "orders/a", true),
            ("#", "$SYS/load", false),
            ("+/load", "$SYS/load", false),
            ("$SYS/#", "$SYS/load", true),
            ("$share/group/orders/+", "orders/a", true),
            ("$share/group/orders", "orders", true),
        ] {
            assert_eq!(Filter::new(filter).matches(topic), matches, "{filter} {topic}");
        }
        assert!(Filter::new("$share/group/orders").is("orders"));
        assert!(Filter::new("$share/group/orders").is_shared() && !Filter::new("orders/+").is_shared());
    }

    #[test]
    fn filter_number_is_stable() {
        let number = |asked: &str| Filter::new(asked).number();
        assert_eq!(number("orders"), number("orders"));
        assert_ne!(number("orders"), number("$share/group/orders"));
        for asked in ["a", "b", "#", "orders/+"] {
            assert!((1..=268_435_455).contains(&number(asked)), "{asked}");
        }
    }
}
