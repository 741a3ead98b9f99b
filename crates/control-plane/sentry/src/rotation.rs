//! Replacing the CA that sentry made by the next one, in time and without a moment in which somebody is not believed.
//!
//! Root and issuer are made anew together, because nobody keeps the key of a root. The order is what makes it safe:
//!
//! 1. *normal*: one CA, until a third of its life is left.
//! 2. *announced*: the next CA exists, its root stands beside the old one in `ca.crt`, the old issuer signs. Whoever
//!    renews a certificate, follows the file, or starts, learns the new root.
//! 3. *switched*: the next issuer signs, both roots are trusted. Certificates of the old issuer run out.
//! 4. The old root is dropped: normal again.
//!
//! The decisions stand here, without I/O; [`record`] has what is stored, and how it is changed.

mod record;

use std::fmt;
use std::str::FromStr;

use outrigger_controlplane::config::unknown;
use outrigger_identity::SpiffeId;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::contents::Contents;
use crate::material::File;
use crate::x509::GenerateError;

use record::{Record, chain_life};

/// The part of a CA's life that is left when the next one is announced.
const LEAD_PART: i32 = 3;
/// The same in steps, where certificates live long.
const LEAD_STEPS: i32 = 8;
/// How many steps each of the two overlaps takes at least. A replica of sentry notices within a part of a step what
/// another one wrote, and gives away the bundle it has until then; that bundle, or that certificate, is in use for one
/// step more.
const OVERLAP_STEPS: i32 = 2;
/// Steps before the end of the old CA from which on sentry shows no certificates of it: one more than the old root is
/// dropped before, and one for the certificate that is in use by then.
const SHOWN_STEPS: i32 = 3;
/// A CA that does not live this many steps is not rotated: the next would be announced before this one is done with.
const LIFE_STEPS: i32 = 16;
/// How often a replica looks, in parts of a step, and the bounds of that.
const POLLS_PER_STEP: u32 = 8;
const POLL_INTERVAL: (std::time::Duration, std::time::Duration) = (
    std::time::Duration::from_millis(500),
    std::time::Duration::from_secs(60 * 60),
);

/// Which CAs are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationMode {
    /// Those that this sentry made, and recorded as made.
    Own,
    /// Also those that look as if a sentry had made them: Dapr's, or ours before there was a record.
    Adopt,
    /// None.
    Off,
}

impl FromStr for RotationMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "own" => Ok(Self::Own),
            "adopt" => Ok(Self::Adopt),
            "off" => Ok(Self::Off),
            other => Err(unknown(other, &["own", "adopt", "off"])),
        }
    }
}

/// When the validity of something begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub from: OffsetDateTime,
    pub until: OffsetDateTime,
}

/// How far a rotation is. `since`: when everything that a phase begins with was seen to be in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Normal,
    Announced { since: Option<OffsetDateTime> },
    Switched { since: Option<OffsetDateTime> },
}

/// One step of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotationStep {
    /// Make the next CA, and let its root be trusted.
    Announce,
    /// Note that what the phase begins with is in place.
    Confirm,
    /// Let the next issuer sign.
    Switch,
    /// Stop trusting the old root.
    Retire,
    /// Let the next issuer sign, made just now if need be: the one that signs has expired.
    Renew,
}

/// The longest that anything is in use which this sentry gives away: lifetime of workload certificates and the
/// tolerated difference of clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    step: Duration,
}

impl Terms {
    pub(crate) fn new(ttl: std::time::Duration, skew: std::time::Duration) -> Self {
        let step = Duration::try_from(ttl.saturating_add(skew)).unwrap_or(Duration::MAX);
        // A lifetime of zero is none to divide by.
        Self {
            step: step.max(Duration::SECOND),
        }
    }

    /// Whether a CA lives long enough for this.
    fn suits(self, life: Life) -> bool {
        self.step <= (life.until - life.from) / LIFE_STEPS
    }

