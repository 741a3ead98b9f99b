use proptest::prelude::*;

use super::*;

/// `dapr-app-id:auth`
const AUTH: &str = "Basic ZGFwci1hcHAtaWQ6YXV0aA==";

fn parsed<'a>(path: &'a str, header: Option<&'a str>, auth: Option<&str>) -> (String, String, Source) {
    let invocation = Invocation::parse(path, header, auth).unwrap();
    (
        invocation.id.into_owned(),
        invocation.method.into_owned(),
        invocation.source,
    )
}

#[test]
fn prefers_header_then_credentials_then_path() {
    let expect = |id: &str, method: &str, source| (id.to_owned(), method.to_owned(), source);
    assert_eq!(
        parsed("/foo/bar", Some("myapp"), None),
        expect("myapp", "foo/bar", Source::Header)
    );
    assert_eq!(
        parsed("/foo/bar", Some("myapp"), Some(AUTH)),
        expect("myapp", "foo/bar", Source::Header)
    );
    assert_eq!(
        parsed("/foo/bar", Some(""), Some(AUTH)),
        expect("auth", "foo/bar", Source::BasicAuth)
    );
    assert_eq!(
        parsed("///foo//bar", Some("myapp"), None),
        expect("myapp", "foo/bar", Source::Header)
    );
    assert_eq!(
        parsed("/", Some("myapp"), None),
        expect("myapp", "", Source::Header)
    );
    assert_eq!(
        parsed("/v1.0/invoke/myapp/method/foo", None, Some(AUTH)),
        expect("auth", "v1.0/invoke/myapp/method/foo", Source::BasicAuth)
    );
}

#[test]
fn path_forms() {
    for (path, id, method) in [
        ("/v1.0/invoke/myapp/method/foo", "myapp", "foo"),
        ("/v1.0/invoke/myapp.ns/method/foo/bar", "myapp.ns", "foo/bar"),
        ("//v1.0///invoke//myapp/method/foo", "myapp", "foo"),
        ("/v1.0/invoke/myapp/method/", "myapp", ""),
        ("/v1.0/invoke/myapp/method/.", "myapp", ""),
        ("/v1.0/invoke/myapp/method//a//b/", "myapp", "/a/b"),
        ("/v1.0/invoke/myapp/method/a/method/b", "myapp", "a/method/b"),
        ("/v1.0/invoke/myapp/method/a%2Fb%20c", "myapp", "a/b c"),
        ("/v1.0/invoke/myapp/method/admin%2F..%2Fpublic", "myapp", "public"),
        ("/v1.0/invoke/myapp/method/../../x", "myapp", "x"),
        (
            "/v1.0/invoke/http://example.com/method/foo",
            "http://example.com",
            "foo",
        ),
        (
            "/v1.0/invoke/https://example.com:80/p/method/foo",
            "https://example.com:80/p",
            "foo",
        ),
        (
            "/v1.0/invoke/http%3A%2F%2Fexample.com/method/foo",
            "http://example.com",
            "foo",
        ),
        (
            "/v1.0/invoke/https%3A/%2Fexample.com/method/foo",
            "https://example.com",
            "foo",
        ),
        (
            "/v1.0/invoke/https%253A%252F%252Fexample.com/method/foo",
            "https://example.com",
            "foo",
        ),
        ("/v1.0/invoke/my+app/method/foo", "my app", "foo"),
        ("/v1.0/invoke/50%25/method/foo", "50%", "foo"),
    ] {
        assert_eq!(
            parsed(path, None, None),
            (id.to_owned(), method.to_owned(), Source::Path),
            "{path}"
        );
    }
}

#[test]
fn rejects_request_without_target() {
    for path in [
        "/",
        "",
        "/foo/bar",
        "/v1.0/invoke/myapp/method",
        "/v1.0/invoke/myapp",
        "/v1.0/invoke/",
        "/v1.0/invoke",
        "/v1.0/invoke//method/",
        "/v1.0x/invoke/myapp/method/foo",
        "/v1.0/state/myapp/method/foo",
    ] {
        assert_eq!(
            Invocation::parse(path, None, None),
            Err(TargetError::Missing),
            "{path}"
        );
    }
    // `dapr-app-id:`
    let empty = Some("Basic ZGFwci1hcHAtaWQ6");
    assert_eq!(
        Invocation::parse("/v1.0/invoke/a/method/b", None, empty),
        Err(TargetError::Missing)
    );
}

