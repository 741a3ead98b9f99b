//! Huffman coding of strings: RFC 7541 section 5.2 and appendix B.
//!
//! The code is canonical: codes of one length are consecutive numbers in the order of their symbols, and
//! each length starts where the shorter ones end. The lengths alone describe it.

use super::HpackError;

/// Length of the longest code in bits.
const MAX_CODE_BITS: u32 = 30;
/// Symbols: each byte, and the end of the string.
const SYMBOLS: usize = 257;
/// The end-of-string symbol. It must not occur in a string, but padding is its prefix.
const END: u16 = 256;

/// Length of each symbol's code in bits: the last column of appendix B.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// Lookup by eight bits: a symbol and the length of its code; length 0 if the code is longer.
#[derive(Clone, Copy)]
struct Short {
    symbol: u8,
    bits: u8,
}

/// The codes of one length.
#[derive(Clone, Copy)]
struct Group {
    /// The first code, left-aligned in 32 bits.
    first: u32,
    /// Position of its symbol in [`Code::ordered`].
    at: usize,
}

struct Code {
    short: [Short; 256],
    /// By length.
    groups: [Group; MAX_CODE_BITS as usize + 1],
    /// Symbols in the order of their codes.
    ordered: [u16; SYMBOLS],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self {
            short: [Short { symbol: 0, bits: 0 }; 256],
            groups: [Group {
                first: u32::MAX,
                at: 0,
            }; MAX_CODE_BITS as usize + 1],
            ordered: [0; SYMBOLS],
        };
        // The next code, left-aligned, and the number of symbols assigned.
        let (mut next, mut at) = (0u64, 0);
        let mut length = 1;
        while length <= MAX_CODE_BITS {
            code.groups[length as usize] = Group {
                first: next as u32,
                at,
            };
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as u32 == length {
                    code.ordered[at] = symbol as u16;
                    at += 1;
                    if length <= 8 {
                        code.fill(next, symbol as u8, length);
                    }
                    next += 1 << (32 - length);
                }
                symbol += 1;
            }
            length += 1;
        }
        code
    }

    /// Fills all combinations of eight bits that start with a code.
    const fn fill(&mut self, code: u64, symbol: u8, length: u32) {
        let first = (code >> 24) as usize;
        let mut at = first;
        while at < first + (1 << (8 - length)) {
            self.short[at] = Short {
                symbol,
                bits: length as u8,
            };
            at += 1;
        }
    }

    /// Looks up a code longer than eight bits: the first symbol of `window` and the length of its code.
    fn long(&self, window: u64) -> (u16, u32) {
        let top = (window >> 32) as u32;
        let mut length = 9;
        while length < MAX_CODE_BITS && self.groups[length as usize + 1].first <= top {
            length += 1;
        }
        // Lengths without codes start where the next one does.
        let group = self.groups[length as usize];
        let past = (top - group.first) >> (32 - length);
        (self.ordered[group.at + past as usize], length)
    }
}

/// The input as bits, the next one left-aligned.
struct Bits<'a> {
    buffer: u64,
    count: u32,
    rest: &'a [u8],
}

impl Bits<'_> {
    /// Refills to at least 32 bits if the input has them. The buffer must hold at most 32 bits before.
    fn refill(&mut self) {
        if let Some((four, rest)) = self.rest.split_first_chunk() {
            self.buffer |= u64::from(u32::from_be_bytes(*four)) << (32 - self.count);
            self.count += 32;
            self.rest = rest;
            return;
        }
        for &byte in self.rest {
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
        self.rest = &[];
    }

    fn skip(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.count -= bits;
    }
}

/// Decodes a string to the start of `out`, overwriting it. `out` grows as needed and never shrinks. Returns
/// the length of the string.
///
/// # Errors
///
/// If the string contains the end-of-string symbol, or if its padding is longer than seven bits or not all
/// ones.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<usize, HpackError> {
    // The shortest code has five bits.
    let most = coded.len() * 8 / 5;
    if out.len() < most {
        out.resize(most, 0);
    }
    let mut slots = out.iter_mut();
    let mut bits = Bits {
        buffer: 0,
        count: 0,
        rest: coded,
    };
    loop {
        bits.refill();
        if bits.count < MAX_CODE_BITS {
            break;
        }
        // The next code is complete.
        while bits.count >= MAX_CODE_BITS {
            let (symbol, length) = symbol(bits.buffer)?;
            bits.skip(length);
            put(&mut slots, symbol);
        }
    }
    last(bits, &mut slots)?;
    let left = slots.len();
    Ok(out.len() - left)
}

