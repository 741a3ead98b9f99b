//! Converts subscriptions between versions for the API server, which stores one version and serves both.
//!
//! Callers are not authenticated, and a review may be large. So parts that do not change stay undecoded text,
//! and objects are converted one at a time.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use outrigger_controlplane::webhook::{check_values, cut, offload, text};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// Path of the webhook.
const PATH: &str = "/convert";
const V1: &str = "dapr.io/v1alpha1";
const V2: &str = "dapr.io/v2alpha1";
/// Maximum number of characters of an object's text in messages; names are no longer.
const SHOWN: usize = 253;

/// Answers a request of the API server.
pub(crate) async fn respond(request: Request<Bytes>) -> Response<Bytes> {
    if request.uri().path() != PATH {
        return text(StatusCode::NOT_FOUND, "subscriptions are converted at /convert");
    }
    if request.method() != Method::POST {
        return text(StatusCode::METHOD_NOT_ALLOWED, "post a ConversionReview");
    }
    let body = request.into_body();
    let answer = match offload(body.len(), move || review(&body)).await {
        Ok(answer) => answer,
        Err(Unusable::Malformed(why)) => return text(StatusCode::BAD_REQUEST, why),
        Err(Unusable::Large(why)) => return text(StatusCode::PAYLOAD_TOO_LARGE, &why),
    };
    let mut response = Response::new(Bytes::from(answer));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Why a body gets no `ConversionReview` in response.
#[derive(Debug)]
pub(crate) enum Unusable {
    Malformed(&'static str),
    Large(String),
}

/// A `ConversionReview`. Parts repeated in the response are not decoded.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ConversionRequest<'a> {
    #[serde(borrow)]
    uid: Option<&'a RawValue>,
    #[serde(rename = "desiredAPIVersion")]
    wanted: Option<String>,
    #[serde(borrow)]
    objects: Option<&'a RawValue>,
}

/// The members of an object, undecoded.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Answers a `ConversionReview`.
///
/// # Errors
/// Why there is no response.
pub(crate) fn review(body: &[u8]) -> Result<Vec<u8>, Unusable> {
    const FOREIGN: Unusable = Unusable::Malformed("the body is not a ConversionReview");
    const NO_REQUEST: Unusable =
        Unusable::Malformed("the body is not a ConversionReview: its request is missing");
    let review: Review<'_> = serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => FOREIGN,
        false => Unusable::Malformed("the body is not valid JSON"),
    })?;
    let request = review
        .request
        .filter(|request| is_object(request.get().as_bytes()));
    let request = request.filter(|_| is_object(body)).ok_or(NO_REQUEST)?;
    let request: ConversionRequest<'_> = serde_json::from_str(request.get()).map_err(|_| FOREIGN)?;
    let mut answer = Vec::with_capacity(body.len());
    let (version, kind, uid) = (raw(review.api_version), raw(review.kind), raw(request.uid));
    answer.extend_from_slice(
        format!(
            "{{\"apiVersion\":{version},\"kind\":{kind},\"response\":{{\"uid\":{uid},\"convertedObjects\":["
        )
        .as_bytes(),
    );
    let head = answer.len();
    let result = match convert(&request, &mut answer) {
        Ok(()) => Outcome {
            status: "Success",
            message: None,
        },
        Err(Failed::Large(why)) => return Err(Unusable::Large(why)),
        Err(Failed::Refused(message)) => {
            answer.truncate(head);
            Outcome {
                status: "Failure",
                message: Some(message),
            }
        }
    };
    answer.extend_from_slice(b"],\"result\":");
    // Serializing strings cannot fail.
    let _ = serde_json::to_writer(&mut answer, &result);
    answer.extend_from_slice(b"}}");
    Ok(answer)
}

