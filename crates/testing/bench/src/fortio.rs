//! Fortio as the load generator of the rounds: Dapr's published figures use Fortio.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use crate::Failure;
use crate::load::{Load, Pace, Record, Wire};
use crate::procfs::Watched;
use crate::results::Measurement;

/// The parsed fields of Fortio's report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    duration_histogram: DurationHistogram,
    ret_codes: std::collections::BTreeMap<String, u64>,
    /// Nanoseconds.
    actual_duration: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DurationHistogram {
    count: u64,
    /// Seconds.
    min: f64,
    max: f64,
    avg: f64,
    #[serde(default)]
    data: Vec<Bucket>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Bucket {
    start: f64,
    end: f64,
    count: u64,
}

/// Runs a load at a fixed rate with Fortio. Unlike our loads, its latency excludes the time that a call is
/// delayed by a late response.
///
/// # Errors
///
/// If Fortio is missing, fails, or cannot make the call.
pub(crate) async fn run(
    fortio: &Path,
    load: &Load,
    callee: Option<&str>,
    watched: &Watched,
) -> Result<(Measurement, Record), Failure> {
    let Pace::Open { qps, requests } = load.pace else {
        return Err("Fortio drives fixed rates only".into());
    };
    let mut command = Command::new(fortio);
    command.args([
        "load",
        "-quiet",
        "-json",
        "-",
        "-uniform",
        "-nocatchup=false",
        "-r",
        "0.00001",
        "-p",
        "50,75,90,95,99,99.9",
        "-qps",
        &qps.to_string(),
        "-n",
        &requests.to_string(),
        "-c",
        &load.connections.to_string(),
    ]);
    command.args(["-payload-size", &load.call.payload.to_string()]);
    match load.call.wire {
        Wire::Http1 => {
            command.arg(format!("http://{}{}", load.call.address, load.call.path()));
        }
        Wire::Grpc => {
            command.args(["-grpc", "-ping"]);
            if let Some(id) = callee {
                command.args(["-H", &format!("dapr-app-id:{id}")]);
            }
            command.arg(load.call.address.to_string());
        }
        Wire::Driver(_) => return Err("Fortio speaks HTTP and gRPC only".into()),
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let child = command
        .spawn()
        .map_err(|error| format!("cannot start Fortio ({}): {error}", fortio.display()))?;
    let watched = watched.clone();
    let before = watched.cpu();
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        return Err(format!(
            "Fortio failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
        .into());
    }
    let report: Report = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the report of Fortio cannot be read: {error}"))?;
    let record = record_of(&report);
    let mut latency = record.latencies();
    latency.mean = report.duration_histogram.avg * 1e6;
    latency.min = report.duration_histogram.min * 1e6;
    latency.max = report.duration_histogram.max * 1e6;
    let payload = load.call.payload as u64 * report.duration_histogram.count;
    let measurement = Measurement {
        driver: "fortio".to_owned(),
        requested_qps: Some(qps),
        connections: load.connections,
        payload: load.call.payload,
        planned: requests,
        requests: record.answered(),
        errors: record.errors().clone(),
        requested_seconds: requests as f64 / qps,
        seconds: Duration::from_nanos(report.actual_duration).as_secs_f64(),
        latency,
        payload_sent: payload,
        payload_received: payload,
        cpu: watched.cpu_since(&before),
        resident: watched.resident(),
        ..Measurement::default()
    };
    Ok((measurement, record))
}

/// The calls, each at the middle of its bucket.
fn record_of(report: &Report) -> Record {
    let mut record = Record::new();
    let failed: u64 = report
        .ret_codes
        .iter()
        .filter(|(code, _)| !(code.starts_with('2') || *code == "SERVING" || *code == "OK"))
        .map(|(code, count)| {
            record.fail(&format!("status {code}"), *count);
            *count
        })
        .sum();
    // Fortio's histogram includes failed calls, which are subtracted from its buckets.
    let mut off = failed;
    for bucket in &report.duration_histogram.data {
        let taken = off.min(bucket.count);
        off -= taken;
        let middle = Duration::from_secs_f64(f64::midpoint(bucket.start, bucket.end).max(0.0));
        record.answered_in(middle, bucket.count - taken);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::{Report, record_of};

    #[test]
    fn converts_report_to_record() {
        let report: Report = serde_json::from_str(
            r#"{"RunType": "HTTP", "ActualDuration": 1000000000, "RetCodes": {"200": 9, "503": 1},
                "DurationHistogram": {"Count": 10, "Min": 0.001, "Max": 0.004, "Avg": 0.002, "Data": [
                  {"Start": 0.001, "End": 0.002, "Percent": 60, "Count": 6},
                  {"Start": 0.003, "End": 0.004, "Percent": 100, "Count": 4}]}}"#,
        )
        .unwrap();
        let record = record_of(&report);
        assert_eq!((record.answered(), record.failed()), (9, 1));
        let latency = record.latencies();
        assert!((1_490.0..1_510.0).contains(&latency.p50), "{latency:?}");
    }
}
