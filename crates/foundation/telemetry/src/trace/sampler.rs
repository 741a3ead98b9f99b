//! Sampling decisions for traces.

use std::fmt;

use super::TraceContext;

/// Parent-based sampler: a request with a parent follows its flag; a new trace is sampled by its trace ID.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    rate: f64,
    /// Traces whose low 63 random bits are below this bound are sampled.
    bound: u64,
}

/// The rate for an empty or invalid `samplingRate`.
const DEFAULT_RATE: f64 = 1e-4;

impl Sampler {
    /// `rate` is between 0 (no new trace) and 1 (every trace).
    pub fn new(rate: f64) -> Self {
        let rate = if rate.is_nan() { DEFAULT_RATE } else { rate };
        // The cast saturates: negative rates become 0.
        let bound = if rate >= 1.0 {
            u64::MAX
        } else {
            (rate * (1u64 << 63) as f64) as u64
        };
        Self { rate, bound }
    }

    /// Parses the text of `samplingRate`: 0.0001 if it is not a number.
    pub fn parse(text: &str) -> Self {
        Self::new(text.parse().unwrap_or(DEFAULT_RATE))
    }

    /// True if no new trace is ever sampled.
    pub fn is_off(self) -> bool {
        self.bound == 0
    }

    /// The decision for a request.
    pub fn samples(self, trace_id: &[u8; 16], parent: Option<TraceContext>) -> bool {
        match parent {
            Some(parent) => parent.is_sampled(),
            None => self.ratio(trace_id),
        }
    }

    /// The arithmetic of OpenTelemetry Go's ratio sampler, so that both implementations decide alike.
    fn ratio(self, trace_id: &[u8; 16]) -> bool {
        let mut low = [0; 8];
        low.copy_from_slice(&trace_id[8..]);
        (u64::from_be_bytes(low) >> 1) < self.bound
    }
}

/// The description logged at startup.
impl fmt::Display for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParentBased{root:")?;
        if self.rate >= 1.0 {
            f.write_str("AlwaysOnSampler")?;
        } else {
            write!(
                f,
                "TraceIDRatioBased{{{}}}",
                crate::metrics::go_float(self.rate.max(0.0))
            )?;
        }
        f.write_str(
            ",remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,\
             localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler}",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(low: u64) -> [u8; 16] {
        let mut id = [0xab; 16];
        id[8..].copy_from_slice(&low.to_be_bytes());
        id
    }

    #[test]
    fn ratio_boundaries() {
        let half = Sampler::new(0.5);
        assert!(half.samples(&id(0), None));
        assert!(half.samples(&id(0x7fff_ffff_ffff_ffff), None));
        assert!(!half.samples(&id(0x8000_0000_0000_0000), None));
        let rare = Sampler::parse("0.0001");
        // 0.0001 * 2^63 = 922337203685477.58, so the first unsampled value is twice its integer part plus two.
        assert!(rare.samples(&id(922_337_203_685_476 * 2 + 1), None));
        assert!(!rare.samples(&id(922_337_203_685_477 * 2), None));
        assert!(Sampler::new(1.0).samples(&id(u64::MAX), None));
        assert!(!Sampler::new(0.0).samples(&id(0), None));
        assert!(!Sampler::new(-1.0).samples(&id(0), None));
    }

    #[test]
    fn invalid_rate_means_default() {
        assert_eq!(Sampler::parse(""), Sampler::new(DEFAULT_RATE));
        assert_eq!(Sampler::parse("often"), Sampler::new(DEFAULT_RATE));
        assert!(Sampler::parse("0").is_off() && Sampler::parse("0.0").is_off());
    }

    #[test]
    fn follows_parent_flag() {
        let mut parent = TraceContext::random();
        assert!(!Sampler::new(1.0).samples(&parent.trace_id, Some(parent)));
        parent.flags = 1;
        assert!(Sampler::new(0.0).samples(&parent.trace_id, Some(parent)));
    }

    #[test]
    fn description() {
        assert!(
            Sampler::new(1.0)
                .to_string()
                .starts_with("ParentBased{root:AlwaysOnSampler,")
        );
        assert!(
            Sampler::parse("")
                .to_string()
                .starts_with("ParentBased{root:TraceIDRatioBased{0.0001},")
        );
    }
}
