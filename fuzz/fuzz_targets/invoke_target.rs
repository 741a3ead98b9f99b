//! The target of a service invocation: any request is parsed or rejected, and the parsed method is
//! canonical.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outrigger_policy::path::canonical;
use outrigger_policy::target::{Invocation, Source, Target};

fuzz_target!(|request: (&str, Option<&str>, Option<&str>)| {
    let (path, app_id, authorization) = request;
    let Ok(invocation) = Invocation::parse(path, app_id, authorization) else {
        return;
    };
    assert!(!invocation.id.is_empty());
    assert_eq!(canonical(&invocation.method).as_deref(), Ok(&*invocation.method));
    match app_id.filter(|id| !id.is_empty()) {
        Some(id) => assert!(invocation.source == Source::Header && invocation.id == id),
        None => assert!(invocation.source != Source::Header),
    }
    if invocation.source != Source::Path {
        assert!(!invocation.method.starts_with('/'));
    }
    match Target::parse(&invocation.id) {
        Ok(Target::App {
            id,
            namespace: Some(namespace),
        }) => {
            assert_eq!(format!("{id}.{namespace}"), invocation.id);
            assert!(!namespace.contains('.'));
        }
        Ok(Target::App { id, namespace: None }) => assert_eq!(id, invocation.id),
        Ok(Target::Url(url)) => assert!(url.starts_with("http")),
        Err(_) => assert!(invocation.id.matches('.').count() > 1),
    }
});