/// Decodes the remaining bits, up to the padding.
fn last(mut bits: Bits<'_>, slots: &mut std::slice::IterMut<'_, u8>) -> Result<(), HpackError> {
    loop {
        let window = bits.buffer | u64::MAX >> bits.count;
        let (symbol, length) = match symbol(window) {
            Ok(found) if found.1 <= bits.count => found,
            _ if bits.count < 8 && window == u64::MAX => return Ok(()),
            _ => return Err(HpackError::Huffman),
        };
        bits.skip(length);
        put(slots, symbol);
    }
}

/// The first symbol of `window` and the length of its code; an error if it is the end-of-string symbol.
#[inline]
fn symbol(window: u64) -> Result<(u8, u32), HpackError> {
    let short = CODE.short[usize::from(window.to_be_bytes()[0])];
    if short.bits != 0 {
        return Ok((short.symbol, u32::from(short.bits)));
    }
    let (symbol, length) = CODE.long(window);
    debug_assert!(symbol <= END);
    match u8::try_from(symbol) {
        Ok(symbol) => Ok((symbol, length)),
        Err(_) => Err(HpackError::Huffman),
    }
}

#[inline]
fn put(slots: &mut std::slice::IterMut<'_, u8>, symbol: u8) {
    if let Some(slot) = slots.next() {
        *slot = symbol;
    }
}

/// Encodes a string. Only for tests: the encoder sends no Huffman strings.
#[cfg(test)]
pub(super) fn encode(text: &[u8]) -> Vec<u8> {
    let mut bits = Vec::new();
    for &byte in text {
        let (code, length) = tests::code(u16::from(byte));
        bits.extend((0..length).rev().map(|at| code >> at & 1 == 1));
    }
    bits.resize(bits.len().next_multiple_of(8), true);
    bits.chunks(8)
        .map(|eight| eight.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The code of a symbol, and its length in bits.
    pub(super) fn code(symbol: u16) -> (u32, u32) {
        let length = u32::from(LENGTHS[usize::from(symbol)]);
        let group = CODE.groups[length as usize];
        let at = CODE.ordered.iter().position(|&other| other == symbol).unwrap();
        let code = (group.first >> (32 - length)) + u32::try_from(at - group.at).unwrap();
        (code, length)
    }

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = vec![b'x'; 3];
        let length = decode(coded, &mut out)?;
        out.truncate(length);
        Ok(out)
    }

    #[test]
    fn codes_match_rfc() {
        // Appendix B: one symbol of each length.
        for (symbol, expected) in [
            (u16::from(b'a'), (0x3, 5)),
            (u16::from(b' '), (0x14, 6)),
            (u16::from(b':'), (0x5c, 7)),
            (u16::from(b'Z'), (0xfd, 8)),
            (u16::from(b'?'), (0x3fc, 10)),
            (u16::from(b'|'), (0x7fc, 11)),
            (u16::from(b'>'), (0xffb, 12)),
            (u16::from(b'~'), (0x1ffd, 13)),
            (u16::from(b'}'), (0x3ffd, 14)),
            (u16::from(b'{'), (0x7ffe, 15)),
            (208, (0x7fff2, 19)),
            (130, (0xfffe7, 20)),
            (176, (0x1fffe0, 21)),
            (129, (0x3fffd2, 22)),
            (149, (0x7fffe1, 23)),
            (199, (0x1ffffec, 25)),
            (255, (0x3ffffee, 26)),
            (203, (0x7ffffde, 27)),
            (249, (0xffffffe, 28)),
            (u16::from(b'\n'), (0x3ffffffc, 30)),
            (END, (0x3fffffff, 30)),
        ] {
            assert_eq!(code(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn decodes_rfc_examples() {
        // Appendix C.4.1 and C.6.1.
        let coded = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(decoded(&coded).unwrap(), b"www.example.com");
        assert_eq!(encode(b"www.example.com"), coded);
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn rejects_invalid_padding_and_eos() {
        for coded in [
            // Eight bits of padding, then more.
            &[0xff][..],
            &[0x1f, 0xff],
            &[0xff; 3],
            // The end-of-string symbol: alone, with padding, and before more bits.
            &[0xff, 0xff, 0xff, 0xfc],
            &[0xff; 4],
            &[0xff; 12],
            // `a` padded with zeros, or with a zero among ones.
            &[0x18],
            &[0x1d],
            // A truncated long code.
            &[0xff, 0xc0],
        ] {
            assert_eq!(decoded(coded), Err(HpackError::Huffman), "{coded:x?}");
        }
    }

    proptest! {
        #[test]
        fn strings_round_trip(text: Vec<u8>) {
            prop_assert_eq!(decoded(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn encoding_is_unique(coded: Vec<u8>) {
            if let Ok(text) = decoded(&coded) {
                prop_assert_eq!(encode(&text), coded);
            }
        }
    }
}
