//! `middleware.http.routeralias`: aliases for paths.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use http::Request;
use http::uri::PathAndQuery;
use outrigger_component::middleware::{Body, Next, Outcome};
use outrigger_component::{Catalog, Entry, Error, Metadata, Middleware, catalog::Version};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use regex::Regex;

use super::{with_target, wrong};

const LOG: &str = "dapr.contrib";
/// Characters escaped in a path.
const PATH_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'%');

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .middleware
        .add(Entry::new(&["routeralias"], Version::Only, |setup| async move {
            let routes = routes(&setup.metadata)?;
            Ok(Arc::new(RouterAlias::new(routes)?) as Arc<dyn Middleware>)
        }));
}

/// Patterns and aliases from `routes` as JSON or YAML, or from one property each (deprecated).
fn routes(metadata: &Metadata) -> Result<Vec<(String, String)>, Error> {
    let all: Vec<_> = metadata.iter().collect();
    let given = metadata.text(&["routes"]).unwrap_or_default();
    if all.is_empty() {
        return Ok(Vec::new());
    }
    if all.len() > 1 || given.is_empty() {
        tracing::warn!(
            target: LOG,
            "{}: routes as properties of their own are deprecated; write them into the property routes",
            metadata.component()
        );
        if let Some((name, _)) = all
            .iter()
            .find(|(name, value)| name.is_empty() || value.is_empty())
        {
            return Err(wrong(format!(
                "invalid key/value pair in metadata: must not be empty: {name:?}"
            )));
        }
        let owned = all
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        return Ok(owned.collect());
    }
    outrigger_resources::value::texts(given).map_err(|error| {
        wrong(format!(
            "failed to decode 'routes' property as JSON or YAML: {error}; write a map of paths to paths"
        ))
    })
}

struct RouterAlias {
    /// Routes without variables.
    exact: HashMap<String, PathAndQuery>,
    patterns: Vec<Pattern>,
}

struct Pattern {
    path: Regex,
    /// Variable of each group.
    names: Vec<String>,
    alias: PathAndQuery,
}

impl RouterAlias {
    fn new(mut routes: Vec<(String, String)>) -> Result<Self, Error> {
        routes.sort_unstable();
        let (mut exact, mut patterns) = (HashMap::new(), Vec::new());
        for (path, alias) in routes {
            let alias = utf8_percent_encode(&alias, PATH_ESCAPES).to_string();
            let slash = if alias.starts_with('/') { "" } else { "/" };
            let alias: PathAndQuery = format!("{slash}{alias}").parse().map_err(|error| {
                wrong(format!(
                    "routes: the alias {alias:?} of {path:?} cannot be a path: {error}"
                ))
            })?;
            if path.contains('{') {
                patterns.push(Pattern::new(&path, alias)?);
            } else {
                exact.insert(path, alias);
            }
        }
        Ok(Self { exact, patterns })
    }

    /// The alias of a path, and the query from its variables.
    fn find(&self, path: &str) -> Option<(&PathAndQuery, String)> {
        if let Some(alias) = self.exact.get(path) {
            return Some((alias, String::new()));
        }
        self.patterns.iter().find_map(|pattern| {
            let found = pattern.path.captures(path)?;
            let mut query = url::form_urlencoded::Serializer::new(String::new());
            for (index, name) in pattern.names.iter().enumerate() {
                let value = found.name(&group(index)).map_or("", |value| value.as_str());
                query.append_pair(name, value);
            }
            Some((&pattern.alias, query.finish()))
        })
    }
}

/// Generated group name, because a variable's name may be invalid in a regular expression.
fn group(index: usize) -> String {
    format!("v{index}")
}

impl Pattern {
    /// `{name}` matches one segment, `{name:expression}` a regular expression.
    fn new(path: &str, alias: PathAndQuery) -> Result<Self, Error> {
        let (mut expression, mut names) = ("^".to_owned(), Vec::new());
        let mut left = path;
        while let Some(start) = left.find('{') {
            let end = closing(&left[start..]);
            let end =
                end.ok_or_else(|| wrong(format!("routes: the path {path:?} has a brace without its pair")))?;
            let variable = &left[start + 1..start + end];
            let (name, rule) = variable.split_once(':').unwrap_or((variable, "[^/]+"));
            if name.is_empty() || rule.is_empty() {
                return Err(wrong(format!(
                    "routes: the path {path:?} has a variable without name or rule"
                )));
            }
            expression.push_str(&regex::escape(&left[..start]));
            expression.push_str(&format!("(?P<{}>{rule})", group(names.len())));
            names.push(name.to_owned());
            left = &left[start + end + 1..];
        }
        expression.push_str(&regex::escape(left));
        expression.push('$');
        let path = Regex::new(&expression).map_err(|error| {
            wrong(format!(
                "routes: the path {path:?} has a rule that cannot be read: {error}"
            ))
        })?;
        Ok(Self { path, names, alias })
    }
}