#[test]
fn ignores_other_credentials() {
    for auth in [
        "Bearer x",
        "Basic !!",
        "Basic dXNlcjpwYXNz",
        "basic ZGFwci1hcHAtaWQ6YXV0aA==",
    ] {
        assert_eq!(
            parsed("/v1.0/invoke/a/method/b", None, Some(auth)).0,
            "a",
            "{auth}"
        );
    }
    // `Dapr-App-ID:x`
    assert_eq!(parsed("/b", None, Some("Basic RGFwci1BcHAtSUQ6eA==")).0, "x");
}

#[test]
fn rejects_bad_paths_and_methods() {
    assert!(matches!(
        Invocation::parse("/%zz", Some("a"), None),
        Err(TargetError::Path(_))
    ));
    let refused = Invocation::parse("/v1.0/invoke/a/method/b%23c", None, None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        r#"invalid method: method contains forbidden character: "b#c""#
    );
    assert!(matches!(refused, TargetError::Method { id, .. } if id == "a"));
    assert!(Invocation::parse("/a%0Ab", Some("a"), None).is_err());
}

#[test]
fn accepts_non_utf8_method_only() {
    for (path, app_id) in [
        ("/v1.0/invoke/a/method/x//%ff/../%FE%2F./b", None),
        ("/x/%fe/b", Some("a")),
    ] {
        let invocation = Invocation::parse(path, app_id, None).unwrap();
        assert_eq!((&*invocation.id, &*invocation.method), ("a", "x/\u{fffd}/b"));
        assert_eq!(invocation.octets.as_deref(), Some(&b"x/\xfe/b"[..]));
    }
    let cleaned_away = Invocation::parse("/v1.0/invoke/a/method/%ff/../%C3%BC", None, None).unwrap();
    assert_eq!((&*cleaned_away.method, cleaned_away.octets), ("ü", None));
    assert!(Invocation::parse("/v1.0/invoke/%ff/method/b", None, None).is_err());
    assert!(Invocation::parse("/v1.0/invoke/a/method/%ff%0A", None, None).is_err());
    let umlaut = Invocation::parse("/v1.0/invoke/%C3%BC/method/%ff", None, None).unwrap();
    assert_eq!(umlaut.id, "ü");
}

#[test]
fn target_forms() {
    assert_eq!(
        Target::parse("app"),
        Ok(Target::App {
            id: "app",
            namespace: None
        })
    );
    assert_eq!(
        Target::parse("app.ns"),
        Ok(Target::App {
            id: "app",
            namespace: Some("ns")
        })
    );
    assert_eq!(Target::parse("https://a.b.c"), Ok(Target::Url("https://a.b.c")));
    assert_eq!(Target::parse(""), Err(TargetError::EmptyAppId));
    assert_eq!(
        Target::parse("a.b.c").unwrap_err().to_string(),
        "invalid app id a.b.c"
    );
}

#[test]
fn plain_requests_do_not_allocate() {
    let invocation = Invocation::parse("/v1.0/invoke/myapp/method/foo/bar", None, None).unwrap();
    assert!(matches!(invocation.id, Cow::Borrowed("myapp")));
    assert!(matches!(invocation.method, Cow::Borrowed("foo/bar")));
}

proptest! {
    #[test]
    fn any_request_parses_or_errors(path in ".{0,40}", id in proptest::option::of(".{0,8}")) {
        if let Ok(invocation) = Invocation::parse(&path, id.as_deref(), None) {
            let again = canonical(&invocation.method).unwrap();
            prop_assert_eq!(&again, &invocation.method);
            prop_assert!(!invocation.id.is_empty());
        }
    }

    #[test]
    fn escaping_keeps_method(method in "[a-z./]{1,16}", escape in any::<u64>()) {
        let escaped: String = method
            .bytes()
            .enumerate()
            .map(|(i, b)| if escape >> i & 1 == 1 { format!("%{b:02X}") } else { char::from(b).to_string() })
            .collect();
        let plain = format!("/v1.0/invoke/app/method/{method}");
        let escaped = format!("/v1.0/invoke/app/method/{escaped}");
        prop_assert_eq!(parsed(&plain, None, None), parsed(&escaped, None, None));
    }
}
