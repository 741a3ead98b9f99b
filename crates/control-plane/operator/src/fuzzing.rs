//! Entry points of fuzzers.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::convert;

/// Converts a body that the API server could post. Nothing panics. Converted objects are complete, have the
/// requested version and their metadata, and do not change when converted again.
///
/// # Panics
/// If one of these properties does not hold.
pub fn conversion(body: &[u8]) {
    let Ok(answer) = convert::review(body) else { return };
    serde_json::from_slice::<&RawValue>(&answer).expect("JSON");
    // Undecoded parts may exceed a decoder's limits: nested too deeply, or numbers too large.
    let (Ok(review), Ok(answer)) = (
        serde_json::from_slice::<Value>(body),
        serde_json::from_slice::<Value>(&answer),
    ) else {
        return;
    };
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
    let again: Value = serde_json::from_slice(&again).expect("it is nested as it was");
    assert_eq!(
        again["response"]["convertedObjects"],
        response["convertedObjects"]
    );
}
