//! Authenticated encryption with AES-CBC and HMAC-SHA-2, RFC 7518 section 5.2.

use aws_lc_rs::{constant_time, hmac};
use outrigger_component::{
    Result,
    crypto::{Sealed, Secret},
};

use super::{
    algorithms::{failed, invalid},
    symmetric::{cbc_decrypt, cbc_encrypt},
};

struct Keys<'a> {
    mac: hmac::Key,
    cipher: &'a [u8],
    tag: usize,
}

impl<'a> Keys<'a> {
    /// `key`: 32, 48 or 64 bytes, the first half for the MAC.
    fn new(key: &'a [u8]) -> Self {
        let tag = key.len() / 2;
        let (mac, cipher) = key.split_at(tag);
        let algorithm = match tag {
            16 => hmac::HMAC_SHA256,
            24 => hmac::HMAC_SHA384,
            _ => hmac::HMAC_SHA512,
        };
        Self {
            mac: hmac::Key::new(algorithm, mac),
            cipher,
            tag,
        }
    }

    fn tag(&self, associated_data: &[u8], iv: &[u8], ciphertext: &[u8]) -> Vec<u8> {
        let bits = (associated_data.len() as u64) << 3;
        let mut context = hmac::Context::with_key(&self.mac);
        for part in [associated_data, iv, ciphertext, &bits.to_be_bytes()] {
            context.update(part);
        }
        context.sign().as_ref()[..self.tag].to_vec()
    }
}

pub(super) fn seal(key: &[u8], plaintext: &[u8], iv: &[u8], associated_data: &[u8]) -> Result<Sealed> {
    let keys = Keys::new(key);
    let ciphertext = cbc_encrypt(keys.cipher, plaintext, iv, true)?;
    let tag = keys.tag(associated_data, iv, &ciphertext);
    Ok(Sealed { ciphertext, tag })
}

pub(super) fn open(key: &[u8], message: &Sealed, iv: &[u8], associated_data: &[u8]) -> Result<Secret> {
    let keys = Keys::new(key);
    if message.tag.len() != keys.tag {
        return Err(invalid("tag"));
    }
    let expected = keys.tag(associated_data, iv, &message.ciphertext);
    constant_time::verify_slices_are_equal(&expected, &message.tag).map_err(|_| failed())?;
    cbc_decrypt(keys.cipher, &message.ciphertext, iv, true)
}
