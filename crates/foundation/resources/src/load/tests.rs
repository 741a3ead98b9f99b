//! Directories and files.

mod kinds;
mod mistakes;

use super::*;
use crate::Component;

const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: NAME}\nspec: {type: state.redis, version: v1}\n";

fn store(name: &str) -> String {
    STORE.replace("NAME", name)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Folder(dir)
    }

    fn load(&self) -> Loaded {
        self.load_for("app", None).unwrap()
    }

    fn load_for(&self, app_id: &str, namespace: Option<&str>) -> Result<Loaded, Vec<Problem>> {
        let paths = [self.0.path().to_owned()];
        folders(&Request {
            paths: &paths,
            kinds: Kind::ALL,
            namespace,
            app_id,
        })
    }
}

fn all_in(path: &PathBuf) -> Request<'_> {
    Request {
        paths: std::slice::from_ref(path),
        kinds: Kind::ALL,
        namespace: None,
        app_id: "app",
    }
}

fn names(components: &[Component]) -> Vec<&str> {
    components.iter().map(|c| c.name.as_str()).collect()
}

#[test]
fn loads_yaml_files_in_order() {
    let folder = Folder::with(&[
        ("b.YML", &store("third")),
        ("a.yaml", &format!("{}---\n{}", store("first"), store("second"))),
        ("notes.txt", "hello"),
    ]);
    fs::create_dir(folder.0.path().join("deeper.yaml")).unwrap();
    let loaded = folder.load();
    assert_eq!(names(&loaded.components), ["first", "second", "third"]);
    assert_eq!(loaded.components[1].source.line, 6);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(
        loaded.warnings[0]
            .to_string()
            .contains("notes.txt: a non-YAML file"),
        "{}",
        loaded.warnings[0]
    );
}

#[test]
fn missing_folder_is_startup_error() {
    let paths = [PathBuf::from("/no/such/folder")];
    let load = |kinds: &[Kind]| {
        folders(&Request {
            paths: &paths,
            kinds,
            namespace: None,
            app_id: "app",
        })
    };
    let problems = load(Kind::ALL).unwrap_err();
    assert!(
        problems[0].to_string().contains("--resources-path"),
        "{}",
        problems[0]
    );
    assert!(load(&[Kind::Resiliency]).is_ok());
}

#[test]
fn suggests_similar_folder() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("resources")).unwrap();
    let wrong = parent.path().join("resuorces");
    let request = all_in(&wrong);
    let problems = folders(&request).unwrap_err();
    let summary = crate::problem::summary(&problems);
    assert!(
        summary.contains(&format!("cannot read resources folder {}", wrong.display())),
        "{summary}"
    );
    let right = format!("did you mean {}?", parent.path().join("resources").display());
    assert!(problems[0].to_string().contains(&right), "{}", problems[0]);
}

#[test]
fn reports_file_given_as_folder() {
    let folder = Folder::with(&[("a.yaml", &store("one"))]);
    let file = folder.0.path().join("a.yaml");
    let request = all_in(&file);
    let remedy = folders(&request).unwrap_err().remove(0).remedy;
    assert!(remedy.starts_with("it is a file"), "{remedy}");
}

#[cfg(unix)]
#[test]
fn reports_dangling_link() {
    let parent = tempfile::tempdir().unwrap();
    let (dangling, looping) = (parent.path().join("resources"), parent.path().join("loop"));
    std::os::unix::fs::symlink(parent.path().join("gone"), &dangling).unwrap();
    std::os::unix::fs::symlink(&looping, &looping).unwrap();
    for path in [dangling, looping] {
        let request = all_in(&path);
        let folder = folders(&request).unwrap_err().remove(0).remedy;
        let file = read(&path).unwrap_err().remedy;
        for remedy in [folder, file] {
            let said = format!(
                "it is a link to {}, which does not exist",
                path.read_link().unwrap().display()
            );
            assert!(remedy.starts_with(&said), "{remedy}");
        }
    }
}

#[test]
fn filters_by_namespace_if_both_set() {
    let there = store("s").replace("name: s", "name: s, namespace: there");
    let here = store("s").replace("name: s", "name: s, namespace: here");
    let folder = Folder::with(&[("a.yaml", &there), ("b.yaml", &here), ("c.yaml", &store("any"))]);
    let loaded = folder.load_for("app", Some("here")).unwrap();
    assert_eq!(names(&loaded.components), ["s", "any"]);
    assert_eq!(loaded.components[0].namespace, "here");
    assert!(
        folder.load_for("app", None).is_err(),
        "without namespace both of the name load"
    );
}

#[test]
fn filters_by_scope() {
    let folder = Folder::with(&[
        ("a.yaml", &(store("a") + "scopes: [other]\n")),
        ("b.yaml", &(store("b") + "scopes: []\n")),
    ]);
    assert_eq!(names(&folder.load().components), ["b"]);
    assert_eq!(
        names(&folder.load_for("other", None).unwrap().components),
        ["a", "b"]
    );
}

#[test]
fn loads_requested_kinds_only() {
    let folder = Folder::with(&[("a.yaml", &store("s"))]);
    let paths = [folder.0.path().to_owned()];
    let kinds = &[Kind::HttpEndpoint, Kind::Subscription, Kind::Resiliency];
    let loaded = folders(&Request {
        paths: &paths,
        kinds,
        namespace: None,
        app_id: "app",
    })
    .unwrap();
    assert_eq!(loaded, Loaded::default());
}

#[test]
fn text_loads_like_file() {
    let loaded = text(&format!("{}---\n{}", store("a"), store("b")), "app").unwrap();
    assert_eq!(names(&loaded.components), ["a", "b"]);
    assert!(text(&format!("{}---\n{}", store("a"), store("a")), "app").is_err());
}
