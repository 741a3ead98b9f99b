//! Runs this program again: under callgrind for instructions, without for allocations.

use std::path::Path;
use std::process::{Command, Output};

use crate::Failure;
use crate::call_path::Kind;

/// Instructions and allocations per call.
pub(crate) fn count(kind: Kind, calls: usize) -> Result<(f64, f64), Failure> {
    let program = std::env::current_exe()?;
    let dir = tempfile::tempdir()?;
    let profile = dir.path().join("callgrind.out");
    let mut callgrind = Command::new("valgrind");
    callgrind
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*outrigger_cost*measured*",
        ])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(&program);
    run(&mut callgrind, kind, calls).map_err(|error| {
        format!("{error}\nvalgrind counts the instructions: apt-get update && apt-get install valgrind")
    })?;
    let instructions = total(&profile)? as f64 / calls as f64;
    let output = run(&mut Command::new(&program), kind, calls)?;
    let allocations = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok((instructions, allocations))
}

fn run(command: &mut Command, kind: Kind, calls: usize) -> Result<Output, Failure> {
    command
        .arg(format!("--measure={}", kind.name()))
        .arg(format!("--calls={calls}"));
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} ended with {}: {}", output.status, text.trim()).into());
    }
    Ok(output)
}

/// The total at the end of a profile.
fn total(profile: &Path) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(profile)?;
    total_of(&text).ok_or_else(|| "callgrind wrote no totals, or counted nothing".into())
}

fn total_of(profile: &str) -> Option<u64> {
    let line = profile.lines().rev().find_map(|line| {
        line.strip_prefix("totals:")
            .or_else(|| line.strip_prefix("summary:"))
    })?;
    line.split_whitespace()
        .next()?
        .parse()
        .ok()
        .filter(|total| *total > 0)
}

#[cfg(test)]
mod tests {
    use super::total_of;

    #[test]
    fn reads_totals_line() {
        assert_eq!(total_of("events: Ir\nfn=x\n1 2\ntotals: 1234\n"), Some(1234));
        assert_eq!(total_of("events: Ir\ntotals: 0\n"), None);
        assert_eq!(total_of("events: Ir\n"), None);
    }
}
