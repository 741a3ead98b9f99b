//! State of the test server.

use std::collections::{BTreeMap, HashMap};

use http::StatusCode;
use serde_json::{Value, json};

use super::patch::{apply_patch, merge};

/// An event of a collection.
#[derive(Clone)]
pub(super) struct Event {
    pub(super) version: u64,
    pub(super) collection: String,
    pub(super) line: String,
}

/// Objects by address, and their events.
#[derive(Default)]
pub(super) struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    pub(super) events: Vec<Event>,
    /// Versions before this one have expired.
    pub(super) forgotten: u64,
    /// Fixed responses by address.
    pub(super) fixed: HashMap<String, (StatusCode, Value)>,
    /// Requests so far: method, address, body.
    pub(super) requests: Vec<(String, String, Value)>,
    /// Refuses all requests.
    pub(super) down: bool,
    /// Leaves requests unanswered.
    pub(super) silent: bool,
    /// Lists have no version and watches end at once, as on small servers.
    pub(super) versionless: bool,
    /// Refuses watches with this status; true means within the stream.
    pub(super) unwatched: Option<(StatusCode, bool)>,
}

/// The collections of an object: its namespace's, and all namespaces'.
fn collections(address: &str) -> Vec<String> {
    let own = address.rsplit_once('/').map_or("", |(own, _)| own).to_owned();
    let mut all = vec![own.clone()];
    if let Some((prefix, rest)) = own.split_once("/namespaces/")
        && let Some((_, plural)) = rest.split_once('/')
    {
        all.push(format!("{prefix}/{plural}"));
    }
    all
}

impl State {
    /// Without objects, at a version: 0 matches any.
    pub(super) fn new() -> Self {
        Self {
            version: 1,
            ..Self::default()
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, address: &str) -> Option<&Value> {
        self.objects.get(address)
    }

    pub(super) fn list(&self, collection: &str) -> Vec<Value> {
        let within = |address: &&String| collections(address).iter().any(|one| one == collection);
        self.objects
            .iter()
            .filter(|(address, _)| within(address))
            .map(|(_, object)| object.clone())
            .collect()
    }

    pub(super) fn put(&mut self, address: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let known = self.objects.insert(address.to_owned(), object.clone()).is_some();
        self.notify(address, if known { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    pub(super) fn delete(&mut self, address: &str) -> Option<Value> {
        let mut object = self.objects.remove(address)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.notify(address, "DELETED", &object);
        Some(object)
    }

    fn notify(&mut self, address: &str, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        for collection in collections(address) {
            let (version, line) = (self.version, line.clone());
            self.events.push(Event {
                version,
                collection,
                line,
            });
        }
    }

    /// Responds to a request other than a watch.
    pub(super) fn answer(
        &mut self,
        method: &str,
        address: &str,
        content: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        self.requests
            .push((method.to_owned(), address.to_owned(), body.clone()));
        if self.down {
            return refused(StatusCode::SERVICE_UNAVAILABLE);
        }
        if let Some((status, value)) = self.fixed.get(address) {
            return (*status, value.clone());
        }
        match method {
            "GET" => match self.get(address) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => refused(StatusCode::NOT_FOUND),
            },
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let address = format!("{address}/{name}");
                match self.get(&address) {
                    Some(_) => refused(StatusCode::CONFLICT),
                    None => (StatusCode::CREATED, self.put(&address, body)),
                }
            }
            "PUT" => {
                let Some(known) = self.get(address) else {
                    return refused(StatusCode::NOT_FOUND);
                };
                let theirs = &body["metadata"]["resourceVersion"];
                if !theirs.is_null() && *theirs != known["metadata"]["resourceVersion"] {
                    return refused(StatusCode::CONFLICT);
                }
                (StatusCode::OK, self.put(address, body))
            }
            "PATCH" => {
                let Some(mut object) = self.get(address).cloned() else {
                    return refused(StatusCode::NOT_FOUND);
                };
                match content {
                    "application/json-patch+json" => apply_patch(&mut object, &body),
                    _ => merge(&mut object, &body),
                }
                (StatusCode::OK, self.put(address, object))
            }
            "DELETE" => match self.get(address).map(|known| &known["metadata"]["uid"]) {
                Some(uid)
                    if body["preconditions"]
                        .get("uid")
                        .is_some_and(|wanted| wanted != uid) =>
                {
                    refused(StatusCode::CONFLICT)
                }
                _ => self.deleted(address),
            },
            _ => refused(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn deleted(&mut self, address: &str) -> (StatusCode, Value) {
        match self.delete(address) {
            Some(object) => (StatusCode::OK, object),
            None => refused(StatusCode::NOT_FOUND),
        }
    }
}

pub(super) fn refused(status: StatusCode) -> (StatusCode, Value) {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
        "message": status.canonical_reason()});
    (status, body)
}
