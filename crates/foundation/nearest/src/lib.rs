//! Suggestions for misspelled names in error texts.
//!
//! ```
//! use outrigger_nearest::{hint, nearest};
//!
//! assert_eq!(nearest("app-prot", ["app-port", "app-protocol"]), Some("app-protocol"));
//! assert_eq!(nearest("redisHots", ["redisHost", "redisDB"]), Some("redisHost"));
//! assert_eq!(hint("inof", ["info", "warn"]), "did you mean info? ");
//! assert_eq!(hint("loud", ["info", "warn"]), "");
//! ```

/// Maximum edit distance.
const EDIT_DISTANCE: usize = 3;

/// The shortest name that starts with `wrong`, otherwise the name with the smallest edit distance, up to
/// three and half of the length of `wrong`. Ignores case.
pub fn nearest<'a>(wrong: &str, right: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    let letters = wrong.chars().count();
    let ranked = right.into_iter().filter_map(|name| {
        let lower = name.to_lowercase();
        if letters > 1 && lower.starts_with(&wrong) {
            return Some((0, lower.len(), name));
        }
        // The edit distance is at least the difference in length: skips the computation if that is too
        // large.
        if letters.abs_diff(lower.chars().count()) > EDIT_DISTANCE {
            return None;
        }
        let differ = distance(&wrong, &lower);
        (differ <= EDIT_DISTANCE && differ * 2 <= letters).then_some((1, differ, name))
    });
    ranked.min().map(|(_, _, name)| name)
}

/// `did you mean NAME? ` to put before a remedy; empty if no name is similar.
pub fn hint<'a>(wrong: &str, right: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, right)
        .map(|name| format!("did you mean {name}? "))
        .unwrap_or_default()
}

/// Edit distance: letters changed, inserted, deleted, or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let changed = row[j] + usize::from(x != *y);
            let mut least = changed.min(row[j + 1] + 1).min(next[j] + 1);
            if j > 0 && last == Some(*y) && b[j - 1] == x {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(x);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        for (a, b, letters) in [
            ("app-id", "app-id", 0),
            ("app-id", "ap-id", 1),
            ("app-id", "app-idx", 1),
            ("port", "sort", 1),
            ("port", "prot", 1),
            ("inof", "info", 1),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), letters, "{a} {b}");
        }
    }

    #[test]
    fn prefers_prefix_matches() {
        let flags = ["app-id", "app-port", "app-protocol", "config"];
        for (wrong, right) in [
            ("app-prot", Some("app-protocol")),
            ("app-p", Some("app-port")),
            ("app-porr", Some("app-port")),
            ("APP-ID", Some("app-id")),
            ("conf", Some("config")),
            ("c", None),
            ("x", None),
            ("", None),
            ("placement", None),
        ] {
            assert_eq!(nearest(wrong, flags), right, "{wrong}");
        }
    }
}
