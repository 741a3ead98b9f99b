//! The report directory: `results.json`, `summary.md`, and the charts in `charts/PROTOCOL/` as SVG and PNG.

use std::path::Path;

use crate::Failure;
use crate::plan::StateCall;
use crate::results::{ProtocolResults, Results, SCHEMA};

mod axis;
mod charts;
mod figure;
mod number;
mod overview;
mod plot;
mod ratios;
mod summary;
mod tables;
mod targets;

use figure::Rasteriser;

/// Writes the page and the charts of the last measured protocol to a directory, which is created.
///
/// # Errors
///
/// If a file cannot be written, or a chart cannot be drawn.
pub(crate) fn add(results: &Results, output: &Path) -> Result<(), Failure> {
    write(results, results.protocols.last(), output)
}

/// Writes the page, the charts of some protocols, and the charts that compare them.
fn write<'a>(
    results: &Results,
    drawn: impl IntoIterator<Item = &'a ProtocolResults>,
    output: &Path,
) -> Result<(), Failure> {
    std::fs::create_dir_all(output)?;
    std::fs::write(output.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(output.join("summary.md"), summary::markdown(results))?;
    let rasteriser = Rasteriser::new();
    for found in drawn {
        let mut folders = vec![(found.protocol.name(), charts::all(results, found))];
        if let Some(StateCall { store, .. }) = found.protocol.state() {
            folders.push((overview::folder(store), overview::charts(results, store)));
        }
        for (folder, charts) in folders {
            save(charts, &output.join("charts").join(folder), &rasteriser)?;
        }
    }
    Ok(())
}

fn save(
    charts: Vec<(&'static str, figure::Figure)>,
    folder: &Path,
    rasteriser: &Rasteriser,
) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)?;
    for (name, figure) in charts {
        let svg = figure.into_svg();
        std::fs::write(folder.join(format!("{name}.png")), rasteriser.png(&svg)?)?;
        std::fs::write(folder.join(format!("{name}.svg")), svg)?;
    }
    Ok(())
}

/// Rewrites the report of a run.
///
/// # Errors
///
/// If the results cannot be read, or have another version.
pub(crate) fn from_file(file: &Path, output: &Path) -> Result<(), Failure> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let results: Results =
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    if results.schema != SCHEMA {
        let message = format!(
            "{} has layout {}, this program reads {SCHEMA}",
            file.display(),
            results.schema
        );
        return Err(message.into());
    }
    write(&results, &results.protocols, output)?;
    println!("the report is {}", output.join("summary.md").display());
    Ok(())
}

#[cfg(test)]
mod tests;
