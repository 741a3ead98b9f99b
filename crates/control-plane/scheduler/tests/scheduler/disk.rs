//! A disk that corrupts bytes, and a full disk. With a full disk, acknowledged jobs are kept, refused ones
//! are absent, and the store recovers once there is space.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_wire::scheduler::v1::{DeleteJobRequest, GetJobRequest, Job};
use prost_types::Any;
use tonic::Code;

use crate::running::{Sidecar, app, arguments, client, due, schedule, start, until};
use crate::tally::Tally;

/// Mounts a disk of $1 MiB with a file of 512 KiB at $0, then runs the remaining command twice in sequence.
const RUN: &str = r#"mount -t tmpfs -o size="$1"m none "$0" && head -c 524288 /dev/zero > "$0/ballast" || exit 1
shift
"$@" &
echo "pid $!"
wait $!
exec "$@""#;

/// Two consecutive runs of a scheduler on a private disk. They end on drop.
struct Runs {
    shell: Child,
    lines: Lines<BufReader<ChildStdout>>,
    first: Option<u32>,
}

impl Runs {
    /// `None` if the kernel does not allow the mount.
    fn start(folder: &Path, size: u32) -> Option<Self> {
        let private = ["--mount", "--user", "--map-root-user"];
        let able = |flags: &[&str]| {
            let mount = ["sh", "-c", "mount -t tmpfs none /mnt"];
            let tried = Command::new("unshare").args(flags).args(mount).output();
            tried.is_ok_and(|tried| tried.status.success())
        };
        let Some(flags) = [&private[..1], &private[..]]
            .into_iter()
            .find(|flags| able(flags))
        else {
            outrigger_testing::skip::skip_optional("no file system can be mounted here");
            return None;
        };
        let mut shell = Command::new("unshare")
            .args(flags)
            .args(["sh", "-c", RUN])
            .arg(folder)
            .arg(size.to_string())
            .arg(env!("CARGO_BIN_EXE_scheduler"))
            .args(arguments(folder))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let mut runs = Self {
            shell,
            lines,
            first: None,
        };
        runs.first = Some(runs.behind("pid ").parse().unwrap());
        Some(runs)
    }

    /// The rest of the next line that contains `text`, after it.
    fn behind(&mut self, text: &str) -> String {
        let line = self.lines.by_ref().map(Result::unwrap);
        let line = line.into_iter().find(|line| line.contains(text));
        let line = line.unwrap_or_else(|| panic!("the process ended without {text:?}"));
        line.split_once(text).unwrap().1.to_owned()
    }

    fn address(&mut self) -> String {
        let behind = self.behind("Running gRPC server on ");
        behind.split('"').next().unwrap().to_owned()
    }

    /// The path of a file on the disk.
    fn path(&self, file: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.first.unwrap());
        Path::new(&root).join(file.strip_prefix("/").unwrap())
    }

    /// The same after the end of the first run; the second one replaces the shell.
    fn second_path(&self, file: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.shell.id());
        Path::new(&root).join(file.strip_prefix("/").unwrap())
    }

    /// Kills the first run.
    fn kill_first(&mut self) {
        if let Some(id) = self.first.take() {
            let sent = Command::new("kill").args(["-KILL", &id.to_string()]).status();
            assert!(sent.unwrap().success());
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        // The shell first, because it would start the second run.
        let _ended = self.shell.kill();
        self.kill_first();
        self.shell.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_keeps_acknowledged_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut runs) = Runs::start(folder.path(), 2) else {
        return;
    };
    let mut scheduler = client(runs.address()).await;
    let large = || Job {
        data: Some(Any {
            value: vec![7; 20_000],
            ..Any::default()
        }),
        ..due("1h")
    };
    let begun = Timestamp::now();
    let mut soon = Vec::new();
    for at in 0..20_u32 {
        let (name, due_at) = (format!("soon-{at}"), begun + Duration::from_millis(200) * at);
        let request = schedule(&name, app("soon"), due(&due_at.to_string()));
        scheduler.schedule_job(request).await.unwrap();
        soon.push((name, due_at));
    }
    let mut stored = Vec::new();
    let refused = loop {
        let name = format!("job-{}", stored.len());
        let request = schedule(&name, app("app"), large());
        match scheduler.schedule_job(request).await {
            Ok(_) => stored.push(name),
            Err(status) => break status,
        }
        assert!(stored.len() < 1000, "the disk never became full");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("the store is full"), "{refused}");
    let get = |name: &str| GetJobRequest {
        name: name.to_owned(),
        metadata: app("app"),
    };
    let missing = format!("job-{}", stored.len());
    assert!(scheduler.get_job(get(&missing)).await.is_err());
    assert!(scheduler.get_job(get(&stored[0])).await.is_ok(), "it can be read");

    fs::remove_file(runs.path(&folder.path().join("ballast"))).unwrap();
    let request = schedule("after", app("app"), due("1h"));
    scheduler.schedule_job(request).await.unwrap();
    stored.push("after".to_owned());

    runs.kill_first();
    let mut scheduler = client(runs.address()).await;
    for name in &stored {
        scheduler.get_job(get(name)).await.unwrap();
    }
    assert!(scheduler.get_job(get(&missing)).await.is_err());

    let mut sidecar = Sidecar::connect(&mut scheduler, "soon", &[]).await;
    let mut times = HashMap::<String, Vec<Timestamp>>::new();
    for _ in &soon {
        let trigger = sidecar.next().await;
        sidecar.succeed(trigger.id);
        times.entry(trigger.name).or_default().push(Timestamp::now());
    }
    let soon = soon.iter().map(|(name, due)| (name, due));
    Tally::of(soon, |name| times.get(name).cloned().unwrap_or_default()).report("full disk, and a kill");
}