/// The result of a review.
#[derive(Serialize)]
struct Outcome {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Why objects are not converted.
enum Failed {
    /// Reported to the API server.
    Refused(String),
    /// An object exceeds the maximum size of stored objects.
    Large(String),
}

impl From<serde_json::Error> for Failed {
    fn from(error: serde_json::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

fn raw(value: Option<&RawValue>) -> &str {
    value.map_or("null", RawValue::get)
}

/// Whether a text begins like an object.
fn is_object(json: &[u8]) -> bool {
    json.trim_ascii_start().first() == Some(&b'{')
}

/// Writes the converted objects, separated by commas.
fn convert(request: &ConversionRequest<'_>, out: &mut Vec<u8>) -> Result<(), Failed> {
    let wanted = request.wanted.as_deref().unwrap_or_default();
    let objects = request.objects.filter(|objects| objects.get().starts_with('['));
    let Some(objects) = objects else {
        return Err(Failed::Refused("the request has no objects".to_owned()));
    };
    let (mut failed, mut first) = (None, true);
    let mut reader = serde_json::Deserializer::from_str(objects.get());
    let read = reader.deserialize_seq(Each(|object: &RawValue| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        failed = subscription(object, wanted, out).err();
        failed.is_none()
    }));
    match failed {
        Some(failed) => Err(failed),
        None => read.map_err(Failed::from),
    }
}

/// Passes the elements of a list to a function one at a time, until it fails.
struct Each<F>(F);

impl<'de, F: FnMut(&RawValue) -> bool> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut objects: A) -> Result<(), A::Error> {
        while let Some(object) = objects.next_element::<&'de RawValue>()? {
            if !(self.0)(object) {
                return Err(A::Error::custom("an object was not taken"));
            }
        }
        Ok(())
    }
}

fn members(object: &RawValue) -> Option<Members<'_>> {
    serde_json::from_str(object.get()).ok()
}

/// A string member; empty if missing.
fn member(members: &Members<'_>, name: &str) -> String {
    let text = members
        .get(name)
        .and_then(|value| serde_json::from_str(value.get()).ok());
    text.unwrap_or_default()
}

/// Writes a subscription in the requested version. Version 1 has a single route, so rules of version 2 cannot
/// be converted.
fn subscription(object: &RawValue, wanted: &str, out: &mut Vec<u8>) -> Result<(), Failed> {
    check_values(object.get().as_bytes())
        .map_err(|why| Failed::Large(format!("an object of the review has {why}")))?;
    let object_members = members(object).unwrap_or_default();
    let metadata = object_members.get("metadata").and_then(|value| members(value));
    let name = metadata.map_or_else(String::new, |metadata| member(&metadata, "name"));
    let name = cut(&name, SHOWN);
    let version = member(&object_members, "apiVersion");
    if member(&object_members, "kind") != "Subscription" {
        let kind = object_members.get("kind").map_or("null", |kind| kind.get());
        let kind = cut(kind, SHOWN);
        return Err(Failed::Refused(format!(
            "{name}: cannot convert {kind}, only Subscription"
        )));
    }
    if version == wanted {
        out.extend_from_slice(object.get().as_bytes());
        return Ok(());
    }
    let Some(spec) = object_members.get("spec").and_then(|spec| members(spec)) else {
        return Err(Failed::Refused(format!("{name}: spec is missing")));
    };
    let spec = match (version.as_str(), wanted) {
        (V1, V2) => with_routes(spec)?,
        (V2, V1) => with_route(spec)?,
        _ => {
            let (version, wanted) = (cut(&version, SHOWN), cut(wanted, SHOWN));
            return Err(Failed::Refused(format!(
                "{name}: cannot convert {version:?} into {wanted:?}"
            )));
        }
    };
    let version = to_raw_value(wanted)?;
    let mut converted = object_members;
    converted.insert("spec".to_owned(), &spec);
    converted.insert("apiVersion".to_owned(), &version);
    serde_json::to_writer(out, &converted)?;
    Ok(())
}

/// Converts a specification from version 1 to version 2.
fn with_routes(mut spec: Members<'_>) -> Result<Box<RawValue>, serde_json::Error> {
    let route = spec.remove("route").map_or("\"\"", RawValue::get);
    let routes = RawValue::from_string(format!("{{\"default\":{route}}}"))?;
    written(spec, "routes", &routes)
}

/// Converts a specification from version 2 to version 1.
fn with_route(mut spec: Members<'_>) -> Result<Box<RawValue>, serde_json::Error> {
    let routes = spec.remove("routes").and_then(members);
    let route = routes.map_or_else(String::new, |routes| member(&routes, "default"));
    let route = to_raw_value(&route)?;
    written(spec, "route", &route)
}

/// Serializes members plus one more.
fn written<'a>(
    mut members: Members<'a>,
    name: &str,
    value: &'a RawValue,
) -> Result<Box<RawValue>, serde_json::Error> {
    members.insert(name.to_owned(), value);
    to_raw_value(&members)
}

#[cfg(test)]
mod tests {
    use outrigger_controlplane::webhook::MAX_VALUES;
    use serde_json::{Value, json};

    use super::*;

    async fn post(path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::post(path).body(Bytes::from(body.to_owned())).unwrap();
        let response = respond(request).await;
        let status = response.status();
        (
            status,
            serde_json::from_slice(response.body()).unwrap_or_default(),
        )
    }

