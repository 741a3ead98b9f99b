//! Ownership of actor types.

/// Whether an actor type belongs to another app. Internal types, those of workflows, belong to the app in
/// their name: `dapr.internal.<namespace>.<app id>.<kind>`.
pub fn is_of_another_app(actor_type: &str, namespace: &str, app_id: &str) -> bool {
    let mut parts = actor_type.split('.');
    parts.next() == Some("dapr")
        && parts.next() == Some("internal")
        && (parts.next() != Some(namespace) || parts.next() != Some(app_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_types_name_their_app() {
        for own in [
            "dapr.internal.ns.app.workflow",
            "dapr.internal.ns.app.activity",
            "counter",
            "dapr.counter",
        ] {
            assert!(!is_of_another_app(own, "ns", "app"), "{own}");
        }
        for other in [
            "dapr.internal.ns.b.workflow",
            "dapr.internal.other.app.workflow",
            "dapr.internal",
        ] {
            assert!(is_of_another_app(other, "ns", "app"), "{other}");
        }
    }
}
