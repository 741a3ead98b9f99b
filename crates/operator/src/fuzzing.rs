//! What fuzzers call.

use serde_json::Value;

use crate::convert;

/// A body that the API server could post: nothing panics; what is converted is complete, has the version that was asked
/// for and its metadata, and stays the same when it is converted again.
///
/// # Panics
/// Where that does not hold.
pub fn conversion(body: &[u8]) {
    let Ok(answer) = convert::review(body) else { return };
    let review: Value = serde_json::from_slice(body).expect("JSON, or it is refused");
    let (request, response) = (&review["request"], &answer["response"]);
    assert_eq!(response["uid"], request["uid"]);
    let converted = response["convertedObjects"].as_array().expect("a list");
    if response["result"]["status"] != "Success" {
        assert!(converted.is_empty() && response["result"]["message"].is_string());
        return;
    }
    let objects = request["objects"].as_array().expect("a list, or it is refused");
    assert_eq!(objects.len(), converted.len());
    for (before, after) in objects.iter().zip(converted) {
        assert_eq!(after["apiVersion"], request["desiredAPIVersion"]);
        assert_eq!(after["metadata"], before["metadata"]);
    }
    let mut again = review.clone();
    again["request"]["objects"] = response["convertedObjects"].clone();
    let again = convert::review(again.to_string().as_bytes()).expect("a review");
    assert_eq!(
        again["response"]["convertedObjects"],
        response["convertedObjects"]
    );
}
