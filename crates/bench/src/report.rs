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
mod ratios;
mod summary;
mod targets;

use figure::Rasteriser;

/// Writes everything into a folder, which is made if need be.
///
/// # Errors
///
/// When a file cannot be written, or a chart cannot be drawn.
pub(crate) fn write(results: &Results, output: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(output)?;
    std::fs::write(output.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    std::fs::write(output.join("summary.md"), summary::markdown(results))?;
    let rasteriser = Rasteriser::new();
    for found in &results.protocols {
        let folder = output.join("charts").join(found.protocol.name());
        std::fs::create_dir_all(&folder)?;
        for (name, figure) in charts::all(results, found) {
            let svg = figure.into_svg();
            std::fs::write(folder.join(format!("{name}.png")), rasteriser.png(&svg)?)?;
            std::fs::write(folder.join(format!("{name}.svg")), svg)?;
        }
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
