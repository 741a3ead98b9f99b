//! Small values as Go and Kubernetes write them: durations, quantities, truth.

mod duration;
mod quantity;

pub use duration::{
    ParseDurationError, format_go_duration, format_go_nanos, go_duration, go_nanos, resiliency_duration,
};
pub use quantity::{ParseQuantityError, quantity};

/// Whether a metadata or environment value means "yes": after trimming and without regard to case
/// one of `y`, `yes`, `true`, `t`, `on`, `1`.
pub fn truthy(text: &str) -> bool {
    let text = text.trim();
    ["y", "yes", "true", "t", "on", "1"]
        .iter()
        .any(|yes| yes.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::truthy;

    #[test]
    fn truth_ignores_case_and_surrounding_space() {
        for yes in ["y", "Yes", " TRUE ", "t", "On", "1"] {
            assert!(truthy(yes), "{yes}");
        }
        for no in ["", "n", "false", "off", "0", "2", "yess"] {
            assert!(!truthy(no), "{no}");
        }
    }
}
