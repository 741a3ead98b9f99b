use crate::{Error, Pairs, Result};

/// Request metadata: seconds until a value expires.
pub const TTL: &str = "ttlInSeconds";
/// Response metadata: when a value expires, RFC 3339 in UTC.
pub const TTL_EXPIRES: &str = "ttlExpireTime";

/// Handling of concurrent writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Not set: last write wins unless an ETag is given.
    #[default]
    Unspecified,
    /// First write wins: without an ETag, only an absent key may be written.
    FirstWrite,
    /// Last write wins.
    LastWrite,
}

impl Concurrency {
    /// Parses `first-write`, `last-write` or an empty text.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) for other texts.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "" => Ok(Self::Unspecified),
            "first-write" => Ok(Self::FirstWrite),
            "last-write" => Ok(Self::LastWrite),
            other => Err(Error::invalid_request(format!(
                "unrecognized concurrency model '{other}'"
            ))),
        }
    }
}

/// Consistency of a read or a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Not set: the store's default.
    #[default]
    Unspecified,
    /// One replica is enough.
    Eventual,
    /// All replicas.
    Strong,
}

impl Consistency {
    /// Parses `eventual`, `strong` or an empty text.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) for other texts.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "" => Ok(Self::Unspecified),
            "eventual" => Ok(Self::Eventual),
            "strong" => Ok(Self::Strong),
            other => Err(Error::invalid_request(format!(
                "unrecognized consistency model '{other}'"
            ))),
        }
    }
}

/// The `ttlInSeconds` of a request; `None` if absent. 0 and -1 mean "never expires".
///
/// # Errors
/// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) unless it is a whole number from -1 to 2147483647.
pub fn ttl_seconds(metadata: &Pairs) -> Result<Option<i32>> {
    let Some(text) = metadata.get(TTL).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse::<i32>() {
        Ok(seconds) if seconds >= -1 => Ok(Some(seconds)),
        Ok(_) => Err(Error::invalid_request(format!(
            "error parsing TTL: incorrect value for metadata '{TTL}': must be -1 or greater"
        ))),
        Err(error) => Err(Error::invalid_request(format!(
            "error parsing TTL: incorrect value for metadata '{TTL}': {text:?} is not a whole number of seconds"
        ))
        .because(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ttl_seconds() {
        let ttl = |text: &str| ttl_seconds(&Pairs::from([(TTL.to_owned(), text.to_owned())]));
        assert_eq!(ttl("10").unwrap(), Some(10));
        assert_eq!(ttl("-1").unwrap(), Some(-1));
        assert_eq!(ttl("").unwrap(), None);
        assert_eq!(ttl_seconds(&Pairs::new()).unwrap(), None);
        for wrong in ["-2", "1.5", "ten", "2147483648"] {
            assert!(ttl(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn accepts_only_contract_options() {
        assert_eq!(
            Concurrency::parse("first-write").unwrap(),
            Concurrency::FirstWrite
        );
        assert_eq!(Consistency::parse("").unwrap(), Consistency::Unspecified);
        let error = Concurrency::parse("first").unwrap_err().to_string();
        assert_eq!(error, "unrecognized concurrency model 'first'");
        assert!(Consistency::parse("Strong").is_err());
    }
}
