//! Series of values as grouped bars, stacked bars, or lines.

use super::axis::{Axis, BOTTOM, Kind, LEFT, RIGHT};
use super::figure::{FAINT, Figure, INK, MIDDLE};
use super::number::short;
use crate::plan::System;

pub(super) struct Series<T> {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) values: Vec<T>,
}

impl<T> Series<T> {
    pub(super) fn of(system: System, values: Vec<T>) -> Self {
        Self {
            name: system.title().to_owned(),
            colour: colour(system),
            values,
        }
    }
}

pub(super) fn colour(system: System) -> &'static str {
    match system {
        System::Direct => "#9aa5b1",
        System::Outrigger => "#0b7a75",
        System::Reference => "#d9822b",
        System::Envoy => "#b5367a",
        System::Nginx => "#5b5bd6",
    }
}

/// `T` is a number for stacked bars, an optional number for grouped bars, or a point for lines.
pub(super) struct Plot<T> {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// The unit of the vertical axis.
    pub(super) label: &'static str,
    pub(super) kind: Kind,
    pub(super) series: Vec<Series<T>>,
}

impl<T> Plot<T> {
    fn head(&self) -> Figure {
        let mut figure = Figure::new(&self.title, &self.subtitle);
        figure.legend(self.series.iter().map(|series| (&*series.name, series.colour)));
        figure
    }

    /// A figure with the vertical axis and category labels, and the center of each category.
    fn columns(&self, axis: &Axis, categories: &[String]) -> (Figure, Vec<f64>) {
        let mut figure = self.head();
        axis.draw_vertical(&mut figure, self.label);
        let slot = slot(categories);
        let middles = (0..categories.len()).map(|at| LEFT + slot * (at as f64 + 0.5));
        let middles: Vec<f64> = middles.collect();
        for (name, middle) in categories.iter().zip(&middles) {
            figure.text((*middle, BOTTOM + 23.0), 13.5, INK, MIDDLE, name);
        }
        (figure, middles)
    }
}

/// The width of a category.
fn slot(categories: &[String]) -> f64 {
    (RIGHT - LEFT) / categories.len().max(1) as f64
}

impl Plot<Option<f64>> {
    /// Draws grouped bars, up or down from `base`, or from the bottom. Returns `None` if there are no
    /// values.
    pub(super) fn grouped(mut self, categories: &[String], base: Option<f64>) -> Option<Figure> {
        // A series or category without values would only take space.
        self.series
            .retain(|series| series.values.iter().any(Option::is_some));
        if self.series.is_empty() {
            return None;
        }
        let measured = |at: &usize| self.series.iter().any(|series| series.values[*at].is_some());
        let kept: Vec<usize> = (0..categories.len()).filter(measured).collect();
        let categories: Vec<String> = kept.iter().map(|at| categories[*at].clone()).collect();
        for series in &mut self.series {
            series.values = kept.iter().map(|at| series.values[*at]).collect();
        }
        let values = self.series.iter().flat_map(|series| &series.values);
        // Bars that point down have their labels below.
        let room = if base.is_some() { 0.94 } else { 1.0 };
        let lowest = values.clone().map(|value| value.map(|value| value * room));
        let axis = Axis::over(self.kind, values.copied().chain(lowest).chain([base]).flatten());
        let (mut figure, middles) = self.columns(&axis, &categories);
        let bottom = base.map_or(BOTTOM, |value| axis.y(value));
        let bars = self.series.len() as f64;
        let bar = (slot(&categories) * 0.78 / bars).min(70.0);
        let size = if bar < 34.0 { 10.5 } else { 12.0 };
        for (at, middle) in middles.into_iter().enumerate() {
            let mut x = middle - bar * bars / 2.0;
            for series in &self.series {
                if let Some(value) = series.values.get(at).copied().flatten() {
                    let y = axis.y(value);
                    let height = (bottom - y).abs().max(1.0);
                    figure.rect(x + 1.5, y.min(bottom), bar - 3.0, height, series.colour);
                    let beyond = if y > bottom { y + 14.0 } else { y - 5.0 };
                    figure.text((x + bar / 2.0, beyond), size, INK, MIDDLE, &short(value));
                }
                x += bar;
            }
        }
        if base.is_some() {
            figure.line((LEFT, bottom), (RIGHT, bottom), FAINT);
        }
        Some(figure)
    }
}

impl Plot<f64> {
    /// Draws one bar per category, stacked from the bottom, with the sum above.
    pub(super) fn stacked(self, categories: &[String]) -> Figure {
        let parts = |at: usize| self.series.iter().filter_map(move |series| series.values.get(at));
        let sums = (0..categories.len()).map(|at| parts(at).sum::<f64>());
        let axis = Axis::over(self.kind, sums);
        let (mut figure, middles) = self.columns(&axis, categories);
        let bar = (slot(categories) * 0.5).min(110.0);
        for (at, middle) in middles.into_iter().enumerate() {
            let mut sum = 0.0;
            for (value, series) in parts(at).zip(&self.series) {
                let (from, to) = (axis.y(sum), axis.y(sum + value));
                figure.rect(middle - bar / 2.0, to, bar, from - to, series.colour);
                if from - to > 16.0 {
                    let y = f64::midpoint(from, to) + 4.0;
                    figure.text((middle, y), 12.0, "#ffffff", MIDDLE, &short(*value));
                }
                sum += value;
            }
            figure.text((middle, axis.y(sum) - 6.0), 13.0, INK, MIDDLE, &short(sum));
        }
        figure
    }
}

impl Plot<(f64, f64)> {
    /// Draws lines over a logarithmic axis, optionally with dots. Marks replace the ticks of the horizontal
    /// axis. Returns `None` if there are no points.
    pub(super) fn lines(mut self, label: &str, marks: &[(f64, String)], dots: bool) -> Option<Figure> {
        self.series.retain(|series| !series.values.is_empty());
        if self.series.is_empty() {
            return None;
        }
        let points = || self.series.iter().flat_map(|series| &series.values);
        let across = points().map(|point| point.0);
        let x = Axis::over(Kind::Log, across.chain(marks.iter().map(|mark| mark.0)));
        let y = Axis::over(self.kind, points().map(|point| point.1));
        let mut figure = self.head();
        x.draw_horizontal(&mut figure, label, marks);
        y.draw_vertical(&mut figure, self.label);
        for series in &self.series {
            let shown = |point: &&(f64, f64)| self.kind == Kind::Linear || point.1 > 0.0;
            let places = series.values.iter().filter(shown);
            let places: Vec<_> = places.map(|point| (x.x(point.0), y.y(point.1))).collect();
            figure.path(&places, series.colour);
            for (across, down) in places.into_iter().filter(|_| dots) {
                figure.dot(across, down, series.colour);
            }
        }
        Some(figure)
    }
}
