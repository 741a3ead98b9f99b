//! Subscriptions from one version into another, for the API server: it stores one version and serves both.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use outrigger_controlplane::webhook::text;
use serde_json::{Value, json};

/// Where the API server asks.
const PATH: &str = "/convert";
const V1: &str = "dapr.io/v1alpha1";
const V2: &str = "dapr.io/v2alpha1";

/// Answers a request of the API server.
pub(crate) fn respond(request: &Request<Bytes>) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return text(StatusCode::NOT_FOUND, "subscriptions are converted at /convert");
    }
    if request.method() != Method::POST {
        return text(StatusCode::METHOD_NOT_ALLOWED, "post a ConversionReview");
    }
    let answer = match review(request.body()) {
        Ok(answer) => answer,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Answers a `ConversionReview`.
///
/// # Errors
/// Why it is none.
pub(crate) fn review(body: &[u8]) -> Result<Value, &'static str> {
    let Ok(mut review) = serde_json::from_slice::<Value>(body) else {
        return Err("the body is not valid JSON");
    };
    if !review["request"].is_object() {
        return Err("the body is not a ConversionReview: its request is missing");
    }
    let outcome = convert(&mut review["request"]);
    let uid = review["request"]["uid"].clone();
    let answer = match outcome {
        Ok(objects) => json!({"uid": uid, "convertedObjects": objects, "result": {"status": "Success"}}),
        Err(message) => {
            let result = json!({"status": "Failure", "message": message});
            json!({"uid": uid, "convertedObjects": [], "result": result})
        }
    };
    Ok(json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}))
}

fn convert(request: &mut Value) -> Result<Vec<Value>, String> {
    let wanted = request["desiredAPIVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let objects = request["objects"].take();
    let Value::Array(objects) = objects else {
        return Err("the objects of the request are missing".to_owned());
    };
    objects
        .into_iter()
        .map(|object| subscription(object, &wanted))
        .collect()
}

/// Converts a subscription. Version 1 has one route; rules of version 2 have no place there.
fn subscription(mut object: Value, wanted: &str) -> Result<Value, String> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    if object["kind"] != "Subscription" {
        return Err(format!(
            "{name}: cannot convert {}, only Subscription",
            object["kind"]
        ));
    }
    if version == wanted {
        return Ok(object);
    }
    let Some(spec) = object["spec"].as_object_mut() else {
        return Err(format!("{name}: spec is missing"));
    };
    match (version.as_str(), wanted) {
        (V1, V2) => {
            let route = spec.remove("route").unwrap_or_else(|| "".into());
            spec.insert("routes".to_owned(), json!({"default": route}));
        }
        (V2, V1) => {
            let routes = spec.remove("routes").unwrap_or_default();
            let route = routes["default"].as_str().unwrap_or_default();
            spec.insert("route".to_owned(), route.into());
        }
        _ => return Err(format!("{name}: cannot convert {version:?} into {wanted:?}")),
    }
    object["apiVersion"] = wanted.into();
    Ok(object)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn post(path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::post(path).body(Bytes::from(body.to_owned())).unwrap();
        let response = respond(&request);
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
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
    async fn a_route_becomes_the_default_route_and_back() {
        let (one, two) = (
            subscription(V1, &json!({"route": "/r"})),
            subscription(V2, &json!({"routes": {"default": "/r"}})),
        );
        assert_eq!(converted(one.clone(), V2).await["convertedObjects"][0], two);
        assert_eq!(converted(two.clone(), V1).await["convertedObjects"][0], one);
        assert_eq!(converted(two.clone(), V2).await["convertedObjects"][0], two);
    }

    #[tokio::test]
    async fn rules_are_lost_towards_version_1() {
        let routes = json!({"routes": {"default": "/r", "rules": [{"match": "x", "path": "/x"}]}});
        let answer = converted(subscription(V2, &routes), V1).await;
        assert_eq!(
            answer["convertedObjects"][0],
            subscription(V1, &json!({"route": "/r"}))
        );
    }

    #[tokio::test]
    async fn what_cannot_be_converted_is_said() {
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
}