    /// What comes next and when. `life` is that of the CA that is to be replaced.
    pub(crate) fn next(self, phase: Phase, life: Life) -> (RotationStep, OffsetDateTime) {
        let overlap = self.step.saturating_mul(OVERLAP_STEPS);
        match phase {
            Phase::Normal => {
                let lead = (life.until - life.from) / LEAD_PART;
                let lead = lead.max(self.step.saturating_mul(LEAD_STEPS));
                (RotationStep::Announce, life.until.saturating_sub(lead))
            }
            Phase::Announced { since: None } | Phase::Switched { since: None } => {
                (RotationStep::Confirm, OffsetDateTime::UNIX_EPOCH)
            }
            // Half of what is left goes to those who learn of a root when they are started again.
            Phase::Announced { since: Some(since) } => {
                let middle = since + (life.until - since) / 2;
                let due = since.saturating_add(overlap).max(middle);
                // What has expired protects nobody.
                (RotationStep::Switch, due.min(life.until.max(since)))
            }
            // Sentry itself is known by the old root for as long as that is valid.
            Phase::Switched { since: Some(since) } => {
                let end = life.until.saturating_sub(self.step);
                (RotationStep::Retire, since.saturating_add(overlap).max(end))
            }
        }
    }

    /// Whether sentry still shows certificates of the CA before, which ends then. It stops by the clock and not when the
    /// old root is dropped: a replica may not have heard of that, and others no longer believe it.
    pub(crate) fn shows_previous(self, until: OffsetDateTime, now: OffsetDateTime) -> bool {
        until > now.saturating_add(self.step.saturating_mul(SHOWN_STEPS))
    }

    /// How often to look whether something is due, or was done by another replica.
    pub(crate) fn look(self) -> std::time::Duration {
        let step = std::time::Duration::try_from(self.step).unwrap_or_default();
        (step / POLLS_PER_STEP).clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }
}

/// Where the rotation of a CA stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It is turned off.
    Off,
    /// The CA was not made by this sentry.
    Foreign,
    /// Certificates live too long for the CA.
    LifetimesTooLong,
    /// It goes on.
    On {
        phase: Phase,
        /// What comes next, and when.
        next: (RotationStep, OffsetDateTime),
    },
}

impl Status {
    /// The value of the metric: 0 is not rotated.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Off | Self::Foreign | Self::LifetimesTooLong => 0,
            Self::On { phase, .. } => match phase {
                Phase::Normal => 1,
                Phase::Announced { .. } => 2,
                Phase::Switched { .. } => 3,
            },
        }
    }

    /// When the next step is due, in seconds since 1970; 0 when there is none.
    pub(crate) fn due(self) -> i64 {
        match self {
            Self::On { next: (_, due), .. } => due.unix_timestamp(),
            _ => 0,
        }
    }
}

/// For the log and for the annotation of the Secret.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, (_, due)) = match self {
            Self::Off => return f.write_str("off: --ca-rotation=off"),
            Self::Foreign => return f.write_str("off: the CA was not made by this sentry"),
            Self::LifetimesTooLong => return f.write_str("off: workloadCertTTL is too long for the CA"),
            Self::On { phase, next } => (phase, next),
        };
        let due = due.format(&Rfc3339).unwrap_or_default();
        match phase {
            Phase::Normal => write!(f, "normal: the next CA is announced at {due}"),
            Phase::Announced { since: None } => f.write_str("announced: the new root is being distributed"),
            Phase::Announced { .. } => {
                write!(
                    f,
                    "announced: both roots are trusted, the new issuer signs from {due} on"
                )
            }
            Phase::Switched { since: None } => f.write_str("switched: the new issuer is being put in place"),
            Phase::Switched { .. } => {
                write!(
                    f,
                    "switched: the new issuer signs, the old root is trusted until {due}"
                )
            }
        }
    }
}

/// Rotates one CA.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    pub mode: RotationMode,
    pub terms: Terms,
    /// Who makes the next CA.
    pub sentry: SpiffeId,
    /// How far back its validity starts.
    pub skew: Duration,
}

