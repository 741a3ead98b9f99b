//! Integers: RFC 7541 section 5.1.

use bytes::{BufMut as _, BytesMut};

use super::HpackError;

/// Maximum continuation bytes: enough for 2³⁵, far above every accepted size.
const MAX_BYTES: usize = 5;

/// Takes the integer at the start of `rest`. It uses the low `bits` of the first byte; the others hold a
/// pattern.
///
/// # Errors
///
/// If the input is truncated or the integer has too many bytes.
#[inline]
pub(super) fn read(rest: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
    let Some((&first, after)) = rest.split_first() else {
        return Err(HpackError::Truncated);
    };
    *rest = after;
    let mask = mask(bits);
    let low = first & mask;
    if low < mask {
        return Ok(usize::from(low));
    }
    read_more(rest, u64::from(mask))
}

fn read_more(rest: &mut &[u8], prefix: u64) -> Result<usize, HpackError> {
    let mut value = prefix;
    for turn in 0..MAX_BYTES {
        let Some((&next, after)) = rest.split_first() else {
            return Err(HpackError::Truncated);
        };
        *rest = after;
        value += u64::from(next & 0x7f) << (7 * turn);
        if next & 0x80 == 0 {
            return usize::try_from(value).map_err(|_| HpackError::Integer);
        }
    }
    Err(HpackError::Integer)
}

/// Writes an integer after `pattern`, which leaves the low `bits` of its byte free.
#[inline]
pub(super) fn write(value: usize, pattern: u8, bits: u32, out: &mut BytesMut) {
    let mask = mask(bits);
    match u8::try_from(value) {
        Ok(low) if low < mask => out.put_u8(pattern | low),
        _ => {
            out.put_u8(pattern | mask);
            write_more(value - usize::from(mask), out);
        }
    }
}

fn write_more(mut value: usize, out: &mut BytesMut) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

const fn mask(bits: u32) -> u8 {
    0xff >> (8 - bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: usize, pattern: u8, bits: u32) -> BytesMut {
        let mut out = BytesMut::new();
        write(value, pattern, bits, &mut out);
        out
    }

    #[test]
    fn decodes_rfc_examples() {
        // Appendix C.1.
        assert_eq!(written(10, 0xe0, 5)[..], [0xea]);
        assert_eq!(written(1337, 0, 5)[..], [0x1f, 0x9a, 0x0a]);
        assert_eq!(written(42, 0, 8)[..], [42]);
        assert_eq!(read(&mut &[0xea][..], 5), Ok(10));
        assert_eq!(read(&mut &[0x1f, 0x9a, 0x0a][..], 5), Ok(1337));
    }

    #[test]
    fn rejects_overlong_and_truncated() {
        for (bytes, error) in [
            (&[][..], HpackError::Truncated),
            (&[0x7f], HpackError::Truncated),
            (&[0x7f, 0x80], HpackError::Truncated),
            (&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0], HpackError::Integer),
            (&[0xff; 32], HpackError::Integer),
        ] {
            assert_eq!(read(&mut &bytes[..], 7), Err(error), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn integers_round_trip(value in 0usize..1 << 35, bits in 1u32..=8, pattern: u8) {
            let pattern = pattern & !mask(bits);
            let mut out = written(value, pattern, bits);
            prop_assert_eq!(out[0] & !mask(bits), pattern);
            out.put_u8(7);
            let mut rest = &out[..];
            prop_assert_eq!(read(&mut rest, bits), Ok(value));
            prop_assert_eq!(rest, &[7]);
        }
    }
}
