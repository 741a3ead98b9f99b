//! A loss of power in a write, or a disk that changes it: what is left of the log's last records is not what was written.

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
/// The job of the last write, which nobody was told of.
const LAST: &str = "last";

/// What a scheduler leaves that is killed in a write.
struct Left {
    file: Vec<u8>,
    log: Vec<u8>,
    /// Where the last write begins in the log.
    last: usize,
    /// Those that were acknowledged before, and when they are due.
    jobs: Vec<(String, Timestamp)>,
}

async fn left() -> Left {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start_with(&arguments(folder.path()));
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
    client
        .schedule_job(schedule(LAST, app("app"), large))
        .await
        .unwrap();
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
    /// Some bytes of the last write: in its first record, in the middle, and the last one.
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

    /// Starts a scheduler with this log; what became of the jobs that were acknowledged.
    async fn goes_on(&self, log: &[u8]) -> Tally {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join(FOLDER);
        fs::create_dir(&store).unwrap();
        fs::write(store.join(FILE), &self.file).unwrap();
        fs::write(store.join(LOG), log).unwrap();
        let process = Process::start_with(&arguments(folder.path()));
        let served = App::default();
        let _serving = served.serve(&process.address).await;
        served.has(self.jobs.iter().map(|(name, _)| name.clone())).await;
        // All of it is gone, or nothing.
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

/// Invariant: a log that ends in the middle of a write, as a loss of power leaves it, loses no job that was acknowledged before,
/// and triggers none early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_torn_off_takes_no_job_along() {
    let left = left().await;
    let mut tally = Tally::default();
    for place in left.places() {
        tally.add(left.goes_on(&left.log[..place]).await);
    }
    tally.told("log torn off in its last write, at five places");
}

/// Invariant: the same where records of that write are there, but are not what was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_changed_takes_no_job_along() {
    let left = left().await;
    let mut tally = Tally::default();
    for place in left.places() {
        let mut log = left.log.clone();
        log[place] ^= 1;
        tally.add(left.goes_on(&log).await);
    }
    tally.told("last write of the log changed, at five places");
}
