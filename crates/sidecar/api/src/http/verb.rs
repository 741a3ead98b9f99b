//! The nine standard HTTP methods (RFC 9110 section 9, RFC 5789).

use http::{Method, Request};
use outrigger_wire::invoke::{Verb, verb_of};

/// The standard method, in any case: browsers send `patch` as scripts spell it. `None` for every other
/// method: neither the protocol between sidecars nor access control can represent it.
pub(super) fn standard(method: &Method) -> Option<Method> {
    if verb_of(method) != Verb::None {
        return Some(method.clone());
    }
    let upper = Method::from_bytes(method.as_str().to_ascii_uppercase().as_bytes()).ok()?;
    (verb_of(&upper) != Verb::None).then_some(upper)
}

/// Normalises the method of a request.
///
/// # Errors
/// The method, if it is not a standard one.
pub(super) fn standardise<B>(request: &mut Request<B>) -> Result<(), String> {
    if verb_of(request.method()) != Verb::None {
        return Ok(());
    }
    let method = standard(request.method()).ok_or_else(|| request.method().to_string())?;
    *request.method_mut() = method;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_case_of_standard_methods() {
        let of = |name: &str| standard(&Method::from_bytes(name.as_bytes()).unwrap());
        for name in ["patch", "Patch", "PATCH"] {
            assert_eq!(of(name), Some(Method::PATCH));
        }
        assert_eq!(of("get"), Some(Method::GET));
        for other in ["PROPFIND", "QUERY", "M-SEARCH", "NONE"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
