//! The report folder: `results.json`, `summary.md`, and the charts in `charts/` as SVG and PNG.
use crate::Failure;
use crate::results::Results;
use std::path::Path;
pub(crate) fn write(results: &Results, output: &Path) -> Result<(), Failure> {
    std::fs::write(output.join("results.json"), serde_json::to_vec_pretty(results)?)?;
    Ok(())
}
pub(crate) fn from_file(results: &Path, output: &Path) -> Result<(), Failure> {
    write(&serde_json::from_slice(&std::fs::read(results)?)?, output)
}