/// Regression: on a full disk deletions failed, and a killed scheduler did not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_allows_reads_and_deletions() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut runs) = Runs::start(folder.path(), 24) else {
        return;
    };
    let mut scheduler = client(runs.address()).await;
    for at in 0..40 {
        let job = Job {
            data: Some(Any {
                value: vec![7; 20_000],
                ..Any::default()
            }),
            ..due("1h")
        };
        let request = schedule(&format!("job-{at}"), app("app"), job);
        scheduler.schedule_job(request).await.unwrap();
    }
    let filler = runs.path(&folder.path().join("filler"));
    let filled = fs::write(&filler, vec![1; 32 << 20]).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    for run in 0..2 {
        if run == 1 {
            runs.kill_first();
            scheduler = client(runs.address()).await;
        }
        let refused = loop {
            let name = format!("more-{run}-{}", rand::random::<u32>());
            let job = Job {
                data: Some(Any {
                    value: vec![7; 100_000],
                    ..Any::default()
                }),
                ..due("1h")
            };
            if let Err(refused) = scheduler.schedule_job(schedule(&name, app("app"), job)).await {
                break refused;
            }
        };
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("the store is full"), "{refused}");
        for at in run * 20..run * 20 + 20 {
            let name = format!("job-{at}");
            let get = GetJobRequest {
                name: name.clone(),
                metadata: app("app"),
            };
            scheduler.get_job(get.clone()).await.unwrap();
            let delete = DeleteJobRequest {
                name,
                metadata: app("app"),
            };
            scheduler.delete_job(delete).await.unwrap();
            assert_eq!(scheduler.get_job(get).await.unwrap_err().code(), Code::NotFound);
        }
    }
    // The mount of the second run; that of the first is gone.
    let again = schedule("again", app("app"), due("1h"));
    assert!(scheduler.schedule_job(again.clone()).await.is_err());
    fs::remove_file(runs.second_path(&folder.path().join("filler"))).unwrap();
    until("new jobs are accepted", || {
        let (mut scheduler, again) = (scheduler.clone(), again.clone());
        async move { scheduler.schedule_job(again).await.is_ok() }
    })
    .await;
}

/// Invariant: a corrupted job is neither returned nor triggered, and other jobs due with it are triggered.
#[tokio::test]
async fn damaged_job_blocks_no_other() {
    let running = start().await;
    let mut client = running.client().await;
    for name in ["a", "damaged", "z"] {
        let job = schedule(name, app("app"), due("1s"));
        client.schedule_job(job).await.unwrap();
    }
    let key = "dapr/jobs/app||ns||app||damaged".as_bytes();
    let changed = rusqlite::Connection::open(running.store())
        .unwrap()
        .execute(
            "UPDATE pairs SET value = CAST(value || x'00' AS BLOB) WHERE key = ?1",
            [key],
        )
        .unwrap();
    assert_eq!(changed, 1);
    let get = GetJobRequest {
        name: "damaged".to_owned(),
        metadata: app("app"),
    };
    let error = client.get_job(get).await.unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    assert!(error.message().contains("app||ns||app||damaged"), "{error}");
    assert!(error.message().contains("--restore-from"), "{error}");
    // They are due by now and arrive together.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut sidecar = Sidecar::connect(&mut client, "app", &[]).await;
    let mut came = [sidecar.next().await.name, sidecar.next().await.name];
    came.sort();
    assert_eq!(came, ["a", "z"]);
}
