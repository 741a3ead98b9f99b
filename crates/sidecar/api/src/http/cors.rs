//! Cross-origin requests (Fetch standard, "CORS protocol").

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use outrigger_transport::body::Body;
use outrigger_transport::response::empty_response;

use super::verb::standard;

const METHODS: [Method; 7] = [
    Method::OPTIONS,
    Method::HEAD,
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// `--allowed-origins`.
pub enum Cors {
    /// No handling.
    Off,
    /// Any origin.
    Any,
    /// These origins; `*` inside one matches any text.
    Only(Vec<Pattern>),
}

/// An allowed origin, lower-case: the text before and after a wildcard.
pub struct Pattern {
    before: String,
    after: Option<String>,
}

impl Pattern {
    fn parse(text: &str) -> Self {
        let text = text.trim().to_ascii_lowercase();
        match text.split_once('*') {
            Some((before, after)) => Self {
                before: before.to_owned(),
                after: Some(after.to_owned()),
            },
            None => Self {
                before: text,
                after: None,
            },
        }
    }

    fn matches(&self, origin: &str) -> bool {
        match &self.after {
            None => self.before == origin,
            Some(after) => {
                origin.len() >= self.before.len() + after.len()
                    && origin.starts_with(&self.before)
                    && origin.ends_with(after)
            }
        }
    }
}

/// The decision on a request.
pub enum Admission {
    /// Respond at once: a preflight.
    Answer(Response<Body>),
    /// Continue, and add these headers to the response.
    Continue(CorsHeaders),
}

/// CORS headers of a response.
pub enum CorsHeaders {
    /// None: CORS is off.
    None,
    /// `Vary: Origin`, and the value of `Access-Control-Allow-Origin` if the origin is allowed.
    Depends(Option<HeaderValue>),
}

impl CorsHeaders {
    /// Adds them to a response.
    pub fn put(self, headers: &mut HeaderMap) {
        let Self::Depends(allowed) = self else { return };
        headers.append(VARY, HeaderValue::from_static("Origin"));
        if let Some(origin) = allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        }
    }
}

impl Cors {
    /// Allows these origins.
    pub fn only(origins: &[String]) -> Self {
        Self::Only(origins.iter().map(|origin| Pattern::parse(origin)).collect())
    }

    fn allowed(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match self {
            Self::Off => None,
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::Only(patterns) => {
                let text = origin.to_str().ok()?.to_ascii_lowercase();
                patterns.iter().any(|p| p.matches(&text)).then(|| origin.clone())
            }
        }
    }

    /// The CORS headers of every response to a request with these headers, except a preflight.
    pub fn headers_for(&self, headers: &HeaderMap) -> CorsHeaders {
        if matches!(self, Self::Off) {
            return CorsHeaders::None;
        }
        CorsHeaders::Depends(headers.get(ORIGIN).and_then(|origin| self.allowed(origin)))
    }

    /// Decides on a request.
    pub fn admit(&self, request: &Request<Body>) -> Admission {
        let headers = request.headers();
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD);
        match (
            self.headers_for(headers),
            asked.filter(|method| !method.is_empty()),
        ) {
            (CorsHeaders::Depends(allowed), Some(method)) if request.method() == Method::OPTIONS => {
                Admission::Answer(preflight(headers, method, allowed))
            }
            (cors, _) => Admission::Continue(cors),
        }
    }
}

fn preflight(headers: &HeaderMap, method: &HeaderValue, allowed: Option<HeaderValue>) -> Response<Body> {
    let mut response = empty_response(StatusCode::OK);
    let answer = response.headers_mut();
    for name in [
        "Origin",
        "Access-Control-Request-Method",
        "Access-Control-Request-Headers",
    ] {
        answer.append(VARY, HeaderValue::from_static(name));
    }
    let Some(origin) = allowed else { return response };
    let method = Method::from_bytes(method.as_bytes()).ok();
    let Some(method) = method.as_ref().and_then(standard).filter(|m| METHODS.contains(m)) else {
        return response;
    };
    let Ok(method) = HeaderValue::try_from(method.as_str()) else {
        return response;
    };
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, method);
    if let Some(requested) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
    }
    response
}
