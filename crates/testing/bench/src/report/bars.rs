//! Bars: groups of them side by side, or parts on top of each other.

use super::axis::{Axis, BOTTOM, Kind, LEFT, RIGHT};
use super::figure::{Anchor, FAINT, Figure, INK};
use super::number::short;

/// Values by category; the same categories for each series. A value that was not measured leaves a gap.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) values: Vec<Option<f64>>,
}

pub(super) struct Bars {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// What is measured, and its unit.
    pub(super) label: String,
    pub(super) categories: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) kind: Kind,
    /// Where bars begin, when not at the bottom.
    pub(super) from: Option<f64>,
}

impl Bars {
    /// Bars of a category side by side.
    pub(super) fn grouped(self) -> Figure {
        let values = self
            .series
            .iter()
            .flat_map(|series| series.values.iter().flatten().copied());
        let axis = Axis::over(self.kind, values.chain(self.from));
        let mut figure = self.frame(&axis);
        let base = self.from.map_or(BOTTOM, |value| axis.y(value));
        let slot = (RIGHT - LEFT) / self.categories.len().max(1) as f64;
        let bar = (slot * 0.78 / self.series.len().max(1) as f64).min(70.0);
        let size = if bar < 34.0 { 10.5 } else { 12.0 };
        for (at, _) in self.categories.iter().enumerate() {
            let group = bar * self.series.len() as f64;
            let mut x = LEFT + slot * (at as f64 + 0.5) - group / 2.0;
            for series in &self.series {
                if let Some(value) = series.values.get(at).copied().flatten() {
                    let y = axis.y(value);
                    let (top, height) = (y.min(base), (base - y).abs().max(1.0));
                    figure.rect(x + 1.5, top, bar - 3.0, height, series.colour);
                    let beyond = if y > base { y + 14.0 } else { y - 5.0 };
                    figure.text(x + bar / 2.0, beyond, size, INK, Anchor::Middle, &short(value));
                }
                x += bar;
            }
        }
        if self.from.is_some() {
            figure.line((LEFT, base), (RIGHT, base), FAINT, 1.0);
        }
        figure
    }

    /// A bar per category, the series its parts from the bottom up.
    pub(super) fn stacked(self) -> Figure {
        let sums: Vec<f64> = (0..self.categories.len())
            .map(|at| {
                self.series
                    .iter()
                    .filter_map(|series| series.values.get(at).copied().flatten())
                    .sum()
            })
            .collect();
        let axis = Axis::over(Kind::Linear, sums.iter().copied());
        let mut figure = self.frame(&axis);
        let slot = (RIGHT - LEFT) / self.categories.len().max(1) as f64;
        let bar = (slot * 0.5).min(110.0);
        for (at, sum) in sums.iter().enumerate() {
            let middle = LEFT + slot * (at as f64 + 0.5);
            let mut below = 0.0;
            for series in &self.series {
                let value = series.values.get(at).copied().flatten().unwrap_or_default();
                let (from, to) = (axis.y(below), axis.y(below + value));
                figure.rect(middle - bar / 2.0, to, bar, from - to, series.colour);
                if from - to > 16.0 {
                    let y = f64::midpoint(from, to) + 4.0;
                    figure.text(middle, y, 12.0, "#ffffff", Anchor::Middle, &short(value));
                }
                below += value;
            }
            figure.text(
                middle,
                axis.y(*sum) - 6.0,
                13.0,
                INK,
                Anchor::Middle,
                &short(*sum),
            );
        }
        figure
    }

    fn frame(&self, axis: &Axis) -> Figure {
        let mut figure = Figure::new(&self.title, &self.subtitle);
        let entries: Vec<_> = self
            .series
            .iter()
            .map(|series| (series.name.clone(), series.colour))
            .collect();
        figure.legend(&entries);
        axis.draw_vertical(&mut figure, &self.label);
        let slot = (RIGHT - LEFT) / self.categories.len().max(1) as f64;
        for (at, name) in self.categories.iter().enumerate() {
            figure.text(
                LEFT + slot * (at as f64 + 0.5),
                BOTTOM + 23.0,
                13.5,
                INK,
                Anchor::Middle,
                name,
            );
        }
        figure
    }
}
