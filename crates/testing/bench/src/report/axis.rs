//! From values to places on the plot.

use super::figure::{Anchor, FAINT, Figure, GRID, HEIGHT, INK, WIDTH};
use super::number::tick;

/// The plot: where the axes are.
pub(super) const LEFT: f64 = 96.0;
pub(super) const RIGHT: f64 = WIDTH - 32.0;
pub(super) const TOP: f64 = 118.0;
pub(super) const BOTTOM: f64 = HEIGHT - 62.0;
/// Steps of a linear axis, at most.
const STEPS: f64 = 6.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From zero.
    Linear,
    /// In whole powers of ten at both ends.
    Log,
}

/// An axis from a value at one end to a value at the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    kind: Kind,
    low: f64,
    high: f64,
}

impl Axis {
    /// An axis that all values fit on. A logarithmic one leaves out what is not positive.
    pub(super) fn over(kind: Kind, values: impl Iterator<Item = f64>) -> Self {
        let finite: Vec<f64> = values
            .filter(|value| value.is_finite() && (kind == Kind::Linear || *value > 0.0))
            .collect();
        let largest = finite.iter().copied().fold(0.0, f64::max);
        let (low, high) = match kind {
            Kind::Linear => {
                let largest = if largest > 0.0 { largest } else { 1.0 };
                let step = step_of(largest);
                (0.0, (largest / step).ceil() * step)
            }
            Kind::Log if finite.is_empty() => (1.0, 10.0),
            Kind::Log => {
                let smallest = finite.iter().copied().fold(f64::INFINITY, f64::min);
                let low = half_decade(smallest, f64::floor);
                (low, half_decade(largest, f64::ceil).max(low * 3.0))
            }
        };
        Self { kind, low, high }
    }

    /// Where a value is, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value <= 0.0 => 0.0,
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

    fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = step_of(self.high);
                (0..=(self.high / step).round() as u32)
                    .map(|at| f64::from(at) * step)
                    .collect()
            }
            Kind::Log => {
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let wide = last - first > 4;
                (first..=last)
                    .flat_map(|power| {
                        let decade = 10_f64.powi(power);
                        let parts: &[f64] = if wide { &[1.0] } else { &[1.0, 3.0] };
                        parts.iter().map(move |part| part * decade)
                    })
                    .filter(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001)
                    .collect()
            }
        }
    }

    /// Lines across the plot with their values, and what they mean.
    pub(super) fn draw_vertical(&self, figure: &mut Figure, label: &str) {
        for value in self.ticks() {
            let y = self.y(value);
            figure.line((LEFT, y), (RIGHT, y), GRID, 1.0);
            figure.text(LEFT - 10.0, y + 4.5, 12.5, FAINT, Anchor::End, &tick(value));
        }
        figure.line((LEFT, BOTTOM), (RIGHT, BOTTOM), FAINT, 1.0);
        figure.upright(28.0, f64::midpoint(TOP, BOTTOM), 13.5, label);
    }

    pub(super) fn draw_horizontal(&self, figure: &mut Figure, label: &str) {
        for value in self.ticks() {
            self.mark(figure, value, &tick(value));
        }
        self.caption(figure, label);
    }

    /// What a horizontal axis means.
    pub(super) fn caption(&self, figure: &mut Figure, label: &str) {
        figure.text(
            f64::midpoint(LEFT, RIGHT),
            BOTTOM + 46.0,
            13.5,
            FAINT,
            Anchor::Middle,
            label,
        );
    }

    /// A value below the plot.
    pub(super) fn mark(&self, figure: &mut Figure, value: f64, text: &str) {
        let x = self.x(value);
        figure.line((x, TOP), (x, BOTTOM), GRID, 1.0);
        figure.line((x, BOTTOM), (x, BOTTOM + 5.0), FAINT, 1.0);
        figure.text(x, BOTTOM + 21.0, 12.5, INK, Anchor::Middle, text);
    }
}

/// 1, 2 or 5 times a power of ten, so that a handful of steps reach the value.
fn step_of(largest: f64) -> f64 {
    let rough = largest / STEPS;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|part| part * power)
        .find(|step| largest / step <= STEPS + 1e-9)
        .unwrap_or(power * 10.0)
}

/// 1 or 3 times a power of ten beside the value.
fn half_decade(value: f64, round: fn(f64) -> f64) -> f64 {
    let halves = round(value.log10() * 2.0) as i32;
    let decade = 10_f64.powi(halves.div_euclid(2));
    if halves.rem_euclid(2) == 1 {
        decade * 3.0
    } else {
        decade
    }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Kind};

    #[test]
    fn axes_hold_their_values_and_end_on_ticks() {
        for largest in [0.07, 1.0, 9.9, 1_234.0] {
            let axis = Axis::over(Kind::Linear, [largest].into_iter());
            assert!(axis.high >= largest && axis.ticks().len() <= 8, "{axis:?}");
            assert!((axis.ticks().last().unwrap() - axis.high).abs() < axis.high * 1e-9);
        }
        let axis = Axis::over(Kind::Log, [0.2, 45.0, 0.0].into_iter());
        assert!(axis.low <= 0.2 && axis.high >= 45.0);
        assert!(
            axis.place(0.2) < axis.place(45.0) && axis.ticks().len() >= 3,
            "{axis:?}"
        );
    }

    #[test]
    fn an_axis_without_values_is_an_axis() {
        for kind in [Kind::Linear, Kind::Log] {
            let axis = Axis::over(kind, std::iter::empty());
            assert!(axis.high > axis.low);
        }
    }
}
