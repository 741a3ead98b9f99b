//! Canonical request paths for middleware, so that rules about a path apply to all its spellings.

use std::borrow::Cow;

use crate::escape::{parameter_escape, path_escape, query_unescape};
use crate::path::{canonical, clean};
use crate::target::{Invocation, Source};

/// The canonical path of a request to a route with parameters: resolves repeated slashes and dot segments,
/// and escapes each segment minimally.
pub fn of_route(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for (index, segment) in clean(path).split('/').enumerate() {
        if index > 0 {
            out.push('/');
        }
        match query_unescape(segment) {
            // An escaped parameter of dots must not become a dot segment.
            Ok(dots) if matches!(&*dots, "." | "..") => out.push_str(&"%2E".repeat(dots.len())),
            Ok(decoded) => out.extend(parameter_escape(&decoded)),
            Err(_) => out.push_str(segment),
        }
    }
    out
}

/// The canonical path of an actor call: like [`of_route`], with the method as the app receives it as the
/// last parameter, except for a leading slash.
pub fn of_actor_call(path: &str) -> String {
    let spelled = of_route(path);
    let Some((names, method)) = spelled.rsplit_once('/') else {
        return spelled;
    };
    let decoded = query_unescape(method).ok();
    match decoded.and_then(|decoded| canonical(&decoded).ok().map(Cow::into_owned)) {
        Some(method) => {
            let method = method.strip_prefix('/').unwrap_or(&method);
            format!("{names}/{}", parameter_escape(method))
        }
        // An invalid method is kept; it will be rejected.
        None => spelled,
    }
}

/// The canonical path of an invocation, or of any other request: it names the same target and method,
/// except for leading slashes of the method. A path without a target is only cleaned.
///
/// `app_id` and `authorization` are the values of those headers.
pub fn of_invocation(path: &str, app_id: Option<&str>, authorization: Option<&str>) -> String {
    let cleaned = clean(path);
    // A URL as target has two slashes, which cleaning would merge.
    let spellings = [path, &*cleaned];
    let mut read = spellings
        .iter()
        .map(|spelling| Invocation::parse(spelling, app_id, authorization));
    match read.find_map(Result::ok) {
        Some(invocation) => spelled(&invocation),
        None => of_route(path),
    }
}

fn spelled(invocation: &Invocation<'_>) -> String {
    let method = match &invocation.octets {
        Some(octets) => octets,
        None => invocation.method.as_bytes(),
    };
    let method = path_escape(method.strip_prefix(b"/").unwrap_or(method));
    match invocation.source {
        Source::Header | Source::BasicAuth => format!("/{method}"),
        Source::Path => {
            let id = target(&invocation.id);
            format!("/v1.0/invoke/{}/method/{method}", path_escape(id.as_bytes()))
        }
    }
}

