//! Digests that are signed. Variable parts follow their length, 8 bytes big endian.

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

fn length(bytes: &[u8]) -> [u8; 8] {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes()
}

/// The digest of several byte strings.
pub(crate) fn of_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(length(part.as_ref()));
        hash.update(part.as_ref());
    }
    hash.finalize().into()
}

/// The instance and the workflow's name that a signature outside of the instance's state is bound to.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) instance: &'a str,
    pub(crate) workflow: &'a str,
}

/// The message of a history's signature, of which the digest is signed.
pub(crate) fn message(previous: Option<&[u8]>, events: &[u8], context: Option<Context<'_>>) -> Vec<u8> {
    let mut message = previous.unwrap_or_default().to_vec();
    message.extend(events);
    for part in context
        .iter()
        .flat_map(|context| [context.instance, context.workflow])
    {
        message.extend(length(part.as_bytes()));
        message.extend(part.as_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_match_known_values() {
        assert_eq!(hex(&of_parts(["a", "bc"])), KNOWN_PARTS);
        assert_ne!(of_parts(["ab", "c"]), of_parts(["a", "bc"]));
        assert_eq!(of_parts::<&str>([]), sha256(b""));
        let context = Context {
            instance: "i",
            workflow: "wf",
        };
        let signed = message(Some(b"previous"), b"events", Some(context));
        assert_eq!(signed, b"previousevents\0\0\0\0\0\0\0\x01i\0\0\0\0\0\0\0\x02wf");
        assert_eq!(message(None, b"events", None), b"events");
    }

    /// SHA-256 of `00 00 00 00 00 00 00 01 61 00 00 00 00 00 00 00 02 62 63`.
    const KNOWN_PARTS: &str = "3fafa1cf2f19a7c1129beb20cf0983f73a489a221fc0dd2f16d1be292d089205";
}
