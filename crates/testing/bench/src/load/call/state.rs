//! Calls of the state API, and of the stores through their drivers.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri, header};
use outrigger_wire::common::v1::StateItem;
use outrigger_wire::runtime::v1::{GetStateRequest, SaveStateRequest};

use super::{Call, Direction, Wire, filler};
use crate::Failure;
use crate::frame;
use crate::load::driver::Command;
use crate::plan::{Api, StateCall, Verb};

/// The component's name.
pub(crate) const STORE: &str = "bench";
/// Number of keys. Connections use different keys, so that row locks are not measured.
const KEYS: usize = 64;

impl Call {
    /// A state API call to a sidecar's port.
    pub(crate) fn of_state(call: StateCall, port: u16, payload: usize) -> Result<Self, Failure> {
        keyed(|key| match (call.api, call.verb) {
            (Api::Http, Verb::Get) => get_over_http(port, key, payload),
            (Api::Http, Verb::Save) => save_over_http(port, key, payload),
            (Api::Grpc, Verb::Get) => get_over_grpc(port, key, payload),
            (Api::Grpc, Verb::Save) => save_over_grpc(port, key, payload),
        })
    }

    /// The same call to the store's port.
    pub(crate) fn of_driver(call: StateCall, port: u16, payload: usize) -> Result<Self, Failure> {
        keyed(|key| {
            let value = value(payload);
            let (direction, answer) = directions(call.verb, value.len());
            Ok(Self {
                address: SocketAddr::from(([127, 0, 0, 1], port)),
                wire: Wire::Driver(Command {
                    store: call.store,
                    verb: call.verb,
                    key,
                }),
                payload,
                direction,
                method: Method::GET,
                uri: Uri::from_static("/"),
                headers: HeaderMap::new(),
                body: value,
                answer,
                variants: Vec::new(),
            })
        })
    }

    /// The call for each of its keys, if it has several.
    pub(crate) fn each(&self) -> &[Self] {
        &self.variants
    }
}

pub(in crate::load) fn name_of(key: usize) -> String {
    format!("key-{key}")
}

/// A JSON text of this length, at least two bytes.
fn value(length: usize) -> Bytes {
    let inner = filler(length.saturating_sub(2));
    [b"\"", &*inner, b"\""].concat().into()
}

fn directions(verb: Verb, length: usize) -> (Direction, usize) {
    match verb {
        Verb::Get => (Direction::ToClient, length),
        Verb::Save => (Direction::ToServer, 0),
    }
}

fn keyed(call: impl Fn(usize) -> Result<Call, Failure>) -> Result<Call, Failure> {
    let variants = (0..KEYS).map(&call).collect::<Result<Vec<_>, _>>()?;
    Ok(Call { variants, ..call(0)? })
}

fn get_over_http(port: u16, key: usize, payload: usize) -> Result<Call, Failure> {
    let call = Call::get(port, &format!("/v1.0/state/{STORE}/{}", name_of(key)))?;
    let (direction, answer) = directions(Verb::Get, value(payload).len());
    Ok(Call {
        payload,
        direction,
        answer,
        ..call
    })
}

fn save_over_http(port: u16, key: usize, payload: usize) -> Result<Call, Failure> {
    let (value, key) = (value(payload), name_of(key));
    let body = [
        format!("[{{\"key\":\"{key}\",\"value\":").as_bytes(),
        &value,
        b"}]",
    ]
    .concat();
    let mut call = Call::post(port, &format!("/v1.0/state/{STORE}"), payload)?;
    let kind = HeaderValue::from_static("application/json");
    call.headers.insert(header::CONTENT_TYPE, kind);
    let (direction, answer) = directions(Verb::Save, value.len());
    Ok(Call {
        direction,
        answer,
        body: body.into(),
        ..call
    })
}

fn get_over_grpc(port: u16, key: usize, payload: usize) -> Result<Call, Failure> {
    let request = GetStateRequest {
        store_name: STORE.to_owned(),
        key: name_of(key),
        ..GetStateRequest::default()
    };
    let path = "/dapr.proto.runtime.v1.Dapr/GetState";
    let call = Call::grpc(port, path, payload, frame::message(&request))?;
    let (direction, answer) = directions(Verb::Get, value(payload).len());
    Ok(Call {
        direction,
        answer,
        ..call
    })
}

fn save_over_grpc(port: u16, key: usize, payload: usize) -> Result<Call, Failure> {
    let item = StateItem {
        key: name_of(key),
        value: value(payload),
        ..StateItem::default()
    };
    let request = SaveStateRequest {
        store_name: STORE.to_owned(),
        states: vec![item],
    };
    let path = "/dapr.proto.runtime.v1.Dapr/SaveState";
    let call = Call::grpc(port, path, payload, frame::message(&request))?;
    let (direction, answer) = directions(Verb::Save, 0);
    Ok(Call {
        direction,
        answer,
        ..call
    })
}

#[cfg(test)]
mod tests {
    use super::{Call, value};
    use crate::plan::StateCall;

    #[test]
    fn values_are_json_of_given_length() {
        for length in [2, 3, 1024] {
            let value = value(length);
            assert_eq!(value.len(), length);
            assert!(serde_json::from_slice::<String>(&value).is_ok());
        }
    }

    #[test]
    fn connections_use_different_keys() {
        for kind in StateCall::all() {
            let call = Call::of_state(kind, 1, 1024).unwrap();
            let of = |number| {
                let call = call.of_connection(number);
                (call.uri.clone(), call.body.clone())
            };
            assert_ne!(of(0), of(1), "{kind:?}");
            assert_eq!(of(0), of(64), "{kind:?}");
        }
    }
}
