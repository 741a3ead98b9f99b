//! Runs every fuzz target on its corpus (`fuzz/corpus/TARGET`) and on mutated inputs, which are
//! deterministic, within a time limit. A failing input is written to a file that should be added to the
//! corpus.
//!
//! The sources of the targets are shared with `cargo fuzz`; here this crate replaces `libfuzzer_sys`.

// Elsewhere each target is a separate program.
#![allow(unused_attributes, unused_imports)]

extern crate self as libfuzzer_sys;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Seconds per target; the variable of this name overrides the default.
const SECONDS: (&str, u64) = ("FUZZ_SECONDS", 4);
/// Maximum number of mutated inputs: on an idle machine every run tries the same ones.
const ROUNDS: u64 = 20_000;
/// Maximum size of an input in bytes.
const MAX_INPUT: usize = 4096;

/// Defines a target's `run(&[u8])`, which parses its input from bytes like `libfuzzer_sys`.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub(crate) fn run($input: &[u8]) {
            $body
        }
    };
    (|$input:ident: $type:ty| $body:expr) => {
        pub(crate) fn run(bytes: &[u8]) {
            let bytes = arbitrary::Unstructured::new(bytes);
            if let Ok($input) = <$type as arbitrary::Arbitrary<'_>>::arbitrary_take_rest(bytes) {
                $body
            }
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/targets.rs"));

fn replay(name: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fuzz/corpus")
        .join(name);
    let corpus = corpus(&folder);
    for (file, input) in &corpus {
        attempt(name, run, input, &file.display().to_string());
    }
    let seconds = std::env::var(SECONDS.0).ok().and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(SECONDS.1));
    let started = Instant::now();
    let mut random = Random(0x5eed);
    for round in 0..ROUNDS {
        if started.elapsed() > limit {
            break;
        }
        let (file, input) = &corpus[random.below(corpus.len())];
        let changed = change(input, &corpus, &mut random);
        attempt(
            name,
            run,
            &changed,
            &format!("round {round}, from {}", file.display()),
        );
    }
}

fn corpus(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| {
        panic!(
            "a target has a corpus, if only of one file: {}: {error}",
            folder.display()
        )
    });
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let read = |file: PathBuf| {
        let input = std::fs::read(&file).unwrap();
        (file, input)
    };
    files.into_iter().map(read).collect()
}

/// Runs one input, and saves it if it fails.
fn attempt(name: &str, run: fn(&[u8]), input: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| run(input))).is_err() {
        let file = std::env::temp_dir().join(format!("{name}-failed"));
        std::fs::write(&file, input).unwrap();
        panic!(
            "{name} fails for {what}: the input is {}; fix the bug and add the input to fuzz/corpus/{name}",
            file.display()
        );
    }
}

/// The splitmix64 generator, which is deterministic on all platforms.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }

    fn byte(&mut self) -> u8 {
        const EDGES: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'/', b'.', b'%', b'"', b'{', b'[', b'\n'];
        let any = self.next() as u8;
        if any.is_multiple_of(2) {
            EDGES[self.below(EDGES.len())]
        } else {
            any
        }
    }

    /// A range of `length` bytes, of up to 64.
    fn part(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        start..(start + self.below(64)).min(length)
    }
}

/// The input with one to four mutations.
fn change(input: &[u8], corpus: &[(PathBuf, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..=random.below(4) {
        let part = random.part(input.len());
        let at = random.below(input.len());
        match random.below(7) {
            0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !input.is_empty() => input[at] = random.byte(),
            2 => input.insert(part.start, random.byte()),
            3 => drop(input.drain(part)),
            4 => {
                let copy = input[part].to_vec();
                input.splice(at..at, copy);
            }
            5 => {
                let (_, other) = &corpus[random.below(corpus.len())];
                let other = other[random.part(other.len())].to_vec();
                input.splice(part, other);
            }
            _ => input.truncate(part.start),
        }
        input.truncate(MAX_INPUT);
    }
    input
}

#[test]
fn mutations_are_deterministic() {
    let corpus = vec![
        (PathBuf::new(), b"some input".to_vec()),
        (PathBuf::new(), Vec::new()),
    ];
    let all = || {
        let mut random = Random(1);
        (0..1000)
            .map(|_| change(b"some input", &corpus, &mut random))
            .collect::<Vec<_>>()
    };
    let changed = all();
    assert_eq!(changed, all());
    assert!(changed.iter().any(|c| c.len() > 10) && changed.iter().any(Vec::is_empty));
}
