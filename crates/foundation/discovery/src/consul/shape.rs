//! Field names of Consul's registration API. A configuration may write them in any case; Consul receives
//! the canonical names, and no unknown fields.

use serde_json::{Map, Value};

/// One field: the name in the configuration, Consul's name, and the type of the value.
pub(super) struct Field(&'static str, &'static str, Shape);

#[derive(Clone, Copy)]
enum Shape {
    /// Passed through: text, numbers, free-form maps.
    Any,
    Object(fn() -> &'static [Field]),
    List(fn() -> &'static [Field]),
    /// A map with arbitrary keys.
    Map(fn() -> &'static [Field]),
}

const fn any(name: &'static str) -> Field {
    Field(name, name, Shape::Any)
}

/// A service check.
pub(super) fn check() -> &'static [Field] {
    const {
        &[
            Field("Args", "ScriptArgs", Shape::Any),
            any("CheckID"),
            any("Name"),
            any("DockerContainerID"),
            any("Shell"),
            any("Interval"),
            any("Timeout"),
            any("TTL"),
            any("HTTP"),
            any("Method"),
            any("TCP"),
            any("Status"),
            any("Notes"),
            any("GRPC"),
            any("AliasNode"),
            any("AliasService"),
            any("DeregisterCriticalServiceAfter"),
            any("Header"),
            any("TLSSkipVerify"),
            any("GRPCUseTLS"),
        ]
    }
}

/// A service registration.
pub(super) fn registration() -> &'static [Field] {
    const {
        &[
            any("Kind"),
            any("ID"),
            any("Name"),
            any("Tags"),
            any("Port"),
            any("Address"),
            Field("TaggedAddresses", "TaggedAddresses", Shape::Map(tagged_address)),
            any("EnableTagOverride"),
            any("Meta"),
            Field("Weights", "Weights", Shape::Object(weights)),
            Field("Check", "Check", Shape::Object(check)),
            Field("Checks", "Checks", Shape::List(check)),
            Field("Proxy", "Proxy", Shape::Object(proxy)),
            Field("Connect", "Connect", Shape::Object(connect)),
        ]
    }
}

fn tagged_address() -> &'static [Field] {
    const { &[any("Address"), any("Port")] }
}

fn weights() -> &'static [Field] {
    const { &[any("Passing"), any("Warning")] }
}

fn connect() -> &'static [Field] {
    const {
        &[
            any("Native"),
            Field("SidecarService", "SidecarService", Shape::Object(registration)),
        ]
    }
}

fn proxy() -> &'static [Field] {
    const {
        &[
            any("DestinationServiceName"),
            any("DestinationServiceID"),
            any("LocalServiceAddress"),
            any("LocalServicePort"),
            any("Config"),
            Field("Upstreams", "Upstreams", Shape::List(upstream)),
            Field("MeshGateway", "MeshGateway", Shape::Object(mesh_gateway)),
            Field("Expose", "Expose", Shape::Object(expose)),
        ]
    }
}

fn upstream() -> &'static [Field] {
    const {
        &[
            any("DestinationType"),
            any("DestinationNamespace"),
            any("DestinationName"),
            any("Datacenter"),
            any("LocalBindAddress"),
            any("LocalBindPort"),
            any("Config"),
            Field("MeshGateway", "MeshGateway", Shape::Object(mesh_gateway)),
        ]
    }
}

fn mesh_gateway() -> &'static [Field] {
    const { &[any("Mode")] }
}

fn expose() -> &'static [Field] {
    const { &[any("Checks"), Field("Paths", "Paths", Shape::List(expose_path))] }
}

fn expose_path() -> &'static [Field] {
    const {
        &[
            any("ListenerPort"),
            any("Path"),
            any("LocalPathPort"),
            any("Protocol"),
            any("ParsedFromCheck"),
        ]
    }
}

/// The known fields of a map under their canonical names. Recursion is bounded by the depth of the parsed
/// configuration.
pub(super) fn canonical(value: &Value, fields: &[Field]) -> Value {
    let Value::Object(map) = value else {
        return value.clone();
    };
    let mut out = Map::new();
    for (key, value) in map {
        let field = fields
            .iter()
            .find(|Field(name, ..)| name.eq_ignore_ascii_case(key));
        let Some(Field(_, name, shape)) = field.filter(|_| !value.is_null()) else {
            continue;
        };
        out.insert((*name).to_owned(), shape.apply(value));
    }
    Value::Object(out)
}

impl Shape {
    fn apply(self, value: &Value) -> Value {
        match (self, value) {
            (Self::Object(fields), value) => canonical(value, fields()),
            (Self::List(fields), Value::Array(items)) => {
                items.iter().map(|item| canonical(item, fields())).collect()
            }
            (Self::Map(fields), Value::Object(map)) => Value::Object(
                map.iter()
                    .map(|(key, value)| (key.clone(), canonical(value, fields())))
                    .collect(),
            ),
            _ => value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn canonicalizes_nested_names() {
        let given = json!({
            "id": "x", "NAME": "orders", "bogus": 1, "meta": {"KeepCase": "v"},
            "taggedAddresses": {"wan": {"ADDRESS": "1.2.3.4", "port": 5}},
            "checks": [{"checkid": "c", "args": ["a"], "http": "http://x"}],
            "connect": {"sidecarService": {"proxy": {"upstreams": [{"localbindport": 9}]}}}
        });
        assert_eq!(
            canonical(&given, registration()),
            json!({
                "ID": "x", "Name": "orders", "Meta": {"KeepCase": "v"},
                "TaggedAddresses": {"wan": {"Address": "1.2.3.4", "Port": 5}},
                "Checks": [{"CheckID": "c", "ScriptArgs": ["a"], "HTTP": "http://x"}],
                "Connect": {"SidecarService": {"Proxy": {"Upstreams": [{"LocalBindPort": 9}]}}}
            })
        );
    }
}
