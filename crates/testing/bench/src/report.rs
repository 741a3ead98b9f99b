//! The report folder: `results.json`, `summary.md`, and the charts in `charts/PROTOCOL/` as SVG and PNG.

use std::path::Path;

use crate::Failure;
use crate::results::{ProtocolResults, Results, SCHEMA};

mod axis;
mod bars;
mod charts;
mod figure;
mod lines;
mod number;
mod overview;
mod ratios;
mod summary;
mod tables;
mod targets;

use figure::Rasteriser;

/// Writes everything into a folder, which is made if need be.
///
/// # Errors
///
/// When a file cannot be written, or a chart cannot be drawn.
pub(crate) fn write(results: &Results, output: &Path) -> Result<(), Failure> {
    page(results, output)?;
    let rasteriser = Rasteriser::new();
    for found in &results.protocols {
        draw(results, found, output, &rasteriser)?;
    }
    Ok(())
}

/// Writes the page, and the charts of the protocol that was measured last.
///
/// # Errors
///
/// As [`write`].
pub(crate) fn add(results: &Results, output: &Path) -> Result<(), Failure> {
    page(results, output)?;
    match results.protocols.last() {
        Some(found) => draw(results, found, output, &Rasteriser::new()),
        None => Ok(()),
    }
}

fn page(results: &Results, output: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(output)?;
    std::fs::write(output.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(output.join("summary.md"), summary::markdown(results))?;
    Ok(())
}

/// The charts of a protocol, and those that compare it with others of its kind.
fn draw(
    results: &Results,
    found: &ProtocolResults,
    output: &Path,
    rasteriser: &Rasteriser,
) -> Result<(), Failure> {
    let charts = output.join("charts");
    save(
        charts::all(results, found),
        &charts.join(found.protocol.name()),
        rasteriser,
    )?;
    if let Some(call) = found.protocol.state() {
        let folder = charts.join(overview::folder(call.store));
        save(overview::charts(results, call.store), &folder, rasteriser)?;
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

/// Writes the report of a run again.
///
/// # Errors
///
/// When the results cannot be read, or are of another version of this program.
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
    write(&results, output)?;
    println!("the report is {}", output.join("summary.md").display());
    Ok(())
}

#[cfg(test)]
mod tests;