    async fn converted(object: Value, wanted: &str) -> Value {
        let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": "u", "desiredAPIVersion": wanted, "objects": [object]}});
        let (status, answer) = post(PATH, &review.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            (&answer["kind"], &answer["response"]["uid"]),
            (&json!("ConversionReview"), &json!("u"))
        );
        answer["response"].clone()
    }

    fn subscription(version: &str, routes: &Value) -> Value {
        let mut object = json!({"apiVersion": version, "kind": "Subscription",
            "metadata": {"name": "s", "uid": "x", "labels": {"a": "b"}}, "scopes": ["app"],
            "spec": {"pubsubname": "p", "topic": "t", "metadata": {"k": "v"}, "deadLetterTopic": "d",
                "bulkSubscribe": {"enabled": true, "maxMessagesCount": 3}}});
        for (name, value) in routes.as_object().unwrap() {
            object["spec"][name] = value.clone();
        }
        object
    }

    #[tokio::test]
    async fn converts_route_both_ways() {
        let (one, two) = (
            subscription(V1, &json!({"route": "/r"})),
            subscription(V2, &json!({"routes": {"default": "/r"}})),
        );
        assert_eq!(converted(one.clone(), V2).await["convertedObjects"][0], two);
        assert_eq!(converted(two.clone(), V1).await["convertedObjects"][0], one);
        assert_eq!(converted(two.clone(), V2).await["convertedObjects"][0], two);
    }

    #[tokio::test]
    async fn version_1_drops_rules() {
        let routes = json!({"routes": {"default": "/r", "rules": [{"match": "x", "path": "/x"}]}});
        let answer = converted(subscription(V2, &routes), V1).await;
        assert_eq!(
            answer["convertedObjects"][0],
            subscription(V1, &json!({"route": "/r"}))
        );
    }

    #[tokio::test]
    async fn names_unconvertible_objects() {
        let unknown = converted(subscription("dapr.io/v9", &json!({})), V2).await;
        assert_eq!(unknown["result"]["status"], "Failure");
        assert!(
            unknown["result"]["message"]
                .as_str()
                .unwrap()
                .contains("dapr.io/v9")
        );
        let mut component = subscription(V1, &json!({}));
        component["kind"] = "Component".into();
        assert_eq!(converted(component, V2).await["result"]["status"], "Failure");
        for body in ["", "[]", "{}", "{\"request\": 1}"] {
            assert_eq!(post(PATH, body).await.0, StatusCode::BAD_REQUEST, "{body}");
        }
        assert_eq!(post("/other", "{}").await.0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn limits_length_of_messages() {
        let mut long = subscription(V1, &json!({}));
        for (field, value) in [("kind", "k"), ("apiVersion", "v")] {
            long[field] = value.repeat(100_000).into();
            let message = converted(long.clone(), V2).await["result"]["message"].to_string();
            assert!(message.len() < 1000, "{} bytes", message.len());
            long["kind"] = "Subscription".into();
        }
    }

    #[tokio::test]
    async fn converts_many_but_no_huge_objects() {
        // Together as many as no single object may have.
        let object = subscription(V1, &json!({"route": "/r"}));
        let objects = vec![object; MAX_VALUES / 20];
        let review = |objects: &[Value]| json!({"kind": "ConversionReview", "request": {"uid": "u", "desiredAPIVersion": V2, "objects": objects}});
        let (status, answer) = post(PATH, &review(&objects).to_string()).await;
        let converted = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!((status, converted.len()), (StatusCode::OK, objects.len()));
        assert!(
            converted
                .iter()
                .all(|object| object["spec"]["routes"]["default"] == "/r")
        );
        let mut huge = objects[0].clone();
        huge["spec"]["metadata"] = vec![json!({"": 0}); MAX_VALUES / 3].into();
        let (status, _) = post(PATH, &review(&[huge]).to_string()).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn keeps_unconverted_parts_verbatim() {
        let object = r#"{"kind": "Subscription", "apiVersion": "dapr.io/v2alpha1", "spec": {"n": 1.50e0}}"#;
        let body =
            format!(r#"{{"request": {{"desiredAPIVersion": "{V2}", "objects": [{object}, {object}]}}}}"#);
        let answer = String::from_utf8(review(body.as_bytes()).unwrap()).unwrap();
        assert_eq!(
            answer,
            format!(
                r#"{{"apiVersion":null,"kind":null,"response":{{"uid":null,"convertedObjects":[{object},{object}],"result":{{"status":"Success"}}}}}}"#
            )
        );
    }
}
