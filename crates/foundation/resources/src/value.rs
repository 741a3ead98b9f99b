//! Values in the syntax of Go and Kubernetes: durations, quantities, booleans.

mod duration;
mod quantity;

use std::collections::BTreeMap;

pub use duration::{
    ParseDurationError, format_go_duration, format_go_nanos, go_duration, go_nanos, resiliency_duration,
};
pub use quantity::{ParseQuantityError, quantity};

use crate::yaml::{self, Flavour};

/// Whether a metadata or environment value means true: `y`, `yes`, `true`, `t`, `on` or `1`, ignoring case
/// and surrounding space.
pub fn truthy(text: &str) -> bool {
    let text = text.trim();
    ["y", "yes", "true", "t", "on", "1"]
        .iter()
        .any(|yes| yes.eq_ignore_ascii_case(text))
}

/// Parses the boolean spellings of Go.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a map of texts from JSON or YAML; sorted by key.
///
/// # Errors
/// Why it is invalid.
pub fn texts(text: &str) -> Result<Vec<(String, String)>, String> {
    let node = match yaml::from_json(text.as_bytes()) {
        Ok(node) => node,
        Err(_) => match yaml::parse(text, 1).map_err(|error| error.to_string())? {
            Some(node) => node,
            None => return Ok(Vec::new()),
        },
    };
    let map = yaml::decode::<BTreeMap<String, String>>(&node, Flavour::Json);
    Ok(map
        .map_err(|error| error.to_string())?
        .value
        .into_iter()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{texts, truthy};

    #[test]
    fn parses_text_maps() {
        let wanted = vec![
            ("/a".to_owned(), "/b".to_owned()),
            ("/c".to_owned(), "/d".to_owned()),
        ];
        assert_eq!(texts("{\t\"/c\": \"/d\", \"/a\": \"/b\" }").unwrap(), wanted);
        assert_eq!(texts("/a: /b\n/c: '/d'\n").unwrap(), wanted);
        assert_eq!(texts("").unwrap(), []);
        for bad in ["[1]", "text", "{", "a: [1]"] {
            assert!(texts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn truthy_ignores_case_and_space() {
        for yes in ["y", "Yes", " TRUE ", "t", "On", "1"] {
            assert!(truthy(yes), "{yes}");
        }
        for no in ["", "n", "false", "off", "0", "2", "yess"] {
            assert!(!truthy(no), "{no}");
        }
    }
}
