//! What a fault did to jobs, counted and printed in the form of the table in `conformance/evidence.md`.

use std::time::Duration;

use jiff::Timestamp;

/// A job that comes this long after its time is late.
const LATE: Duration = Duration::from_millis(100);

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    acknowledged: usize,
    fired: usize,
    late: usize,
    lost: usize,
    early: usize,
}

impl Tally {
    /// Of acknowledged jobs with one tick each, and when that was due. `times`: when it came.
    pub(crate) fn of<'a>(
        jobs: impl IntoIterator<Item = (&'a String, &'a Timestamp)>,
        times: impl Fn(&str) -> Vec<Timestamp>,
    ) -> Self {
        let mut tally = Self::default();
        for (name, due) in jobs {
            let times = times(name);
            tally.acknowledged += 1;
            tally.fired += times.len();
            tally.early += times.iter().filter(|time| *time < due).count();
            match times.iter().min() {
                None => tally.lost += 1,
                Some(first) => tally.late += usize::from(*first > *due + LATE),
            }
        }
        tally
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.fired += other.fired;
        self.late += other.late;
        self.lost += other.lost;
        self.early += other.early;
    }

    /// Prints it. No job may be lost or early, whatever the fault.
    pub(crate) fn report(self, fault: &str) {
        self.report_with_lost(fault, 0);
    }

    /// Prints it where a fault takes just so many jobs along that no store of one disk could keep.
    pub(crate) fn report_with_lost(self, fault: &str, gone: usize) {
        let Self {
            acknowledged,
            fired,
            late,
            lost,
            early,
        } = self;
        println!(
            "tally | {fault} | acknowledged {acknowledged} | fired {fired} | late {late} | lost {lost} | early {early}"
        );
        assert!(acknowledged > 0, "{fault}: nothing was tried");
        assert_eq!((lost, early), (gone, 0), "{fault}");
    }
}
