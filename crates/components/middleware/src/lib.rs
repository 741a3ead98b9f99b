//! `middleware.http.*`: middleware between clients and the HTTP API, or between the sidecar and its app.

mod bearer;
mod rate_limit;
mod router_alias;
mod router_checker;
mod uppercase;

use http::Uri;
use http::uri::PathAndQuery;
use outrigger_component::{Catalog, Error, Kind};

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    bearer::add(catalog);
    rate_limit::add(catalog);
    router_alias::add(catalog);
    router_checker::add(catalog);
    uppercase::add(catalog);
}

/// An invalid property.
fn wrong(message: String) -> Error {
    Error::new(Kind::Configuration, message)
}

/// Path and query of a request; `/` if absent.
fn target(uri: &Uri) -> &str {
    match uri.path_and_query() {
        Some(target) if !target.as_str().is_empty() => target.as_str(),
        _ => "/",
    }
}

/// The same URI with another path and query.
fn with_target(uri: &Uri, target: PathAndQuery) -> Result<Uri, http::uri::InvalidUriParts> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    Uri::from_parts(parts)
}