/// A target ID in the form for a decoded path, where it is decoded again.
fn target(id: &str) -> Cow<'_, str> {
    if id.contains(['%', '+']) || id.contains("/method") || id.starts_with('/') {
        parameter_escape(id).into()
    } else {
        Cow::Borrowed(id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn routes_have_one_spelling() {
        for (path, expected) in [
            ("/v1.0/metadata", "/v1.0/metadata"),
            ("//v1.0/metadata", "/v1.0/metadata"),
            ("/v1.0/healthz/../metadata", "/v1.0/metadata"),
            ("/v1.0/metadata/", "/v1.0/metadata"),
            ("/v1.0/secrets/s/%61dmin", "/v1.0/secrets/s/admin"),
            (
                "/v1.0/state/s/a%2fb+c%20d%C3%BC",
                "/v1.0/state/s/a%2Fb%20c%20d%C3%BC",
            ),
            ("/v1.0/state/s/%2e%2E", "/v1.0/state/s/%2E%2E"),
            ("/v1.0/state/s/%zz", "/v1.0/state/s/%zz"),
        ] {
            assert_eq!(of_route(path), expected, "{path}");
        }
    }

    #[test]
    fn calls_of_actors_have_one_spelling() {
        for (path, expected) in [
            ("/v1.0/actors/T/1/method/m", "m"),
            ("/v1.0//actors/T/2/../1/method/%6d", "m"),
            ("/v1.0/actors/T/1/method/public%2F..%2Fadmin", "admin"),
            ("/v1.0/actors/T/1/method/x%2f%2e%2e%2fm", "m"),
            ("/v1.0/actors/T/1/method/%2Fm%2F", "m"),
            ("/v1.0/actors/T/1/method/a%2F%2Fb", "a%2Fb"),
            ("/v1.0/actors/T/1/method/%2E%2E", ""),
            ("/v1.0/actors/T/1/method/a%3Fb", "a%3Fb"),
            ("/v1.0/actors/T/1/method/%zz", "%zz"),
        ] {
            let expected = format!("/v1.0/actors/T/1/method/{expected}");
            assert_eq!(of_actor_call(path), expected, "{path}");
        }
    }

    #[test]
    fn invocations_have_one_spelling() {
        for (path, expected) in [
            ("/v1.0/invoke/a/method/b", "/v1.0/invoke/a/method/b"),
            ("//v1.0//invoke//a/method//b//c/", "/v1.0/invoke/a/method/b/c"),
            (
                "/v1.0/invoke/a/method/x/../%61dmin",
                "/v1.0/invoke/a/method/admin",
            ),
            (
                "/v1.0/invoke/a/method/x%2F..%2Fadmin",
                "/v1.0/invoke/a/method/admin",
            ),
            ("/v1.0/invoke/a/method/../../admin", "/v1.0/invoke/a/method/admin"),
            ("/v1.0/invoke/a/method/", "/v1.0/invoke/a/method/"),
            ("/v1.0/invoke/a/method/%ff%20", "/v1.0/invoke/a/method/%FF%20"),
            ("/v1.0/x/../invoke/a/method/b", "/v1.0/invoke/a/method/b"),
            ("/v1.0/invoke/%61/method/b", "/v1.0/invoke/a/method/b"),
            (
                "/v1.0/invoke/https%3A%2F%2Fh:1%2Fp/method/../b",
                "/v1.0/invoke/https://h:1/p/method/b",
            ),
            ("/v1.0//metadata/../other", "/v1.0/other"),
        ] {
            assert_eq!(of_invocation(path, None, None), expected, "{path}");
        }
        assert_eq!(of_invocation("/x/..//%61%2Fb", Some("a"), None), "/a/b");
    }

    proptest! {
        #[test]
        fn canonical_invocation_is_unique(
            path in "(/{1,2}v1.0/{1,2}invoke/)?[a-c%+/.:25Ff]{0,12}(/method/)?[a-c%+/.;25Ff]{0,12}",
            app_id in proptest::option::of("[a-c]{0,2}"),
        ) {
            let app_id = app_id.as_deref();
            let spelling = of_invocation(&path, app_id, None);
            prop_assert_eq!(&of_invocation(&spelling, app_id, None), &spelling);
            if let Ok(meant) = Invocation::parse(&path, app_id, None) {
                let read = Invocation::parse(&spelling, app_id, None).unwrap();
                prop_assert_eq!(&read.id, &meant.id);
                prop_assert_eq!(read.source, meant.source);
                prop_assert_eq!(&*read.method, meant.method.strip_prefix('/').unwrap_or(&meant.method));
                let rooted = |octets: Vec<u8>| octets.strip_prefix(b"/").map_or_else(|| octets.clone(), <[u8]>::to_vec);
                prop_assert_eq!(read.octets, meant.octets.map(rooted));
            }
        }

        #[test]
        fn canonical_route_is_unique(path in "/[a-c%+/.25Ff ]{0,16}") {
            let spelling = of_route(&path);
            prop_assert_eq!(&of_route(&spelling), &spelling);
            prop_assert!(!spelling.contains("//") && !spelling.contains("/../"));
        }
    }
}
