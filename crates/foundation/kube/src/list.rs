//! Paged lists of collections: only one page is in memory at a time.

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Client, MAX_ANSWER, unusable};
use crate::error::ApiError;
use crate::kind::Kind;

/// Objects per page.
pub(crate) const PAGE: usize = 500;
/// Maximum pages of a list.
const MAX_PAGES: usize = 10_000;

/// A page of a list. Some servers omit the items, or send null.
#[derive(serde::Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Option<Vec<T>>,
}

#[derive(Default, serde::Deserialize)]
struct PageMeta {
    #[serde(rename = "resourceVersion")]
    version: Option<String>,
    #[serde(rename = "continue")]
    rest: Option<String>,
}

impl Client {
    /// All objects of a collection; `query` restricts it (`labelSelector=...`).
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn all(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        query: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let mut items = Vec::new();
        let take = |item: Value| {
            items.push(item);
            Ok(())
        };
        self.each(kind, namespace, query, MAX_ANSWER, take).await?;
        Ok(items)
    }

    /// Passes all objects of a collection to `take`, and returns the version of the collection; `query`
    /// restricts it. The response is limited to `most` bytes; if it is larger, `take` may have received a
    /// part.
    ///
    /// # Errors
    /// [`ApiError`], including that of `take`; [`ApiError::TooLarge`] above the limit.
    pub async fn each<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        query: &str,
        most: usize,
        mut take: impl FnMut(T) -> Result<(), ApiError>,
    ) -> Result<String, ApiError> {
        let path = kind.path(namespace, None);
        let (mut rest, mut left) = (String::new(), most);
        for _ in 0..MAX_PAGES {
            let mut address = format!("{path}?limit={PAGE}");
            for part in [query, &rest].into_iter().filter(|part| !part.is_empty()) {
                address.push('&');
                address.push_str(part);
            }
            let answer = self.request(Method::GET, &address, None, left.min(MAX_ANSWER));
            let bytes = answer.await.map_err(|error| match error {
                ApiError::TooLarge { what, .. } => ApiError::TooLarge { what, most },
                error => error,
            })?;
            left = left.saturating_sub(bytes.len());
            let page: Page<T> = serde_json::from_slice(&bytes).map_err(|error| unusable(&address, error))?;
            page.items.into_iter().flatten().try_for_each(&mut take)?;
            match page.metadata.rest.filter(|rest| !rest.is_empty()) {
                None => return Ok(page.metadata.version.unwrap_or_default()),
                Some(token) => rest = format!("continue={}", utf8_percent_encode(&token, NON_ALPHANUMERIC)),
            }
        }
        let cause = format!("the list has more than {MAX_PAGES} pages");
        Err(ApiError::Unreachable {
            what: format!("GET {path}"),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Server;

    #[derive(serde::Deserialize)]
    struct Named {
        metadata: Value,
    }

    #[tokio::test]
    async fn lists_pages_up_to_limit() {
        let server = Server::start().await;
        let long = "x".repeat(1000);
        for number in 0..2 * PAGE {
            let at = format!("/api/v1/namespaces/ns/configmaps/n{number}");
            server.put(
                &at,
                json!({"metadata": {"name": format!("n{number}")}, "data": {"a": long}}),
            );
        }
        let client = server.client();
        let read = async |most: usize| {
            let mut names = Vec::new();
            let take = |item: Named| {
                names.push(item.metadata["name"].to_string());
                Ok(())
            };
            let version = client.each(Kind::CONFIG_MAPS, Some("ns"), "", most, take).await;
            (version, names.len())
        };
        let (version, count) = read(2 << 20).await;
        // The server starts with version 1.
        assert_eq!((version, count), (Ok((2 * PAGE + 1).to_string()), 2 * PAGE));
        // The first page fits, the second does not.
        let (version, count) = read(PAGE * 1500).await;
        let error = version.unwrap_err();
        assert!(
            matches!(error, ApiError::TooLarge { most, .. } if most == PAGE * 1500),
            "{error}"
        );
        assert_eq!(
            (error.to_string().as_str(), count),
            (
                "GET /api/v1/namespaces/ns/configmaps exceeds the limit of 750000 bytes",
                PAGE
            )
        );
        // Lists of small servers.
        server.fix(
            "/api/v1/namespaces/ns/configmaps",
            http::StatusCode::OK,
            json!({"items": null}),
        );
        assert_eq!(read(100).await, (Ok(String::new()), 0));
    }
}
