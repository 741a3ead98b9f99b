//! Alternative interpretations of a path by servers.
//!
//! An app receives a canonical method, but servers interpret it differently: some drop path parameters
//! (`/admin;x` means `/admin`), some treat a backslash as a slash, some decode twice. Access control
//! therefore checks all interpretations, and denies the call if they differ.

use std::borrow::Cow;

use crate::path::clean;

/// Maximum interpretations of one method; a path with more is rejected.
const MAX_READINGS: usize = 16;

/// The other interpretations of a canonical method; empty for nearly all methods. `None` if there are too
/// many.
pub fn others(method: &str) -> Option<Vec<String>> {
    if !method.contains([';', '\\', '%']) {
        return Some(Vec::new());
    }
    let mut all = vec![method.to_owned()];
    let mut next = 0;
    while next < all.len() {
        for read in [without_parameters, with_slashes, decoded] {
            let Some(other) = read(&all[next]) else { continue };
            let other = resolved(&other);
            if all.contains(&other) {
                continue;
            }
            if all.len() == MAX_READINGS {
                return None;
            }
            all.push(other);
        }
        next += 1;
    }
    all.remove(0);
    Some(all)
}

/// Relative, without dot segments, below the root.
fn resolved(path: &str) -> String {
    let rooted = format!("/{path}");
    let cleaned = clean(&rooted);
    cleaned.strip_prefix('/').unwrap_or(&cleaned).to_owned()
}

/// Drops path parameters (RFC 3986 section 3.3) from each segment.
fn without_parameters(path: &str) -> Option<String> {
    path.contains(';').then(|| {
        let plain = path
            .split('/')
            .map(|segment| segment.split_once(';').map_or(segment, |(plain, _)| plain));
        plain.collect::<Vec<_>>().join("/")
    })
}

fn with_slashes(path: &str) -> Option<String> {
    path.contains('\\').then(|| path.replace('\\', "/"))
}

/// Decodes once more, up to the first character that ends a path.
fn decoded(path: &str) -> Option<String> {
    if !path.contains('%') {
        return None;
    }
    let bytes: Cow<'_, [u8]> = percent_encoding::percent_decode_str(path).into();
    let text = String::from_utf8_lossy(&bytes);
    let end = text.find(['?', '#', '\0']).unwrap_or(text.len());
    Some(text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_method_has_one_interpretation() {
        for plain in ["", "admin", "/a/b", "pkg.Service/Method", "a b", "ü", "a+b:c@d"] {
            assert_eq!(others(plain), Some(vec![]), "{plain}");
        }
    }

    #[test]
    fn interprets_parameters_backslashes_and_escapes() {
        for (method, reading) in [
            ("admin;x", "admin"),
            ("/admin;a=1;b=2", "admin"),
            ("admin;x/users;y=1", "admin/users"),
            ("public/..;/admin", "admin"),
            ("public/..;a=b/admin", "admin"),
            (";/admin", "admin"),
            ("public\\..\\admin", "admin"),
            ("%61dmin", "admin"),
            ("public/%2e%2e/admin", "admin"),
            ("admin%3Bx", "admin"),
            ("admin%3Fx", "admin"),
            ("admin%00.html", "admin"),
            ("public%5C..%5Cadmin", "admin"),
            ("%2561dmin", "admin"),
        ] {
            let all = others(method).unwrap();
            assert!(all.iter().any(|other| other == reading), "{method}: {all:?}");
        }
    }

    #[test]
    fn rejects_too_many_interpretations() {
        let many = format!("%{}61dmin", "25".repeat(40));
        assert_eq!(others(&many), None);
    }

    proptest! {
        #[test]
        fn interpretations_are_bounded_and_resolved(method in "[a-c;%0-9/.\\\\]{0,40}") {
            for other in others(&method).unwrap_or_default() {
                prop_assert!(other.split('/').all(|segment| segment != ".." && segment != "."), "{}", other);
                prop_assert!(!other.starts_with('/'));
            }
            prop_assert!(others(&method).is_none_or(|all| all.len() < MAX_READINGS));
        }
    }
}
