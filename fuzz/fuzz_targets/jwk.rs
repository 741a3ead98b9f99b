//! JSON Web Keys, single and in sets: no input panics, and the public half of an accepted key is accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| outrigger_components_crypto::fuzz_jwk(text));
