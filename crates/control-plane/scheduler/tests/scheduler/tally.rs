//! Counts the effects of a fault on jobs, and prints them like the table in `docs/reference/scheduler.md`.

use std::time::Duration;

use jiff::Timestamp;

/// A job triggered later than this counts as late.
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
    /// Counts acknowledged single-trigger jobs with their due times; `times` has the actual times.
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

    /// Prints the counts. No job may be lost or early, whatever the fault.
    pub(crate) fn report(self, fault: &str) {
        self.report_with_lost(fault, 0);
    }

    /// Prints the counts of a fault that necessarily loses `gone` jobs on any single-disk store.
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
        assert!(acknowledged > 0, "{fault}: no job was acknowledged");
        assert_eq!((lost, early), (gone, 0), "{fault}");
    }
}
