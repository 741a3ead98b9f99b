//! Damaged bytes in the store's log.

use outrigger_testing::log_lines::Lines;

use super::*;

/// Size of a record with its page in bytes.
const RECORD: usize = 24 + 4096;
const HEAD: usize = 32;
/// Number of jobs in the file, and in the log.
const FILED: usize = 20;
const LOGGED: usize = 10;

/// The file and the log of a killed process.
async fn written() -> (Vec<u8>, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), FILED).await;
    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    loaded(&mut changes).await;
    for at in 0..LOGGED {
        store
            .schedule(format!("app||ns||app||late{at}"), job(100), false)
            .await
            .unwrap();
    }
    let file = location(folder.path()).file();
    let log = file.with_extension("db-wal");
    (std::fs::read(&file).unwrap(), std::fs::read(&log).unwrap())
}

/// The number of jobs readable with this log, and the process log without the folder's name.
async fn opened(main: &[u8], wal: &[u8]) -> (usize, String) {
    let folder = tempfile::tempdir().unwrap();
    let location = location(folder.path());
    std::fs::write(location.file(), main).unwrap();
    std::fs::write(location.file().with_extension("db-wal"), wal).unwrap();
    let lines = Lines::new();
    let (store, mut changes) = Embedded::open(&location).unwrap();
    let warnings = lines.take("dapr.scheduler.storage", tracing::Level::WARN);
    let jobs = loaded(&mut changes).await.len();
    drop(store);
    let logged: String = warnings.into_iter().map(|line| line.message).collect();
    (
        jobs,
        logged.replace(&folder.path().display().to_string(), "FOLDER"),
    )
}

fn changed(wal: &[u8], at: usize) -> Vec<u8> {
    let mut wal = wal.to_vec();
    wal[at] ^= 1;
    wal
}

/// Invariant: a damaged record and all that follow are ignored, and all calls before it are complete. The
/// process log reports records after the damaged one, or damage of the last write.
#[tokio::test]
async fn reports_damaged_log_record() {
    let (main, wal) = written().await;
    let records = (wal.len() - HEAD) / RECORD;
    assert_eq!(wal.len(), HEAD + records * RECORD);
    let begin = |record: usize| HEAD + record * RECORD;
    // The last record of a call has the size of the database in its header.
    let calls = |before: usize| {
        (0..before)
            .filter(|record| wal[begin(*record) + 4..begin(*record) + 8] != [0; 4])
            .count()
    };
    // Opening the file writes once before all calls.
    let opening = calls(records) - LOGGED;
    assert!(opening <= 1, "{opening}");
    assert_eq!(opened(&main, &wal).await, (FILED + LOGGED, String::new()));

    let last = records - 1;
    let ends_call = |record: usize| wal[begin(record) + 4..begin(record) + 8] != [0; 4];
    let start = begin((0..last).rfind(|&record| ends_call(record)).unwrap() + 1);
    // A damaged salt makes the last record look like one of an earlier log, so the report counts the records
    // before it.
    let torn = begin(last) + 100;
    for (what, wal, end) in [
        ("page number", changed(&wal, begin(last)), wal.len()),
        ("salt", changed(&wal, begin(last) + 8), begin(last)),
        ("page", changed(&wal, wal.len() - 1), wal.len()),
        ("end", wal[..torn].to_vec(), torn),
    ] {
        let (jobs, told) = opened(&main, &wal).await;
        assert_eq!(jobs, FILED + LOGGED - 1, "its {what}");
        let expected = match end > start {
            true => format!(
                "the last write in the log FOLDER/jobs.db-wal of the store is incomplete and discarded: {} bytes \
                 from byte {start}",
                end - start
            ),
            false => String::new(),
        };
        assert!(
            told.starts_with(&expected) && told.is_empty() == expected.is_empty(),
            "its {what}: {told:?}"
        );
    }
    let middle = records / 2;
    // Its page number, salt, checksum and page.
    for inside in [0, 8, 16, 24, 4000] {
        let (jobs, logged) = opened(&main, &changed(&wal, begin(middle) + inside)).await;
        assert_eq!(jobs, FILED + calls(middle) - opening, "byte {inside} of it");
        let expected = format!(
            "the log FOLDER/jobs.db-wal of the store has a damaged record at byte {} and {} records after it",
            begin(middle),
            last - middle
        );
        assert!(logged.contains(&expected), "{logged:?}, not {expected:?}");
    }
}

/// Records of an earlier log behind those of the current one are not reported as lost.
#[tokio::test]
async fn ignores_records_of_earlier_log() {
    let (main, wal) = written().await;
    let mut with_old = wal.clone();
    let mut old = wal[HEAD..HEAD + 2 * RECORD].to_vec();
    for record in old.chunks_mut(RECORD) {
        record[8] ^= 1;
    }
    with_old.extend(old);
    assert_eq!(opened(&main, &with_old).await, (FILED + LOGGED, String::new()));
}
