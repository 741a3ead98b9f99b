//! How the encoder treats each field name.

use http::HeaderName;

use super::table::STATIC;

/// Indexing policy of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Up to this many of its values enter the dynamic table.
    Indexed(u8),
    /// Its values are secrets and are never indexed: RFC 7541 section 7.1.3.
    Secret,
}

/// Names with values that tend to repeat.
const REPEATED: Treatment = Treatment::Indexed(4);
/// Names with values that seldom repeat but that occur in most calls: one entry gives the name an index.
const NAMED: Treatment = Treatment::Indexed(1);
/// All other names: they occupy no memory of the peer.
const ONCE: Treatment = Treatment::Indexed(0);

/// Properties of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameEntry {
    /// Index in the static table, or 0.
    pub(super) index: u8,
    pub(super) treatment: Treatment,
    /// Identifies a name in the dynamic table. From [`SHARED`] on, different names may share a tag.
    pub(super) tag: u16,
}

/// The first tag for names outside [`NAMES`].
pub(super) const SHARED: u16 = 0x8000;

/// `:authority` and `:path`.
pub(super) const AUTHORITY: NameEntry = pseudo(1);
pub(super) const PATH: NameEntry = pseudo(4);

const fn pseudo(index: u8) -> NameEntry {
    NameEntry {
        index,
        treatment: REPEATED,
        tag: 0x7f00 + index as u16,
    }
}

/// Names with their indices in the static table: RFC 7541 appendix A.
const NAMES: [(&str, u8, Treatment); 57] = [
    ("accept-charset", 15, ONCE),
    ("accept-encoding", 16, REPEATED),
    ("accept-language", 17, ONCE),
    ("accept-ranges", 18, ONCE),
    ("accept", 19, REPEATED),
    ("access-control-allow-origin", 20, ONCE),
    ("age", 21, ONCE),
    ("allow", 22, ONCE),
    ("authorization", 23, Treatment::Secret),
    ("cache-control", 24, ONCE),
    ("content-disposition", 25, ONCE),
    ("content-encoding", 26, REPEATED),
    ("content-language", 27, ONCE),
    ("content-length", 28, ONCE),
    ("content-location", 29, ONCE),
    ("content-range", 30, ONCE),
    ("content-type", 31, REPEATED),
    ("cookie", 32, Treatment::Secret),
    ("date", 33, ONCE),
    ("etag", 34, ONCE),
    ("expect", 35, ONCE),
    ("expires", 36, ONCE),
    ("from", 37, ONCE),
    ("host", 38, ONCE),
    ("if-match", 39, ONCE),
    ("if-modified-since", 40, ONCE),
    ("if-none-match", 41, ONCE),
    ("if-range", 42, ONCE),
    ("if-unmodified-since", 43, ONCE),
    ("last-modified", 44, ONCE),
    ("link", 45, ONCE),
    ("location", 46, ONCE),
    ("max-forwards", 47, ONCE),
    ("proxy-authenticate", 48, ONCE),
    ("proxy-authorization", 49, Treatment::Secret),
    ("range", 50, ONCE),
    ("referer", 51, ONCE),
    ("refresh", 52, ONCE),
    ("retry-after", 53, ONCE),
    ("server", 54, REPEATED),
    ("set-cookie", 55, Treatment::Secret),
    ("strict-transport-security", 56, ONCE),
    ("transfer-encoding", 57, ONCE),
    ("user-agent", 58, REPEATED),
    ("vary", 59, ONCE),
    ("via", 60, ONCE),
    ("www-authenticate", 61, ONCE),
    ("baggage", 0, NAMED),
    ("dapr-api-token", 0, Treatment::Secret),
    ("grpc-accept-encoding", 0, REPEATED),
    ("grpc-encoding", 0, REPEATED),
    ("grpc-status", 0, REPEATED),
    ("grpc-timeout", 0, NAMED),
    ("grpc-trace-bin", 0, NAMED),
    ("te", 0, REPEATED),
    ("traceparent", 0, NAMED),
    ("tracestate", 0, NAMED),
];

/// Prefix of Dapr metadata, such as the caller's app ID.
const DAPR: &str = "dapr-";

/// Slots of the hash table; a power of two.
const PLACES: usize = 256;

/// Positions in [`NAMES`] plus one, by [`hash`]; 0 marks a free slot.
static FOUND: [u8; PLACES] = places();

const fn places() -> [u8; PLACES] {
    let mut places = [0; PLACES];
    let mut at = 0;
    while at < NAMES.len() {
        let mut place = hash(NAMES[at].0.as_bytes());
        while places[place] != 0 {
            place = (place + 1) % PLACES;
        }
        places[place] = at as u8 + 1;
        at += 1;
    }
    places
}

const fn hash(name: &[u8]) -> usize {
    let length = name.len();
    if length == 0 {
        return 0;
    }
    let (first, middle, last) = (
        name[0] as usize,
        name[length / 2] as usize,
        name[length - 1] as usize,
    );
    (length * 7 + first * 5 + middle * 31 + last * 11) % PLACES
}

/// Looks up a name.
pub(super) fn known(name: &HeaderName) -> NameEntry {
    let name = name.as_str();
    let mut place = hash(name.as_bytes());
    while let Some(at) = FOUND[place].checked_sub(1) {
        let (candidate, index, treatment) = NAMES[usize::from(at)];
        if candidate == name {
            return NameEntry {
                index,
                treatment,
                tag: u16::from(at),
            };
        }
        place = (place + 1) % PLACES;
    }
    unknown(name)
}

fn unknown(name: &str) -> NameEntry {
    let treatment = if name.starts_with(DAPR) { REPEATED } else { ONCE };
    NameEntry {
        index: 0,
        treatment,
        tag: SHARED | super::encode::tag(name.as_bytes()),
    }
}

const _: () = assert!(NAMES.len() < 255 && STATIC < 256);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::table::{Name, Table};

    #[test]
    fn finds_static_table_indices() {
        let table = Table::new();
        for (name, index, treatment) in NAMES {
            let header = HeaderName::from_static(name);
            let found = known(&header);
            assert_eq!((found.index, found.treatment), (index, treatment), "{name}");
            if index != 0 {
                let entry = table.entry(index.into()).unwrap();
                assert!(
                    matches!(&entry.name, Name::Plain(plain) if *plain == header),
                    "{name}"
                );
            }
        }
        // Every name of the static table is present.
        assert_eq!(
            NAMES.iter().filter(|(_, index, _)| *index != 0).count(),
            STATIC - 14
        );
    }

    #[test]
    fn lookups_take_few_probes() {
        for (name, ..) in NAMES {
            let place = hash(name.as_bytes());
            let at = NAMES.iter().position(|(other, ..)| *other == name).unwrap();
            let steps = (0..PLACES)
                .find(|step| usize::from(FOUND[(place + step) % PLACES]) == at + 1)
                .unwrap();
            assert!(steps <= 2, "{name}: {steps}");
        }
    }

    #[test]
    fn indexes_dapr_metadata_only() {
        let treatment = |name| known(&HeaderName::from_static(name)).treatment;
        assert_eq!(treatment("dapr-app-id"), REPEATED);
        assert_eq!(treatment("dapr-api-token"), Treatment::Secret);
        assert_eq!(treatment("x-request-id"), ONCE);
    }
}
