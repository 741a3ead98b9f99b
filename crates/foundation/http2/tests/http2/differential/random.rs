//! Random valid conversations, each from a seed.

use super::assert_same;
use super::server::differ;
use super::wire::{END, data, frame, headers, post, reset, setting, window};

/// A deterministic random number generator (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// A request whose body is not complete.
struct Open {
    stream: u32,
    /// Bytes that its windows still allow.
    left: usize,
}

const PATHS: [&str; 6] = ["/echo", "/echo", "/hang", "/early", "/large", "/fail"];

fn conversation(seed: u64) -> Vec<Vec<u8>> {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    // A large connection window: the sender chooses which streams share a small one.
    let mut script = vec![window(0, 4 << 20)];
    let (mut open, mut next) = (Vec::<Open>::new(), 1);
    for _ in 0..5 + numbers.below(30) {
        let input = match numbers.below(10) {
            0..3 if next < 15 => {
                let stream = next;
                next += 2;
                let path = format!("{}-{stream}", PATHS[numbers.below(PATHS.len())]);
                let ended = numbers.below(3) == 0;
                if !ended {
                    open.push(Open { stream, left: 3000 });
                }
                post(
                    stream,
                    &path,
                    if ended { END } else { 0 },
                    &[("x-n", &seed.to_string())],
                )
            }
            3..6 if !open.is_empty() => {
                let at = numbers.below(open.len());
                let size = numbers.below(open[at].left.min(700) + 1);
                open[at].left -= size;
                let ended = size == 0 || numbers.below(3) == 0;
                let stream = if ended {
                    open.swap_remove(at).stream
                } else {
                    open[at].stream
                };
                data(stream, if ended { END } else { 0 }, &vec![b'x'; size])
            }
            6 if !open.is_empty() => {
                let at = numbers.below(open.len());
                headers(open.swap_remove(at).stream, END, &[("x-t", "1")])
            }
            7 if !open.is_empty() => {
                let at = numbers.below(open.len());
                reset(
                    open.swap_remove(at).stream,
                    u32::try_from(numbers.below(14)).unwrap(),
                )
            }
            8 => match numbers.below(4) {
                0 => frame(6, 0, 0, &seed.to_be_bytes()),
                1 => frame(2, 0, 1, &[0, 0, 0, 0, 1]),
                2 => frame(0xab, 0, 0, b"anything"),
                _ => setting(4, u32::try_from(numbers.below(100_000)).unwrap()),
            },
            _ => window(0, 1 + u32::try_from(numbers.below(50_000)).unwrap()),
        };
        script.push(input);
    }
    script
}

#[test]
fn random_conversations_agree() {
    assert_same((0..300).map(|seed| differ(&format!("conversation {seed}"), &conversation(seed), &[])));
}
