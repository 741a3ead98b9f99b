//! Canonical paths.
//!
//! A method path is canonicalized once, when the call arrives. Access control, routing and the call to the
//! app all use that value, so they cannot disagree about the path.

use std::borrow::Cow;

use crate::quote::Quoted;

/// Why a method path is invalid. Callers prefix the text with `invalid method: ` and respond with gRPC
/// `InvalidArgument`, or HTTP 500 `ERR_DIRECT_INVOKE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// `#`, `?` or NUL: an HTTP app would see another path than the one that was checked.
    #[error("method contains forbidden character: {}", Quoted(.0))]
    Forbidden(String),
    /// A control character (0x01-0x1f, 0x7f) at a byte position.
    #[error(
        "method contains control character at position {position}: {}",
        Quoted(method)
    )]
    Control {
        /// Offset in bytes.
        position: usize,
        /// The method as received.
        method: String,
    },
}

/// The canonical form of a percent-decoded method path.
///
/// Resolves `.` and `..`, collapses repeated slashes, and drops a trailing slash and segments above the
/// root. Keeps a leading slash. Percent signs are literal. The result may be empty. Idempotent.
///
/// ```
/// use outrigger_policy::path::canonical;
///
/// assert_eq!(canonical("orders//new/../1/").unwrap(), "orders/1");
/// assert!(canonical("orders?x=1").is_err());
/// ```
///
/// # Errors
/// [`MethodError`] if the method contains `#`, `?`, NUL or a control character.
pub fn canonical(raw: &str) -> Result<Cow<'_, str>, MethodError> {
    let unsafe_byte = |byte: u8| matches!(byte, b'#' | b'?') || byte.is_ascii_control();
    if raw.bytes().any(unsafe_byte) {
        return Err(refusal(raw));
    }
    Ok(match clean(raw) {
        Cow::Borrowed(cleaned) => Cow::Borrowed(below_root(cleaned)),
        Cow::Owned(cleaned) => {
            let kept = below_root(&cleaned);
            if kept.len() == cleaned.len() {
                Cow::Owned(cleaned)
            } else {
                Cow::Owned(kept.to_owned())
            }
        }
    })
}

#[cold]
fn refusal(raw: &str) -> MethodError {
    let control = raw.bytes().position(|byte| byte != 0 && byte.is_ascii_control());
    match control {
        Some(position) if !raw.contains(['#', '?', '\0']) => MethodError::Control {
            position,
            method: raw.to_owned(),
        },
        _ => MethodError::Forbidden(raw.to_owned()),
    }
}

/// The `:path` of a proxied gRPC call does not unambiguously name one method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "malformed method name {}: call /package.Service/Method, without escapes, parameters, empty or dot segments",
    Quoted(.0)
)]
pub struct GrpcPathError(String);

/// The method of a gRPC call, from its `:path`. The path is not canonicalized, because frames are forwarded
/// unchanged: it must already be `/service/method` in canonical form, in characters that all servers
/// interpret alike.
///
/// # Errors
/// [`GrpcPathError`]; sent as gRPC `InvalidArgument` before any other processing.
pub fn grpc_method(path: &str) -> Result<&str, GrpcPathError> {
    let one_reading =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b'?' | b'#' | b';' | b'\\');
    let is_canonical = || matches!(canonical(path), Ok(Cow::Borrowed(same)) if same == path);
    let mut segments = path.split('/');
    let (root, service, method) = (segments.next(), segments.next(), segments.next());
    let of_two = root == Some("")
        && service.is_some_and(|service| !service.is_empty())
        && method.is_some_and(|method| !method.is_empty())
        && segments.next().is_none();
    if of_two && path.bytes().all(one_reading) && is_canonical() {
        Ok(path)
    } else {
        Err(GrpcPathError(path.to_owned()))
    }
}

/// Drops leading `..` segments of a cleaned relative path.
fn below_root(mut cleaned: &str) -> &str {
    while let Some(rest) = cleaned.strip_prefix("../") {
        cleaned = rest;
    }
    if matches!(cleaned, "." | "..") {
        ""
    } else {
        cleaned
    }
}

