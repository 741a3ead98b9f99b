use reqwest::{Url, redirect::Policy};

/// Maximum number of redirects per request.
pub const MAX_REDIRECTS: usize = 10;
/// Maximum rounds of percent-decoding of a path. Each round reads the whole path, and may shorten it by
/// only two bytes.
const MAX_ROUNDS: usize = 8;

/// A redirect that is not followed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// To the scheme, host or port of another origin.
    #[error(
        "the server redirects to another origin, {0}, where credentials must not go: configure that address if it is \
         the right one"
    )]
    Origin(String),
    /// More than [`MAX_REDIRECTS`] redirects for one request.
    #[error("the server redirects more than {MAX_REDIRECTS} times")]
    TooMany,
}

/// Follows redirects within the origin.
pub(crate) fn same_origin_policy() -> Policy {
    Policy::custom(|attempt| {
        let from = attempt.previous().last();
        if from.is_none_or(|from| from.origin() != attempt.url().origin()) {
            let origin = attempt.url().origin().ascii_serialization();
            attempt.error(RedirectError::Origin(origin))
        } else if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error(RedirectError::TooMany)
        } else {
            attempt.follow()
        }
    })
}

/// Whether `url` is `base` or below it under any server's interpretation of the path. Escapes are decoded
/// repeatedly, backslashes count as slashes, and segment parameters (`..;x`) do not hide a parent
/// reference. A path with too many rounds of escapes is outside.
pub fn within(base: &Url, url: &Url) -> bool {
    let account = |url: &Url| (url.username().to_owned(), url.password().map(str::to_owned));
    if base.origin() != url.origin() || account(base) != account(url) {
        return false;
    }
    let folder = base.path().trim_end_matches('/');
    let below = url
        .path()
        .strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    below && !climbs(url.path().as_bytes())
}

/// Whether `path` may have a parent reference: under some interpretation, or because escapes remain after
/// [`MAX_ROUNDS`].
fn climbs(path: &[u8]) -> bool {
    let mut read = path.to_vec();
    for _ in 0..=MAX_ROUNDS {
        let up = |segment: &[u8]| segment.split(|byte| *byte == b';').next() == Some(b"..");
        if read.split(|byte| matches!(byte, b'/' | b'\\')).any(up) {
            return true;
        }
        let decoded = decoded(&read);
        // Nothing was decoded: an escape is longer than its character.
        if decoded.len() == read.len() {
            return false;
        }
        read = decoded;
    }
    true
}

/// Decodes percent escapes once.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let escape = match others {
            [high, low, ..] if *first == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        match escape {
            Some((high, low)) => {
                decoded.push(high << 4 | low);
                rest = &others[2..];
            }
            None => {
                decoded.push(*first);
                rest = others;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confines_paths_to_base() {
        let stays = |base: &str, path: &str| {
            let base: Url = base.parse().unwrap();
            let url = format!("{}/{path}", base.as_str().trim_end_matches('/'));
            within(&base, &url.parse().unwrap())
        };
        let base = "https://h/api/v1/";
        for inside in [
            "",
            "items?x=../..",
            "a/../b",
            "a%2Fb",
            "..a",
            "a..",
            "...",
            "%",
            "%2",
            "%zz..",
            "a/./b",
        ] {
            assert!(stays(base, inside), "{inside}");
        }
        for outside in [
            "..",
            "../../admin",
            "%2e%2e/admin",
            "%2E./admin",
            ".%2e/admin",
            "..\\admin",
            "..%2fadmin",
            "..%5cadmin",
            "%252e%252e%252fadmin",
            "%25252e%25252e/admin",
            "a/..;x/..;/admin",
            "..%3b/admin",
            ".\t./admin",
            "../v1x/admin",
        ] {
            assert!(!stays(base, outside), "{outside}");
        }
        let escaped = |times| format!("a%{}2Fb", "25".repeat(times));
        assert!(stays(base, &escaped(MAX_ROUNDS - 1)));
        assert!(!stays(base, &escaped(MAX_ROUNDS)), "too many rounds of escapes");
        assert!(stays("https://h", "anything/at/all"));
        assert!(!within(
            &"https://h/a".parse().unwrap(),
            &"https://h/ab".parse().unwrap()
        ));
        for elsewhere in ["http://h/a", "https://i/a", "https://h:1/a", "https://u:p@h/a"] {
            let base = "https://h/a".parse().unwrap();
            assert!(!within(&base, &elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }
}
