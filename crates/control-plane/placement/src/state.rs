//! `/placement/state`: the tables, for operators.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use outrigger_wire::placement::v1::{Host, StatePlacementTable};
use serde_json::{Map, Value, json};

use crate::term::Terms;

/// Answers a request for the tables; `None` for other paths.
pub(crate) fn answer<B>(request: &Request<B>, terms: &Terms) -> Option<Response<Full<Bytes>>> {
    if request.uri().path() != "/placement/state" {
        return None;
    }
    let text = match terms.borrow().as_deref() {
        // Only the leader has tables.
        None => Value::Null,
        Some(term) => render(term.namespaces.tables()),
    };
    let mut response = Response::new(Full::from(text.to_string()));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Some(response)
}

fn render(tables: BTreeMap<String, StatePlacementTable>) -> Value {
    let tables: Map<String, Value> = tables
        .into_iter()
        .map(|(namespace, table)| {
            let hosts: Vec<Value> = table.hosts.into_iter().map(host).collect();
            let mut rendered = Map::new();
            put(&mut rendered, "hosts", json!(hosts));
            put(&mut rendered, "version", json!(table.version));
            (namespace, Value::Object(rendered))
        })
        .collect();
    let mut all = Map::new();
    put(&mut all, "tables", Value::Object(tables));
    Value::Object(all)
}

fn host(host: Host) -> Value {
    let mut rendered = Map::new();
    put(&mut rendered, "name", json!(host.name));
    put(&mut rendered, "port", json!(host.port));
    put(&mut rendered, "load", json!(host.load));
    put(&mut rendered, "entities", json!(host.entities));
    put(&mut rendered, "id", json!(host.id));
    put(&mut rendered, "pod", json!(host.pod));
    put(&mut rendered, "api_level", json!(host.api_level));
    put(&mut rendered, "namespace", json!(host.namespace));
    put(&mut rendered, "operation", json!(host.operation));
    Value::Object(rendered)
}

/// Adds a field unless it has its default value.
fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let unset = match &value {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(set) => !set,
    };
    if !unset {
        fields.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omits_unset_fields() {
        let hosts = vec![Host {
            name: "10.0.0.1:50002".to_owned(),
            entities: vec!["t1".to_owned(), "t2".to_owned()],
            id: "app".to_owned(),
            api_level: 20,
            namespace: "default".to_owned(),
            operation: 1,
            ..Host::default()
        }];
        let tables = BTreeMap::from([
            ("default".to_owned(), StatePlacementTable { hosts, version: 3 }),
            ("none".to_owned(), StatePlacementTable::default()),
        ]);
        assert_eq!(
            render(tables),
            json!({"tables": {
                "default": {"hosts": [{"name": "10.0.0.1:50002", "entities": ["t1", "t2"], "id": "app",
                    "api_level": 20, "namespace": "default", "operation": 1}], "version": 3},
                "none": {},
            }})
        );
        assert_eq!(render(BTreeMap::new()), json!({}));
    }
}