/// Why a name (of a reminder or timer) is invalid: it is an identifier that becomes one path segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// `#`, `?`, NUL, `/` or `\`.
    #[error("name contains forbidden character: {}", Quoted(.0))]
    Forbidden(String),
    /// A control character at a byte position.
    #[error("name contains control character at position {position}: {}", Quoted(name))]
    Control {
        /// Offset in bytes.
        position: usize,
        /// The complete name.
        name: String,
    },
    /// `.` or `..`.
    #[error("name is a path traversal sequence: {}", Quoted(.0))]
    Traversal(String),
}

/// Checks that a name is safe as one path segment.
///
/// # Errors
/// [`NameError`] otherwise.
pub fn validate_name(name: &str) -> Result<(), NameError> {
    if name.contains(['#', '?', '\0', '/', '\\']) {
        return Err(NameError::Forbidden(name.to_owned()));
    }
    if let Some(position) = name.bytes().position(|byte| byte.is_ascii_control()) {
        return Err(NameError::Control {
            position,
            name: name.to_owned(),
        });
    }
    if matches!(name, "." | "..") {
        return Err(NameError::Traversal(name.to_owned()));
    }
    Ok(())
}

/// The path for routing: resolves `//`, `.` and `..` in the escaped request path and keeps its
/// percent-encoding, so that an encoded slash stays inside its parameter.
pub fn clean_escaped_path(escaped: &str) -> Cow<'_, str> {
    clean(escaped)
}

/// Lexically resolves a slash-separated path like Go's `path.Clean`: the empty path becomes `.`, `/..`
/// becomes `/`, and a relative path keeps leading `..` segments.
pub fn clean(path: &str) -> Cow<'_, str> {
    if is_clean(path) {
        return Cow::Borrowed(path);
    }
    let rooted = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => match kept.last() {
                Some(&last) if last != ".." => {
                    kept.pop();
                }
                _ if rooted => {}
                _ => kept.push(".."),
            },
            name => kept.push(name),
        }
    }
    let mut out = String::with_capacity(path.len());
    if rooted {
        out.push('/');
    }
    for (index, segment) in kept.iter().enumerate() {
        if index > 0 {
            out.push('/');
        }
        out.push_str(segment);
    }
    if out.is_empty() {
        out.push('.');
    }
    Cow::Owned(out)
}

