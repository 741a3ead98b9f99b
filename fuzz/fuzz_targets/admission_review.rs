//! Reviews of pods from the API server: no input panics, patches can be applied, and a patched pod has one sidecar.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_injector::fuzzing::review(body));
