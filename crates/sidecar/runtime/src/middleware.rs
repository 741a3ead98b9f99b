//! HTTP middleware: the components, and the pipelines of the Configuration.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use outrigger_component::Middleware;
use outrigger_component::middleware::{self, Next, full};
use outrigger_nearest::hint;
use outrigger_resources::configuration::{Configuration, Handler};
use outrigger_transport::body::{Body, BoxError};

use crate::components::{Category, OpenError, Opened, Opening};
use crate::registry::{Registration, Registry};

const LOG: &str = "dapr.middleware.http";

/// A loaded middleware.
struct Loaded {
    /// The component's name.
    name: String,
    /// Its type, as written.
    kind: String,
    /// Its version, as written; may be empty.
    version: String,
    /// The component.
    component: Arc<dyn Middleware>,
}

/// All middlewares of the sidecar, and its two pipelines.
pub struct Middlewares {
    loaded: Registry<Loaded>,
    /// Serialises rebuilding of pipelines.
    building: Mutex<()>,
    /// Pipeline of the HTTP API.
    pub server: Pipeline,
    /// Pipeline of calls to the app and to external endpoints.
    pub app: Pipeline,
}

impl Middlewares {
    /// The pipelines of a Configuration, without middlewares yet.
    pub fn new(configuration: &Configuration) -> Self {
        Self {
            loaded: Registry::default(),
            building: Mutex::default(),
            server: Pipeline::new("http", &configuration.http_pipeline),
            app: Pipeline::new("app", &configuration.app_http_pipeline),
        }
    }

    /// Adds or replaces a middleware. A removed one still handles its requests in flight.
    fn insert(self: &Arc<Self>, loaded: Loaded) -> Registration {
        let name = loaded.name.clone();
        let all = Arc::clone(self);
        let registration = self.loaded.insert(&name, loaded).then(move || all.rebuild());
        self.rebuild();
        registration
    }

    /// Logs handlers of the Configuration without component; requests skip them, as in Dapr. Called once all
    /// components are loaded.
    pub fn show_missing(&self) {
        for text in self.missing() {
            tracing::error!(target: LOG, "{text}");
        }
    }

    fn missing(&self) -> Vec<String> {
        let names = self.loaded.names();
        let pipelines = [("httpPipeline", &self.server), ("appHttpPipeline", &self.app)];
        let handlers = pipelines.into_iter().flat_map(|(name, pipeline)| {
            let handlers = pipeline.handlers.iter();
            handlers.map(move |handler| (name, handler))
        });
        let missing = handlers.filter(|(_, handler)| entry(handler, &self.loaded).is_none());
        let warnings = missing.map(|(pipeline, handler)| {
            let Handler { name, kind, .. } = handler;
            let remedy = match self.loaded.get(name) {
                Some(other) => format!("the component {name} is a {}", of(&other.kind, &other.version)),
                None => {
                    let near = hint(name, names.iter().map(String::as_str));
                    format!("{near}name a component that is loaded")
                }
            };
            let place = match handler.source.to_string() {
                place if place.is_empty() => String::new(),
                place => format!("{place}: "),
            };
            let wanted = of(kind, &handler.version);
            format!(
                "{place}spec.{pipeline}: no middleware {name:?} ({wanted}) is loaded: calls are handled without it \
                 ({remedy})"
            )
        });
        warnings.collect()
    }

    fn rebuild(&self) {
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        self.server.rebuild(&self.loaded);
        self.app.rebuild(&self.loaded);
    }
}

impl Category for Middlewares {
    fn name(&self) -> &'static str {
        "middleware"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let loaded = Loaded {
                name: opening.name().to_owned(),
                kind: opening.component.kind.clone(),
                version: opening.component.version.clone(),
                component: opening.start(&opening.catalog().middleware).await?,
            };
            let closing = Arc::clone(&loaded.component);
            Ok(Opened::new(Vec::new())
                .part(move || self.insert(loaded), async move { closing.close().await }))
        })
    }
}

/// Middlewares in the order of the Configuration.
pub struct Pipeline {
    name: &'static str,
    handlers: Vec<Handler>,
    chain: ArcSwap<Chain>,
}

/// The loaded middlewares of a pipeline, outermost first.
#[derive(Default)]
pub struct Chain {
    components: Vec<Arc<dyn Middleware>>,
    /// Keeps them in use while a request is inside.
    _entries: Vec<Arc<Loaded>>,
}

impl Pipeline {
    fn new(name: &'static str, handlers: &[Handler]) -> Self {
        Self {
            name,
            handlers: handlers.to_vec(),
            chain: ArcSwap::default(),
        }
    }

    /// The current chain; `None` if it is empty.
    #[inline]
    pub fn current(&self) -> Option<Arc<Chain>> {
        let chain = self.chain.load();
        if chain.components.is_empty() {
            return None;
        }
        Some(Arc::clone(&chain))
    }

    /// Rebuilds the chain. A handler counts if a component with its name, type and version is loaded.
    fn rebuild(&self, loaded: &Registry<Loaded>) {
        if self.handlers.is_empty() {
            return;
        }
        tracing::info!(target: LOG, "Building pipeline {}", self.name);
        let found = self.handlers.iter().filter_map(|handler| entry(handler, loaded));
        let entries: Vec<_> = found.collect();
        self.chain.store(Arc::new(Chain {
            components: entries.iter().map(|entry| Arc::clone(&entry.component)).collect(),
            _entries: entries,
        }));
    }
}

