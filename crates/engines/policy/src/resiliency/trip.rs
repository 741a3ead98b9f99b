//! Trip conditions of circuit breakers: expressions over the breaker's counters.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use cel::{Context, Env, Value};

use crate::expression::{Expression, start};
use crate::routing::Event;

/// Counters of a breaker since the last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls permitted.
    pub requests: u32,
    /// Calls that succeeded.
    pub total_successes: u32,
    /// Calls that failed.
    pub total_failures: u32,
    /// Successes since the last failure.
    pub consecutive_successes: u32,
    /// Failures since the last success.
    pub consecutive_failures: u32,
}

/// Names of the counters in expressions.
const NAMES: [&str; 5] = [
    "requests",
    "totalSuccesses",
    "totalFailures",
    "consecutiveSuccesses",
    "consecutiveFailures",
];

impl Counts {
    const fn values(&self) -> [u32; 5] {
        [
            self.requests,
            self.total_successes,
            self.total_failures,
            self.consecutive_successes,
            self.consecutive_failures,
        ]
    }
}

/// A compiled trip expression.
#[derive(Clone)]
pub struct Trip {
    source: Arc<str>,
    rule: Rule,
}

/// Equality of the text implies equal behavior.
impl PartialEq for Trip {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

#[derive(Clone)]
enum Rule {
    /// One counter compared with a number, the form of nearly every policy.
    Compare {
        counter: usize,
        comparison: Comparison,
        limit: u32,
    },
    /// Any other expression.
    Expression {
        env: Arc<Env>,
        compiled: Arc<Expression>,
    },
}

#[derive(Debug, Clone, Copy)]
enum Comparison {
    Greater,
    GreaterOrEqual,
}

/// An invalid trip expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("trip expression {expression:?} is not valid CEL: {reason}")]
pub struct TripError {
    /// The expression as written, or its start.
    pub expression: String,
    /// The CEL compiler's error.
    pub reason: String,
}

impl Trip {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`TripError`] if it is not valid CEL, or too complex. Unknown names and non-boolean results are
    /// detected at evaluation, and never trip.
    pub fn compile(expression: &str) -> Result<Self, TripError> {
        let source = Arc::from(expression);
        if let Some(rule) = simple(expression) {
            return Ok(Self { source, rule });
        }
        let env = Arc::new(Env::stdlib());
        let compiled = Expression::compile(&env, expression).and_then(|compiled| {
            // Its variables are numbers, so its cost is constant.
            compiled.check(&Event::new())?;
            Ok(Arc::new(compiled))
        });
        match compiled {
            Ok(compiled) => Ok(Self {
                source,
                rule: Rule::Expression { env, compiled },
            }),
            Err(reason) => Err(TripError {
                expression: start(expression).to_owned(),
                reason,
            }),
        }
    }

    /// Trips after more than `limit` consecutive failures.
    pub fn consecutive_failures(limit: u32) -> Self {
        Self {
            source: format!("consecutiveFailures > {limit}").into(),
            rule: Rule::Compare {
                counter: 4,
                comparison: Comparison::Greater,
                limit,
            },
        }
    }

    /// Whether the breaker opens. An expression that fails or is not boolean does not trip.
    pub fn fires(&self, counts: &Counts) -> bool {
        match &self.rule {
            Rule::Compare {
                counter,
                comparison,
                limit,
            } => {
                let value = counts.values()[*counter];
                match comparison {
                    Comparison::Greater => value > *limit,
                    Comparison::GreaterOrEqual => value >= *limit,
                }
            }
            Rule::Expression { env, compiled } => {
                let mut context = Context::with_env(Arc::clone(env));
                for (name, value) in NAMES.into_iter().zip(counts.values()) {
                    context.add_variable_from_value(name, i64::from(value));
                }
                matches!(compiled.program().execute(&context), Ok(Value::Bool(true)))
            }
        }
    }
}

impl Debug for Trip {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trip").field(&self.source).finish()
    }
}

/// Parses `counter > number` and `counter >= number`.
fn simple(expression: &str) -> Option<Rule> {
    let (name, rest) = expression.split_once('>')?;
    let (comparison, limit) = match rest.strip_prefix('=') {
        Some(rest) => (Comparison::GreaterOrEqual, rest),
        None => (Comparison::Greater, rest),
    };
    let counter = NAMES.iter().position(|known| *known == name.trim())?;
    let limit = limit.trim();
    let digits = !limit.is_empty() && limit.bytes().all(|byte| byte.is_ascii_digit());
    let limit = digits.then(|| limit.parse().ok()).flatten()?;
    Some(Rule::Compare {
        counter,
        comparison,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u32, total_failures: u32, consecutive_failures: u32) -> Counts {
        Counts {
            requests,
            total_failures,
            consecutive_failures,
            ..Counts::default()
        }
    }

    #[test]
    fn simple_comparisons_skip_interpreter() {
        for text in ["consecutiveFailures > 5", "requests>=3", "  totalFailures  >  0 "] {
            assert!(
                matches!(Trip::compile(text).unwrap().rule, Rule::Compare { .. }),
                "{text}"
            );
        }
        for text in [
            "requests > 3 && totalFailures > 1",
            "requests > -1",
            "requests > 99999999999",
            "3 > requests",
        ] {
            assert!(
                matches!(Trip::compile(text).unwrap().rule, Rule::Expression { .. }),
                "{text}"
            );
        }
    }

    #[test]
    fn both_evaluators_agree() {
        for (simple, full) in [
            ("consecutiveFailures > 2", "consecutiveFailures > 2 || false"),
            ("requests >= 4", "requests >= 4 || false"),
            ("totalFailures > 3", "totalFailures > 3 || false"),
        ] {
            let (simple, full) = (Trip::compile(simple).unwrap(), Trip::compile(full).unwrap());
            for n in 0..8 {
                let counts = counts(n, n, n);
                assert_eq!(simple.fires(&counts), full.fires(&counts), "{simple:?} at {n}");
            }
        }
    }

    #[test]
    fn a_failure_ratio() {
        let trip = Trip::compile("requests > 9 && totalFailures * 100 / requests >= 50").unwrap();
        assert!(!trip.fires(&counts(9, 9, 9)));
        assert!(!trip.fires(&counts(10, 4, 1)));
        assert!(trip.fires(&counts(10, 5, 1)));
    }

    #[test]
    fn failing_expression_does_not_trip() {
        for text in [
            "unknownCounter > 1",
            "requests + 1",
            "totalFailures / (requests - requests) > 0",
        ] {
            assert!(!Trip::compile(text).unwrap().fires(&counts(9, 9, 9)), "{text}");
        }
        assert!(Trip::compile("requests >").is_err());
    }
}
