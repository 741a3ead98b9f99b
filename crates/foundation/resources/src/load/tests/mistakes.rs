//! Invalid documents.

use super::*;

#[test]
fn ignores_other_kinds() {
    let other = store("x").replace("kind: Component", "kind: Deployment");
    let loaded = Folder::with(&[("a.yaml", &other)]).load();
    assert_eq!(loaded, Loaded::default());
}

#[test]
fn lists_empty_files() {
    let texts = ["", "# nothing\n", "apiVersion: dapr.io/v1alpha1\n", &store("s")];
    let files: Vec<_> = ["a.yaml", "b.yaml", "c.yaml", "d.yaml"]
        .into_iter()
        .zip(texts)
        .collect();
    let empty = Folder::with(&files).load().empty;
    let empty: Vec<_> = empty.iter().map(|file| file.file_name().unwrap()).collect();
    assert_eq!(empty, ["a.yaml", "b.yaml", "c.yaml"]);
}

#[test]
fn skips_broken_document() {
    let text = format!("{}---\na: [\n---\n{}", store("one"), store("two"));
    let loaded = Folder::with(&[("a.yaml", &text)]).load();
    assert_eq!(names(&loaded.components), ["one", "two"]);
    assert!(loaded.broken[0].ends_with("a.yaml"), "{:?}", loaded.broken);
    let warning = &loaded.warnings[0];
    assert!(
        warning.what.starts_with("not YAML") && warning.line >= 6,
        "{warning}"
    );

    let wrong = store("s").replace("type: state.redis", "type: [state.redis]");
    let loaded = Folder::with(&[("a.yaml", &wrong)]).load();
    assert!(loaded.components.is_empty());
    assert_eq!(loaded.broken.len(), 1);
    assert_eq!(
        loaded.warnings[0].what,
        "spec.type: expected a text, found a list"
    );
    assert_eq!(loaded.warnings[0].line, 4);
}

#[test]
fn unknown_keys_have_lines() {
    let text = store("s") + "scope: [app]\n";
    let loaded = Folder::with(&[("a.yaml", &text)]).load();
    assert_eq!(loaded.components.len(), 1);
    assert!(loaded.broken.is_empty(), "an odd key is no reason");
    assert_eq!(
        (loaded.warnings[0].line, loaded.warnings[0].what.as_str()),
        (5, "unknown key \"scope\", did you mean \"scopes\"?")
    );
}

#[test]
fn rejects_names_invalid_in_paths() {
    for bad in [".", "..", "a/b", "'a%b'"] {
        let loaded = Folder::with(&[("a.yaml", &store(bad))]).load();
        assert!(loaded.components.is_empty(), "{bad}");
        assert!(
            loaded.warnings[0].what.starts_with("invalid name"),
            "{}",
            loaded.warnings[0]
        );
    }
}

#[test]
fn loads_component_without_name() {
    let text =
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  {}\nspec:\n  type: state.in-memory\n";
    let loaded = super::text(text, "app").unwrap();
    assert_eq!(loaded.components.len(), 1);
    let said: Vec<_> = loaded
        .warnings
        .iter()
        .map(|p| (p.line, p.what.as_str()))
        .collect();
    assert_eq!(
        said,
        [(4, "metadata.name is missing: no call can name this Component")]
    );
}

#[test]
fn reports_misspelled_kind() {
    let text = "apiVersion: dapr.io/v1alpha1\nkind: Componet\nmetadata:\n  name: s\n";
    let loaded = super::text(text, "app").unwrap();
    let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1);
    assert!(
        said[0].contains("\"Componet\"") && said[0].contains("did you mean Component?"),
        "{said:?}"
    );
    for other in [
        "apiVersion: v1\nkind: Componet\n",
        "apiVersion: dapr.io/v1alpha1\nkind: Pipeline\n",
    ] {
        assert!(super::text(other, "app").unwrap().warnings.is_empty(), "{other}");
    }
}