/// The loaded component with the name, type and version of a handler.
fn entry(handler: &Handler, loaded: &Registry<Loaded>) -> Option<Arc<Loaded>> {
    let entry = loaded.get(&handler.name)?;
    let same = entry.kind == handler.kind && version(&entry.version) == version(&handler.version);
    same.then_some(entry)
}

/// A type with its version.
fn of(kind: &str, given: &str) -> String {
    format!("{kind}/{}", version(given))
}

fn version(given: &str) -> &str {
    if given.is_empty() { "v1" } else { given }
}

impl Chain {
    /// Passes a request through all middlewares to `end`, and the response back.
    ///
    /// # Errors
    /// The error of `end`.
    pub async fn run<'a>(
        &'a self,
        request: Request<Body>,
        end: impl FnOnce(Request<Body>) -> BoxFuture<'a, Result<Response<Body>, BoxError>> + Send + 'a,
    ) -> Result<Response<Body>, BoxError> {
        let inner = |request: Request<middleware::Body>| -> BoxFuture<'a, middleware::Outcome> {
            let answering = end(request.map(Body::stream));
            Box::pin(async move { Ok(answering.await?.map(outside)) })
        };
        let next = Next::new(&self.components, inner);
        let response = next.run(request.map(outside)).await?;
        Ok(response.map(Body::stream))
    }
}

/// Converts a body to the form of middlewares.
#[inline]
fn outside(body: Body) -> middleware::Body {
    match body {
        Body::Empty => full(""),
        Body::Full(bytes) => full(bytes),
        other => other.boxed_unsync(),
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use http::HeaderValue;
    use outrigger_component::middleware::Outcome;
    use outrigger_resources::Source;

    use super::*;

    struct Mark(&'static str);

    #[async_trait]
    impl Middleware for Mark {
        async fn handle(&self, mut request: Request<middleware::Body>, next: Next<'_>) -> Outcome {
            request
                .headers_mut()
                .append("via", HeaderValue::from_static(self.0));
            next.run(request).await
        }
    }

    fn loaded(name: &str, kind: &str, version: &str, mark: &'static str) -> Loaded {
        Loaded {
            name: name.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            component: Arc::new(Mark(mark)),
        }
    }

    fn handler(name: &str, kind: &str, version: &str) -> Handler {
        Handler {
            name: name.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            ..Handler::default()
        }
    }

    /// The marks of a request that passed the server pipeline.
    async fn marks(all: &Middlewares) -> Vec<String> {
        let Some(chain) = all.server.current() else {
            return Vec::new();
        };
        let end = |request: Request<Body>| -> BoxFuture<'_, Result<Response<Body>, BoxError>> {
            Box::pin(async move {
                let mut response = Response::new(Body::Empty);
                *response.headers_mut() = request.headers().clone();
                Ok(response)
            })
        };
        let response = chain.run(Request::new(Body::Empty), end).await.unwrap();
        let via = response.headers().get_all("via").iter();
        via.map(|mark| mark.to_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn pipeline_contains_loaded_handlers() {
        let all = Arc::new(Middlewares::new(&Configuration {
            http_pipeline: vec![
                handler("one", "middleware.http.mark", ""),
                handler("two", "middleware.http.mark", "v1"),
                handler("three", "middleware.http.other", "v1"),
                handler("one", "middleware.http.mark", "v2"),
            ],
            ..Configuration::default()
        }));
        assert!(all.server.current().is_none());
        let two = all.insert(loaded("two", "middleware.http.mark", "", "2"));
        all.insert(loaded("three", "middleware.http.mark", "", "3"));
        let replaced = all.insert(loaded("one", "middleware.http.mark", "v1", "1"));
        assert_eq!(marks(&all).await, ["1", "2"]);
        assert!(all.app.current().is_none());
        let one = all.insert(loaded("one", "middleware.http.mark", "v1", "one"));
        replaced.withdraw();
        assert_eq!(marks(&all).await, ["one", "2"]);
        two.withdraw();
        one.withdraw();
        assert!(all.server.current().is_none());
    }

    #[test]
    fn reports_handlers_without_component() {
        let mut mistyped = handler("uper", "middleware.http.uppercase", "");
        mistyped.source = Source::new("config.yaml", 7);
        let all = Arc::new(Middlewares::new(&Configuration {
            http_pipeline: vec![mistyped, handler("upper", "middleware.http.uppercase", "")],
            app_http_pipeline: vec![handler("upper", "middleware.http.uppercase", "v2")],
            ..Configuration::default()
        }));
        all.insert(loaded("upper", "middleware.http.uppercase", "v1", "1"));
        assert_eq!(
            all.missing(),
            [
                "config.yaml:7: spec.httpPipeline: no middleware \"uper\" (middleware.http.uppercase/v1) is loaded: \
                 calls are handled without it (did you mean upper? name a component that is loaded)",
                "spec.appHttpPipeline: no middleware \"upper\" (middleware.http.uppercase/v2) is loaded: calls are \
                 handled without it (the component upper is a middleware.http.uppercase/v1)",
            ]
        );
    }
}