/// What [`Rotation::advance`] did.
#[derive(Debug)]
pub(crate) struct Advanced {
    /// Where the rotation stands now.
    pub status: Status,
    /// What was done, if anything.
    pub step: Option<RotationStep>,
    /// Files that changed, in the order in which they are to be written: after any of them the rest can be made up for.
    pub changed: Vec<File>,
    /// Whether the files are not what the rotation needs, and were left alone: it is off.
    pub left: bool,
}

impl Rotation {
    /// Takes the step that is due, and makes up for one that a crash interrupted. `settled`: `contents` are stored, in
    /// use and published just as they are. Turned off, it does no more than finish what was interrupted.
    ///
    /// # Errors
    /// When the next CA cannot be made.
    pub(crate) fn advance(
        &self,
        contents: &mut Contents,
        now: OffsetDateTime,
        settled: bool,
    ) -> Result<Advanced, GenerateError> {
        let Some(mut record) = Record::of(contents, self) else {
            return Ok(Advanced::idle(self.without_record()));
        };
        let Some(status) = self.status(&record, contents) else {
            return Ok(Advanced::idle(Status::Foreign));
        };
        let due = match status {
            Status::On {
                next: (step, due), ..
            } if due <= now => Some(step),
            Status::Off if record.is_unconfirmed() => Some(RotationStep::Confirm),
            _ => None,
        };
        if self.mode == RotationMode::Off && due.is_none() {
            // Whoever put them there turned the rotation off before.
            let left = !record.clone().repair(&mut contents.clone()).is_empty();
            return Ok(Advanced {
                left,
                ..Advanced::idle(status)
            });
        }
        // Not before it is retired: that would bring the old root back.
        let mut changed = match due {
            Some(RotationStep::Retire) if !record.has_previous_back(contents) => Vec::new(),
            _ => record.repair(contents),
        };
        let step = due.filter(|step| *step != RotationStep::Confirm || settled && changed.is_empty());
        let mut step = step.filter(|_| changed.is_empty());
        if self.mode != RotationMode::Off && has_expired(contents, now) {
            step = Some(RotationStep::Renew);
        }
        if let Some(step) = step {
            changed = match step {
                RotationStep::Announce => record.announce(contents, self, now)?,
                RotationStep::Confirm => record.confirm(contents, now),
                RotationStep::Switch => record.switch(contents),
                RotationStep::Retire => record.retire(contents),
                RotationStep::Renew => record.renew(contents, self, now)?,
            };
        }
        let status = self.status(&record, contents).unwrap_or(Status::Foreign);
        Ok(Advanced {
            status,
            step,
            changed,
            left: false,
        })
    }

    /// The record of a CA that was just made.
    pub(crate) fn begin(issuer: &[u8]) -> Vec<u8> {
        Record::new(issuer).write()
    }

    fn without_record(&self) -> Status {
        match self.mode {
            RotationMode::Off => Status::Off,
            RotationMode::Own | RotationMode::Adopt => Status::Foreign,
        }
    }

    /// Where it stands; `None` for contents that make no CA.
    fn status(&self, record: &Record, contents: &Contents) -> Option<Status> {
        let life = match record.previous() {
            Some(previous) => previous.life()?,
            None => chain_life(contents.get(File::Root)?, contents.get(File::Issuer)?)?,
        };
        if self.mode == RotationMode::Off {
            return Some(Status::Off);
        }
        let phase = record.phase();
        if phase == Phase::Normal && !self.terms.suits(life) {
            return Some(Status::LifetimesTooLong);
        }
        Some(Status::On {
            phase,
            next: self.terms.next(phase, life),
        })
    }
}

impl Advanced {
    fn idle(status: Status) -> Self {
        Self {
            status,
            step: None,
            changed: Vec::new(),
            left: false,
        }
    }
}

/// Whether nobody believes what the CA signs any more.
fn has_expired(contents: &Contents, now: OffsetDateTime) -> bool {
    let life = || chain_life(contents.get(File::Root)?, contents.get(File::Issuer)?);
    life().is_some_and(|life| now > life.until)
}

pub(crate) use record::previous;

#[cfg(test)]
mod tests;
