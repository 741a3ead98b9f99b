//! HTTP/1.1 messages.

use crate::listeners::{Listener, Request};
use crate::peer::Received;

/// The path of a smuggled request, which must never arrive.
pub const SMUGGLED: &str = "smuggled";

/// The path requested by honest clients of a listener.
pub fn path(listener: &Listener) -> &'static str {
    match listener.honest {
        Request::Get(path) | Request::Post(path, _) => path,
        Request::Call(..) | Request::Sign => unreachable!("{} speaks HTTP/2 only", listener.name),
    }
}

/// An honest request with additional header fields.
pub fn request(listener: &Listener, fields: &str) -> String {
    let path = path(listener);
    match listener.honest {
        Request::Post(_, body) => format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{fields}\r\n{body}",
            body.len()
        ),
        _ => format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"),
    }
}

/// A request to hide in the body of another.
pub fn smuggled(path: &str) -> String {
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    format!("GET {folder}/{SMUGGLED} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// The statuses of all received responses.
pub fn statuses(received: &Received) -> Vec<u16> {
    let text = String::from_utf8_lossy(&received.bytes);
    text.match_indices("HTTP/1.1 ")
        .chain(text.match_indices("HTTP/1.0 "))
        .filter_map(|(at, _)| text.get(at + 9..at + 12)?.parse().ok())
        .collect()
}

/// Whether a complete response was received: its head, and its body if a length is declared.
pub fn is_answered(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    body.len() >= length.unwrap_or(0)
}