#[test]
fn reports_configuration_among_resources() {
    let text = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: c}\n";
    let loaded = super::text(text, "app").unwrap();
    let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        said.len() == 1 && said[0].contains("Configuration c applies only"),
        "{said:?}"
    );
}

#[test]
fn reports_missing_kind() {
    let kinds = "the kinds that are read are Component, HTTPEndpoint, MCPServer, Resiliency, Subscription, \
                 WorkflowAccessPolicy";
    let nothing = "the document is not loaded";
    for (text, line, what, near) in [
        (
            "\napiVersion: dapr.io/v1alpha1\nmetadata: {name: s}\n",
            2,
            "kind is missing",
            "",
        ),
        ("apiVersion: v1\nkind:\n", 1, "kind is missing", ""),
        ("kind: [Component]\n", 1, "kind is a list", ""),
        (
            "apiVersion: v1\nknd: Component\n",
            1,
            "kind is missing",
            "is knd meant to be kind? ",
        ),
        ("- kind: Component\n", 1, "this is a list and no resource", ""),
        ("Component\n", 1, "this is a single value and no resource", ""),
    ] {
        let loaded = super::text(text, "app").unwrap();
        let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [format!(":{line}: {what}: {nothing} ({near}{kinds})")],
            "{text}"
        );
        assert!(loaded.broken.is_empty(), "{text}");
    }
    for empty in ["", "# nothing\n", "---\n", "null\n", "---\n# one\n---\n~\n"] {
        let mut loaded = super::text(empty, "app").unwrap();
        assert_eq!(std::mem::take(&mut loaded.empty).len(), 1);
        assert_eq!(loaded, Loaded::default(), "{empty:?}");
    }
}

#[test]
fn unreadable_policy_grants_nothing() {
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {name: p}\n";
    let utf_16: String = policy.chars().flat_map(|letter| [letter, '\0']).collect();
    for text in [policy.replace("kind:", "knd:"), format!("\t{policy}"), utf_16] {
        let policies = Folder::with(&[("a.yaml", &text)]).load().workflow_access_policies;
        assert_eq!(policies.len(), 1, "{text:?}");
    }
}

#[test]
fn reports_misspelled_kind_without_version() {
    let loaded = super::text("kind: component\nmetadata: {name: s}\n", "app").unwrap();
    let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("did you mean Component?"), "{said:?}");
}

#[test]
fn reports_unknown_version() {
    for (version, kind, remedy) in [
        ("apiVersion: dapr.io/v1alpha\n", "Component", "dapr.io/v1alpha1"),
        ("apiVersion: v1\n", "HTTPEndpoint", "dapr.io/v1alpha1"),
        ("", "Component", "dapr.io/v1alpha1"),
        (
            "apiVersion: dapr.io/v3alpha1\n",
            "Subscription",
            "dapr.io/v1alpha1 or dapr.io/v2alpha1",
        ),
    ] {
        let text = format!("{version}kind: {kind}\nmetadata:\n  name: s\n");
        let loaded = super::text(&text, "app").unwrap();
        let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{text}: {said:?}");
        let nothing = Loaded {
            warnings: loaded.warnings.clone(),
            ..Loaded::default()
        };
        assert_eq!(loaded, nothing, "{text}");
        assert!(
            said[0].contains("apiVersion") && said[0].contains(kind) && said[0].contains(remedy),
            "{said:?}"
        );
    }
}

#[test]
fn duplicates_are_startup_errors() {
    let folder = Folder::with(&[("a.yaml", &store("s")), ("b.yaml", &store("s"))]);
    let problems = folder.load_for("app", None).unwrap_err();
    assert_eq!(problems.len(), 1);
    let what = "duplicate definition of Component name s (state.redis/v1) with existing s (state.redis/v1)";
    assert_eq!(crate::problem::summary(&problems), what);
    assert!(
        problems[0].file.ends_with("b.yaml") && problems[0].remedy.contains("a.yaml:1"),
        "{}",
        problems[0]
    );
}