fn is_clean(path: &str) -> bool {
    if matches!(path, "/" | ".") {
        return true;
    }
    let (rooted, relative) = match path.strip_prefix('/') {
        Some(relative) => (true, relative),
        None => (false, path),
    };
    let mut climbing = !rooted;
    relative.split('/').all(|segment| match segment {
        "" | "." => false,
        ".." => climbing,
        _ => {
            climbing = false;
            true
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cleans_like_go() {
        for (path, expected) in [
            ("", "."),
            (".", "."),
            ("/", "/"),
            ("//", "/"),
            ("abc/", "abc"),
            ("a//b///c", "a/b/c"),
            ("./a", "a"),
            ("a/../b", "b"),
            ("a/..", "."),
            ("..", ".."),
            ("../..", "../.."),
            ("../../abc", "../../abc"),
            ("a/b/../../..", ".."),
            ("/..", "/"),
            ("/../abc", "/abc"),
            ("/abc/def/../ghi/../jkl", "/abc/jkl"),
            ("abc/./../def", "def"),
            ("...", "..."),
        ] {
            assert_eq!(clean(path), expected, "{path}");
        }
    }

    #[test]
    fn routing_keeps_percent_encoding() {
        assert_eq!(
            clean_escaped_path("/v1.0//state/s/a%2Fb%2e%2e"),
            "/v1.0/state/s/a%2Fb%2e%2e"
        );
    }

    #[test]
    fn canonical_methods() {
        for (raw, expected) in [
            ("", ""),
            (".", ""),
            ("..", ""),
            ("../", ""),
            ("/", "/"),
            ("mymethod", "mymethod"),
            ("api/v1/users", "api/v1/users"),
            ("/api/v1/users/", "/api/v1/users"),
            ("admin/../public", "public"),
            ("../../etc/passwd", "etc/passwd"),
            ("a/../../b", "b"),
            ("/../a", "/a"),
            ("a//b", "a/b"),
            ("test%25stream", "test%25stream"),
            ("test\"stream", "test\"stream"),
            ("test*stream", "test*stream"),
            ("test\\stream", "test\\stream"),
            ("/pkg.Service/Method", "/pkg.Service/Method"),
        ] {
            assert_eq!(canonical(raw).unwrap(), expected, "{raw}");
        }
        assert!(matches!(canonical("a/b"), Ok(Cow::Borrowed("a/b"))));
    }

    #[test]
    fn rejects_ambiguous_characters() {
        let message = |raw| canonical(raw).unwrap_err().to_string();
        assert_eq!(
            message("test#stream"),
            r#"method contains forbidden character: "test#stream""#
        );
        assert_eq!(
            message("test?stream"),
            r#"method contains forbidden character: "test?stream""#
        );
        assert_eq!(
            message("a\0b"),
            r#"method contains forbidden character: "a\x00b""#
        );
        assert_eq!(
            message("é\tb"),
            r#"method contains control character at position 2: "é\tb""#
        );
        assert_eq!(message("\t#"), r##"method contains forbidden character: "\t#""##);
        assert_eq!(
            message("a\u{7f}"),
            r#"method contains control character at position 1: "a\x7f""#
        );
    }

    #[test]
    fn grpc_methods_have_one_spelling() {
        for good in [
            "/pkg.Service/Method",
            "/Service/m",
            "/a/b.c",
            "/pkg.Service/Method_2",
            "/a.../b",
        ] {
            assert_eq!(grpc_method(good), Ok(good));
        }
        for bad in [
            "",
            "/",
            "*",
            "//",
            "pkg.Service/Method",
            "/pkg.Service",
            "/pkg.Service/",
            "/pkg.Service/Method/",
            "/pkg.Service//Method",
            "//pkg.Service/Method",
            "/./pkg.Service/Method",
            "/pkg.Public/../pkg.Admin/DropAll",
            "/pkg.Admin/..",
            "/../DropAll",
            "/pkg.Admin/.",
            "/a/pkg.Admin/DropAll",
            "/pkg.Admin/Drop%41ll",
            "/pkg.Admin%2FDropAll",
            "/pkg.Admin/DropAll;x",
            "/pkg.Admin;x/DropAll",
            "/pkg.Admin/DropAll?x=1",
            "/pkg.Admin/DropAll#x",
            "/pkg.Admin\\DropAll",
            "/pkg.Admin/DropAll\0",
            "/pkg.Admin/Drop All",
            "/pkg.Admin/DropAll\t",
            "/pkg.Admin/DröpAll",
        ] {
            let error = grpc_method(bad).unwrap_err().to_string();
            assert!(error.starts_with("malformed method name "), "{bad}: {error}");
        }
    }

    #[test]
    fn names_are_single_segments() {
        for good in ["reminder", "my-reminder-1", "my.reminder", "a%25b"] {
            assert_eq!(validate_name(good), Ok(()), "{good}");
        }
        for bad in ["../x", "a\\b", "a#b", "a?b", "a\0b", "a\rb", ".", ".."] {
            assert!(validate_name(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn canonical_is_idempotent_and_stays_below_root(raw in "[a-z./*%\\\\]{0,24}") {
            let once = canonical(&raw).unwrap().into_owned();
            let twice = canonical(&once).unwrap();
            prop_assert_eq!(&once, &twice);
            prop_assert!(once.split('/').all(|segment| segment != ".." && segment != "."));
            prop_assert!(!once.contains("//"));
            prop_assert!(once == "/" || !once.ends_with('/'));
        }

        #[test]
        fn grpc_method_is_canonical_and_unambiguous(path in "/?[a-cA-C./;%\\\\#? ]{0,16}") {
            if let Ok(method) = grpc_method(&path) {
                prop_assert_eq!(method, &*path);
                prop_assert_eq!(&*canonical(method).unwrap(), method);
                prop_assert_eq!(crate::readings::others(method), Some(vec![]));
                prop_assert_eq!(method.split('/').count(), 3);
            }
        }

        #[test]
        fn fast_check_agrees_with_slow_path(raw in "[a./]{0,12}") {
            // A removed trailing segment forces the slow path without changing the meaning.
            let forced = if raw.is_empty() { "./.".to_owned() } else { format!("{raw}/.") };
            prop_assert_eq!(clean(&raw), clean(&forced));
        }
    }
}
