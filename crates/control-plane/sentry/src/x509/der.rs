//! The subset of DER needed to write a certificate: tag, length, contents.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT_ID: u8 = 0x06;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;

/// Tag of an explicitly tagged field `[number]`.
pub(super) const fn explicit(number: u8) -> u8 {
    0xa0 | number
}

/// Tag of an implicitly tagged primitive field `[number]`.
pub(super) const fn implicit(number: u8) -> u8 {
    0x80 | number
}

/// Encodes a value from its tag and the pieces of its contents.
pub(super) fn value(tag: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut out = Vec::with_capacity(length + 6);
    out.push(tag);
    if length < 0x80 {
        // Checked to fit.
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
        out.push(0x80 | digits.len() as u8);
        out.extend_from_slice(digits);
    }
    for piece in pieces {
        out.extend_from_slice(piece);
    }
    out
}

/// A non-negative INTEGER from big-endian bytes.
pub(super) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let digits = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    match digits.first() {
        None => value(INTEGER, &[&[0]]),
        Some(first) if first & 0x80 != 0 => value(INTEGER, &[&[0], digits]),
        Some(_) => value(INTEGER, &[digits]),
    }
}

/// A BIT STRING of whole bytes.
pub(super) fn bits(bytes: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[0], bytes])
}

/// Encodes a time as certificates do: UTCTime until 2049, GeneralizedTime after.
pub(super) fn time(at: time::OffsetDateTime) -> Vec<u8> {
    let at = at.to_offset(time::UtcOffset::UTC);
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    );
    match at.year() {
        year @ 1950..2050 => value(UTC_TIME, &[format!("{:02}{rest}", year % 100).as_bytes()]),
        year => value(GENERALIZED_TIME, &[format!("{year:04}{rest}").as_bytes()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_lengths_minimally() {
        assert_eq!(value(OCTET_STRING, &[&[7; 3]])[..2], [4, 3]);
        assert_eq!(value(OCTET_STRING, &[&[7; 127]])[..2], [4, 127]);
        assert_eq!(value(OCTET_STRING, &[&[7; 128]])[..3], [4, 0x81, 128]);
        assert_eq!(
            value(OCTET_STRING, &[&[7; 200], &[7; 100]])[..4],
            [4, 0x82, 1, 44]
        );
    }

    #[test]
    fn encodes_integers_minimally() {
        assert_eq!(unsigned(&[0, 0, 5]), [2, 1, 5]);
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
    }

    #[test]
    fn switches_time_format_in_2050() {
        let last = time::OffsetDateTime::from_unix_timestamp(2_524_607_999).unwrap();
        assert_eq!(&time(last)[2..], b"491231235959Z");
        let next = last + time::Duration::SECOND;
        assert_eq!(&time(next)[2..], b"20500101000000Z");
    }
}
