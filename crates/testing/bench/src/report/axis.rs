//! Mapping of values to positions in the plot.

use super::figure::{END, FAINT, Figure, GRID, HEIGHT, INK, MIDDLE, WIDTH};
use super::number::tick;

/// Position of the axes.
pub(super) const LEFT: f64 = 96.0;
pub(super) const RIGHT: f64 = WIDTH - 32.0;
pub(super) const TOP: f64 = 118.0;
pub(super) const BOTTOM: f64 = HEIGHT - 62.0;
/// Maximum steps of a linear axis.
const STEPS: f64 = 6.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Starts at zero.
    Linear,
    /// Ends at 1 or 3 times a power of ten.
    Log,
}

#[derive(Debug)]
pub(super) struct Axis {
    kind: Kind,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis that contains all values. A logarithmic axis ignores non-positive values.
    pub(super) fn over(kind: Kind, values: impl Iterator<Item = f64>) -> Self {
        let (smallest, largest) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0), |(low, high), value| {
                (value.min(low), value.max(high))
            });
        match kind {
            Kind::Linear => Self::linear(if largest > 0.0 { largest } else { 1.0 }),
            Kind::Log if largest > 0.0 => Self::log(smallest, largest),
            Kind::Log => Self::log(1.0, 10.0),
        }
    }

    fn linear(largest: f64) -> Self {
        // 1, 2 or 5 times a power of ten.
        let power = 10_f64.powf((largest / STEPS).log10().floor());
        let step = [1.0, 2.0, 5.0]
            .map(|part| part * power)
            .into_iter()
            .find(|step| largest / step <= STEPS + 1e-9)
            .unwrap_or(power * 10.0);
        let steps = (largest / step).ceil();
        Self {
            kind: Kind::Linear,
            low: 0.0,
            high: steps * step,
            ticks: (0..=steps as u32).map(|at| f64::from(at) * step).collect(),
        }
    }

    /// Counts in half decades: an even number is a power of ten, an odd one three times that.
    fn log(smallest: f64, largest: f64) -> Self {
        let value = |half: i32| 10_f64.powi(half.div_euclid(2)) * [1.0, 3.0][half.rem_euclid(2) as usize];
        let first = (smallest.log10() * 2.0).floor() as i32;
        let last = ((largest.log10() * 2.0).ceil() as i32).max(first + 1);
        let wide = (last + 1).div_euclid(2) - first.div_euclid(2) > 4;
        Self {
            kind: Kind::Log,
            low: value(first),
            high: value(last),
            ticks: (first..=last)
                .filter(|half| !wide || half % 2 == 0)
                .map(value)
                .collect(),
        }
    }

    /// The position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => value / self.high,
            Kind::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        part.clamp(0.0, 1.0)
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        LEFT + self.place(value) * (RIGHT - LEFT)
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        BOTTOM - self.place(value) * (BOTTOM - TOP)
    }

    /// Draws grid lines with their values, and the label.
    pub(super) fn draw_vertical(&self, figure: &mut Figure, label: &str) {
        for value in &self.ticks {
            let y = self.y(*value);
            figure.line((LEFT, y), (RIGHT, y), GRID);
            figure.text((LEFT - 10.0, y + 4.5), 12.5, FAINT, END, &tick(*value));
        }
        figure.line((LEFT, BOTTOM), (RIGHT, BOTTOM), FAINT);
        let (x, y) = (28.0, f64::midpoint(TOP, BOTTOM));
        let upwards = format!(r#"{MIDDLE} transform="rotate(-90 {x:.1} {y:.1})""#);
        figure.text((x, y), 13.5, FAINT, &upwards, label);
    }

    /// Draws the marks, or the ticks if there are none, and the label.
    pub(super) fn draw_horizontal(&self, figure: &mut Figure, label: &str, marks: &[(f64, String)]) {
        if marks.is_empty() {
            let ticks: Vec<_> = self.ticks.iter().map(|value| (*value, tick(*value))).collect();
            self.draw_marks(figure, &ticks);
        } else {
            self.draw_marks(figure, marks);
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        figure.text((middle, BOTTOM + 46.0), 13.5, FAINT, MIDDLE, label);
    }

    fn draw_marks(&self, figure: &mut Figure, marks: &[(f64, String)]) {
        for (value, text) in marks {
            let x = self.x(*value);
            figure.line((x, TOP), (x, BOTTOM), GRID);
            figure.line((x, BOTTOM), (x, BOTTOM + 5.0), FAINT);
            figure.text((x, BOTTOM + 21.0), 12.5, INK, MIDDLE, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Kind};

    #[test]
    fn axes_contain_values_and_end_on_ticks() {
        for largest in [0.07, 1.0, 9.9, 1_234.0] {
            let axis = Axis::over(Kind::Linear, [largest].into_iter());
            assert!(axis.high >= largest && axis.ticks.len() <= 8, "{axis:?}");
            assert!((axis.ticks.last().unwrap() - axis.high).abs() < axis.high * 1e-9);
        }
        let axis = Axis::over(Kind::Log, [0.2, 45.0, 0.0].into_iter());
        assert!(axis.low <= 0.2 && axis.high >= 45.0);
        assert!(
            axis.place(0.2) < axis.place(45.0) && axis.ticks.len() >= 3,
            "{axis:?}"
        );
    }

    #[test]
    fn accepts_axis_without_values() {
        for kind in [Kind::Linear, Kind::Log] {
            let axis = Axis::over(kind, std::iter::empty());
            assert!(axis.high > axis.low);
        }
    }
}
