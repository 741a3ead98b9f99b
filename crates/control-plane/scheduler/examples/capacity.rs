//! Capacity of a scheduler with the embedded store on this machine: durable writes of 64 callers, memory per
//! job and start time with 10,000, 100,000 and 1,000,000 jobs, and the lateness of 1,000 triggers per second.
//!
//!     cargo build --release -p outrigger-scheduler
//!     cargo run --release -p outrigger-scheduler --example capacity [--repeats N] [FOLDER [MAX]]
//!
//! FOLDER is on the disk to measure (default: the temporary folder); MAX limits the number of jobs. With
//! `--repeats`, one scheduler runs N rounds of triggers and of overwrites; later rounds must not be slower
//! than earlier ones.
#![allow(clippy::unwrap_used, reason = "a tool for developers: what fails is shown")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_wire::scheduler::v1::scheduler_client::SchedulerClient;
use outrigger_wire::scheduler::v1::{
    Job, JobMetadata, JobTargetMetadata, ScheduleJobRequest, TargetJob, WatchJobsRequest,
    WatchJobsRequestInitial, WatchJobsRequestResult, job_target_metadata::Type,
    watch_jobs_request::WatchJobRequestType,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

const CALLERS: usize = 64;
const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
/// Triggers per second, and duration in seconds.
const RATE: usize = 1000;
const SECONDS: usize = 10;
/// Jobs stored by each round of `--repeats`.
const ROUND: usize = 10_000;

/// A scheduler process.
struct Process {
    child: Child,
    port: u16,
    health: u16,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let [port, health] = [0; 2].map(|_: u16| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        });
        let child = Command::new(program())
            .args([
                "--listen-address=127.0.0.1",
                "--enable-metrics=false",
                "--etcd-client-port=0",
            ])
            .arg(format!("--port={port}"))
            .arg(format!("--healthz-port={health}"))
            .arg(format!("--etcd-data-dir={}", folder.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port, health }
    }

    /// Waits until all jobs are loaded; returns the time that took.
    async fn ready(&self) -> Duration {
        let begun = Instant::now();
        while !healthy(self.health).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        begun.elapsed()
    }

    async fn client(&self) -> SchedulerClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://127.0.0.1:{}", self.port)).unwrap();
        SchedulerClient::new(endpoint.connect().await.unwrap())
    }

    /// Resident memory in bytes.
    fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    /// Processor time used.
    fn processor(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        let _ = self.child.wait();
    }
}

/// The scheduler binary built with this example.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("scheduler");
    assert!(program.exists(), "build {} first", program.display());
    program
}

async fn healthy(port: u16) -> bool {
    let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
        return false;
    };
    let request = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).await.is_ok()
        && stream.read_to_string(&mut answer).await.is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

fn request(name: String, due: String, overwrite: bool) -> ScheduleJobRequest {
    ScheduleJobRequest {
        name,
        job: Some(Job {
            due_time: Some(due),
            ..Job::default()
        }),
        overwrite,
        metadata: Some(JobMetadata {
            app_id: "app".to_owned(),
            namespace: "default".to_owned(),
            target: Some(JobTargetMetadata {
                r#type: Some(Type::Job(TargetJob {})),
            }),
            concurrency_key: None,
        }),
    }
}

