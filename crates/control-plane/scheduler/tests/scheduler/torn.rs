//! A loss of power during a write, or a disk that corrupts it: the last records of the log are not as
//! written.

use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_wire::scheduler::v1::{GetJobRequest, Job};
use prost_types::Any;
use tonic::Code;

use crate::crash::Process;
use crate::running::{app, arguments, client, due, schedule};
use crate::shared::group::App;
use crate::tally::Tally;

const FOLDER: &str = "default-dapr-scheduler-server-0";
const FILE: &str = "jobs.db";
const LOG: &str = "jobs.db-wal";
/// The job of the last write.
const LAST: &str = "last";
/// Stops the scheduler when that write is in the log but not answered: after the 20 jobs before it and the
/// scheduler's announcement, which is a call too.
const FAULT: (&str, &str) = ("OUTRIGGER_SCHEDULER_FAULT", "before a caller is told#22");

/// The files of a scheduler killed right after a write.
struct Left {
    file: Vec<u8>,
    log: Vec<u8>,
    /// Offset of the last write in the log.
    last: usize,
    /// Acknowledged jobs with their due times.
    jobs: Vec<(String, Timestamp)>,
}

/// `is_told` tells whether the last write is answered before the kill.
async fn left(is_told: bool) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let fault: &[(&str, &str)] = if is_told { &[] } else { &[FAULT] };
    let process = Process::start_in(&arguments(folder.path()), fault);
    let mut client = client(&process.address).await;
    let mut jobs = Vec::new();
    for at in 0..20 {
        let (name, time) = (
            format!("job-{at}"),
            Timestamp::now() + Duration::from_millis(500 + 100 * at),
        );
        let request = schedule(&name, app("app"), due(&time.to_string()));
        client.schedule_job(request).await.unwrap();
        jobs.push((name, time));
    }
    let store = folder.path().join(FOLDER);
    let log = store.join(LOG);
    let last = usize::try_from(fs::metadata(&log).unwrap().len()).unwrap();
    let large = Job {
        data: Some(Any {
            value: vec![7; 20_000],
            ..Any::default()
        }),
        ..due("0s")
    };
    let time = Timestamp::now();
    let told = client.schedule_job(schedule(LAST, app("app"), large)).await;
    assert_eq!(told.is_ok(), is_told, "{told:?}");
    if is_told {
        jobs.push((LAST.to_owned(), time));
    }
    drop(process);
    let log = fs::read(log).unwrap();
    assert!(
        log.len() > last + 20_000,
        "the last write is not behind the others"
    );
    Left {
        file: fs::read(store.join(FILE)).unwrap(),
        log,
        last,
        jobs,
    }
}

impl Left {
    /// Offsets in the last write: in its first record, in the middle, and the last byte.
    fn places(&self) -> [usize; 5] {
        let end = self.log.len();
        [
            self.last,
            self.last + 8,
            self.last + 2000,
            (self.last + end) / 2,
            end - 1,
        ]
    }

    /// The log with one byte changed.
    fn changed(&self, place: usize) -> Vec<u8> {
        let mut log = self.log.clone();
        log[place] ^= 1;
        log
    }

    /// Starts a scheduler with this log; returns the fate of acknowledged jobs.
    async fn goes_on(&self, log: &[u8]) -> Tally {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join(FOLDER);
        fs::create_dir(&store).unwrap();
        fs::write(store.join(FILE), &self.file).unwrap();
        fs::write(store.join(LOG), log).unwrap();
        let process = Process::start_with(&arguments(folder.path()));
        let served = App::default();
        let _serving = served.serve(&process.address).await;
        let before = self.jobs.iter().map(|(name, _)| name.clone());
        served.has(before.filter(|name| name != LAST)).await;
        // The write is lost completely or not at all.
        let get = GetJobRequest {
            name: LAST.to_owned(),
            metadata: app("app"),
        };
        let missing = client(&process.address).await.get_job(get).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
        assert!(served.times(LAST).is_empty());
        Tally::of(self.jobs.iter().map(|(name, due)| (name, due)), |name| {
            served.times(name)
        })
    }
}

/// Invariant: a log that ends within a write, as after a loss of power, loses no acknowledged job and
/// triggers none early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torn_write_loses_no_job() {
    let left = left(false).await;
    let mut tally = Tally::default();
    for place in left.places() {
        tally.add(left.goes_on(&left.log[..place]).await);
    }
    tally.report("log torn off in its last write, at five places");
}

/// Invariant: the same if the write's records exist but are corrupted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_write_loses_no_job() {
    let left = left(false).await;
    let mut tally = Tally::default();
    for place in left.places() {
        tally.add(left.goes_on(&left.changed(place)).await);
    }
    tally.report("last write of the log changed, at five places");
}

/// Invariant: if a disk corrupts the last write after it was acknowledged, only that job is lost. A write
/// interrupted by a loss of power looks the same; `storage/embedded/tests/log.rs` tests the log line at
/// start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_write_loses_no_other_job() {
    let left = left(true).await;
    let mut tally = Tally::default();
    let places = left.places();
    for place in places {
        tally.add(left.goes_on(&left.changed(place)).await);
    }
    tally.report_with_lost(
        "last write of the log changed after its answer, at five places",
        places.len(),
    );
}
