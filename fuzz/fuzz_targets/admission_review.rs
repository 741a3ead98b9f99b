//! Admission reviews of pods: no input panics, patches apply, and a patched pod has one sidecar.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_injector::fuzzing::review(body));