/// Schedules jobs up to this number; returns the calls per second.
async fn fill(process: &Process, from: usize, to: usize, overwrite: bool) -> f64 {
    let next = Arc::new(AtomicUsize::new(from));
    let begun = Instant::now();
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let (mut client, next) = (process.client().await, Arc::clone(&next));
        callers.push(tokio::spawn(async move {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= to {
                    return;
                }
                let request = request(format!("job-{at:07}"), "24h".to_owned(), overwrite);
                client.schedule_job(request).await.unwrap();
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    (to - from) as f64 / begun.elapsed().as_secs_f64()
}

/// The lateness of triggers in milliseconds, ascending.
async fn lateness(process: &Process) -> Vec<f64> {
    let count = RATE * SECONDS;
    let mut client = process.client().await;
    let (answers, messages) = mpsc::unbounded_channel();
    let send = |message| {
        answers
            .send(WatchJobsRequest {
                watch_job_request_type: Some(message),
            })
            .unwrap();
    };
    send(WatchJobRequestType::Initial(WatchJobsRequestInitial {
        app_id: "app".to_owned(),
        namespace: "default".to_owned(),
        ..WatchJobsRequestInitial::default()
    }));
    let stream = UnboundedReceiverStream::new(messages);
    let mut triggers = client.watch_jobs(stream).await.unwrap().into_inner();

    // Stored before the first is due.
    let begin = Timestamp::now() + Duration::from_secs(30);
    let due = move |at: usize| begin + Duration::from_micros((at * 1_000_000 / RATE) as u64);
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let mut client = process.client().await;
        callers.push(tokio::spawn(async move {
            for at in (caller..count).step_by(CALLERS) {
                let request = request(format!("due-{at}"), due(at).to_string(), false);
                client.schedule_job(request).await.unwrap();
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(Timestamp::now() < begin, "the machine is too slow for this");
    let mut late = Vec::with_capacity(count);
    while late.len() < count {
        let trigger = triggers.message().await.unwrap().unwrap();
        let now = Timestamp::now();
        send(WatchJobRequestType::Result(WatchJobsRequestResult {
            id: trigger.id,
            status: 0,
        }));
        let at: usize = trigger.name.strip_prefix("due-").unwrap().parse().unwrap();
        late.push(now.duration_since(due(at)).as_secs_f64() * 1000.0);
    }
    late.sort_unstable_by(f64::total_cmp);
    late
}

/// Repeats the measurements at one scheduler; prints each round, and the last compared with the first.
async fn repeat(folder: &Path, rounds: usize) {
    let mut rates = Vec::with_capacity(rounds);
    let mut tails = Vec::with_capacity(rounds);
    let process = Process::start(folder);
    process.ready().await;
    fill(&process, 0, ROUND, true).await;
    for round in 1..=rounds {
        let rate = fill(&process, 0, ROUND, true).await;
        let late = lateness(&process).await;
        let (median, tail) = (late[late.len() / 2], late[late.len() * 99 / 100]);
        println!(
            "round {round} of {rounds}: {rate:.0} durable writes a second; late by {median:.1} ms at the median, {tail:.1} ms at \
             p99; {:.1} MB resident",
            process.memory() as f64 / 1e6
        );
        rates.push(rate);
        tails.push(tail);
    }
    if let ([first, .., last], [early, .., late]) = (&rates[..], &tails[..]) {
        println!(
            "{rounds} rounds: the last stored {:.0} % of what the first did, and was late by {late:.1} ms at p99 after {early:.1} ms",
            last / first * 100.0
        );
    }
}

/// Parses `--repeats N`, FOLDER and MAX.
fn arguments() -> (usize, Option<String>, usize) {
    let mut given: Vec<String> = std::env::args().skip(1).collect();
    let mut repeats = 0;
    if let Some(at) = given.iter().position(|argument| argument == "--repeats") {
        repeats = given[at + 1].parse().unwrap();
        given.drain(at..=at + 1);
    }
    let mut given = given.into_iter();
    let folder = given.next();
    let most = given.next().map_or(usize::MAX, |most| most.parse().unwrap());
    (repeats, folder, most)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let (repeats, folder, most) = arguments();
    let folder = match folder {
        Some(folder) => tempfile::tempdir_in(folder).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    if repeats > 0 {
        return repeat(folder.path(), repeats).await;
    }
    let process = Process::start(folder.path());
    process.ready().await;
    let empty = process.memory();
    println!("idle: {:.1} MB resident", empty as f64 / 1e6);
    let late = lateness(&process).await;
    println!(
        "{RATE} triggers a second for {SECONDS} s: late by {:.1} ms at the median, {:.1} ms at p99, {:.1} ms at most",
        late[late.len() / 2],
        late[late.len() * 99 / 100],
        late[late.len() - 1]
    );
    drop(process);

    let mut there = 0;
    for size in SIZES.into_iter().filter(|size| *size <= most) {
        let process = Process::start(folder.path());
        process.ready().await;
        let before = process.processor();
        let rate = fill(&process, there, size, false).await;
        let spent = (process.processor() - before).as_secs_f64() * 1e6 / (size - there) as f64;
        there = size;
        drop(process);
        let process = Process::start(folder.path());
        let start = process.ready().await;
        let each = process.memory().saturating_sub(empty) / size;
        println!(
            "{size} jobs: {rate:.0} durable writes a second by {CALLERS} callers ({spent:.0} us of processor each); \
             start in {:.2} s; {each} bytes of memory each",
            start.as_secs_f64()
        );
    }
}
