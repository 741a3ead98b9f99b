//! The `Forwarded` headers: the origin of a call, for the callee.

use http::HeaderValue;
use outrigger_runtime::call::Call;
use outrigger_transport::headers::names;

/// `Forwarded` headers added to remote calls.
pub struct Forwarded {
    address: HeaderValue,
    host: Option<HeaderValue>,
    forwarded: HeaderValue,
    caller: HeaderValue,
    caller_namespace: HeaderValue,
}

impl Forwarded {
    /// Builds the headers from the host's address and name, and the caller's identity.
    pub fn new(address: &str, host: &str, app_id: &str, namespace: &str) -> Self {
        let text = |text: &str| HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
        let quoted = if address.contains(':') {
            format!("\"[{address}]\"")
        } else {
            address.to_owned()
        };
        Self {
            address: text(address),
            host: (!host.is_empty()).then(|| text(host)),
            forwarded: text(&format!("for={quoted};by={quoted};host={host}")),
            caller: text(app_id),
            caller_namespace: text(namespace),
        }
    }

    pub(super) fn add(&self, call: &mut Call, callee: &str) {
        let metadata = &mut call.metadata;
        metadata.append(names::FORWARDED_FOR, self.address.clone());
        if let Some(host) = &self.host {
            metadata.append(names::FORWARDED_HOST, host.clone());
        }
        metadata.append(http::header::FORWARDED, self.forwarded.clone());
        metadata.insert(names::CALLER_APP_ID, self.caller.clone());
        metadata.insert(names::CALLER_NAMESPACE, self.caller_namespace.clone());
        if let Ok(callee) = HeaderValue::try_from(callee) {
            metadata.insert(names::CALLEE_APP_ID, callee.clone());
            metadata.insert(names::DESTINATION_APP_ID, callee);
        }
    }
}