/// Index of the brace that closes the one `text` begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

#[async_trait]
impl Middleware for RouterAlias {
    async fn handle(&self, mut request: Request<Body>, next: Next<'_>) -> Outcome {
        let uri = request.uri();
        let path = percent_decode_str(uri.path()).decode_utf8_lossy();
        if let Some((alias, variables)) = self.find(&path) {
            let own = uri.query().unwrap_or_default();
            let between = if own.is_empty() || variables.is_empty() {
                ""
            } else {
                "&"
            };
            let query = format!("{own}{between}{variables}");
            let target = if query.is_empty() {
                Ok(alias.clone())
            } else {
                format!("{}?{query}", alias.path()).parse::<PathAndQuery>()
            };
            // Both parts were valid; a target that is too long stays unchanged.
            if let Ok(target) = target
                && let Ok(uri) = with_target(uri, target)
            {
                *request.uri_mut() = uri;
            }
        }
        next.run(request).await
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use outrigger_component::middleware::full;

    use super::*;

    async fn leads_to(alias: &RouterAlias, target: &str) -> String {
        let end = |request: Request<Body>| -> futures::future::BoxFuture<'_, Outcome> {
            Box::pin(async move {
                let mut response = Response::new(full(""));
                response
                    .headers_mut()
                    .insert("uri", request.uri().to_string().parse().unwrap());
                Ok(response)
            })
        };
        let mut request = Request::new(full(""));
        *request.uri_mut() = target.parse().unwrap();
        let response = alias.handle(request, Next::new(&[], end)).await.unwrap();
        response.headers()["uri"].to_str().unwrap().to_owned()
    }

    fn alias(routes: &[(&str, &str)]) -> Result<RouterAlias, Error> {
        let routes = routes
            .iter()
            .map(|(path, alias)| ((*path).to_owned(), (*alias).to_owned()));
        RouterAlias::new(routes.collect())
    }

    #[tokio::test]
    async fn rewrites_path_and_adds_variables() {
        let alias = alias(&[
            ("/hello", "/v1.0/invoke/app/method/hello"),
            ("/users/{id}/{part-of:[a-z]+}", "/u"),
            ("/a b", "/v1.0/a b"),
            ("/bare", "x"),
        ])
        .unwrap();
        for (given, wanted) in [
            ("/hello", "/v1.0/invoke/app/method/hello"),
            ("/hello?x=1", "/v1.0/invoke/app/method/hello?x=1"),
            ("http://host/hello", "http://host/v1.0/invoke/app/method/hello"),
            ("/hello/", "/hello/"),
            ("/users/7/name", "/u?id=7&part-of=name"),
            ("/users/7/name?x=1", "/u?x=1&id=7&part-of=name"),
            ("/users/a%26b/name", "/u?id=a%26b&part-of=name"),
            ("/users/7/NAME", "/users/7/NAME"),
            ("/users/7/x/name", "/users/7/x/name"),
            ("/a%20b", "/v1.0/a%20b"),
            ("/bare", "/x"),
            ("/other?y", "/other?y"),
        ] {
            assert_eq!(leads_to(&alias, given).await, wanted, "{given}");
        }
    }

    #[test]
    fn rejects_invalid_routes() {
        for path in ["/{", "/{}", "/{a:}", "/{a:[}", "/{a:(}"] {
            assert!(alias(&[(path, "/x")]).is_err(), "{path}");
        }
    }

    #[test]
    fn reads_routes_in_three_forms() {
        let read = |properties: &[(&str, &str)]| {
            let owned = properties.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            routes(&Metadata::new("alias", owned).unwrap())
        };
        let wanted = vec![("/a".to_owned(), "/b".to_owned())];
        assert_eq!(read(&[("routes", "{\t\"/a\": \"/b\" }")]).unwrap(), wanted);
        assert_eq!(read(&[("routes", "/a: /b\n")]).unwrap(), wanted);
        assert_eq!(read(&[("/a", "/b")]).unwrap(), wanted);
        assert!(read(&[]).unwrap().is_empty());
        for bad in [
            &[("/a", "")][..],
            &[("routes", "")],
            &[("routes", "[1]")],
            &[("routes", "{")],
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
