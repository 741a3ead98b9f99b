//! Lines over a numeric axis.

use super::axis::{Axis, Kind};
use super::figure::Figure;

pub(super) struct Line {
    pub(super) name: String,
    pub(super) colour: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

pub(super) struct Lines {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// What each axis shows, and its unit.
    pub(super) x: (String, Kind),
    pub(super) y: (String, Kind),
    pub(super) lines: Vec<Line>,
    /// Values named below the plot, in place of even ticks.
    pub(super) marks: Vec<(f64, String)>,
    /// Whether each point is a measurement of its own.
    pub(super) dots: bool,
}

impl Lines {
    pub(super) fn draw(self) -> Figure {
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let x = Axis::over(
            self.x.1,
            points()
                .map(|point| point.0)
                .chain(self.marks.iter().map(|mark| mark.0)),
        );
        let y = Axis::over(self.y.1, points().map(|point| point.1));
        let mut figure = Figure::new(&self.title, &self.subtitle);
        let entries: Vec<_> = self
            .lines
            .iter()
            .map(|line| (line.name.clone(), line.colour))
            .collect();
        figure.legend(&entries);
        if self.marks.is_empty() {
            x.draw_horizontal(&mut figure, &self.x.0);
        } else {
            for (value, name) in &self.marks {
                x.mark(&mut figure, *value, name);
            }
            x.caption(&mut figure, &self.x.0);
        }
        y.draw_vertical(&mut figure, &self.y.0);
        for line in &self.lines {
            let places: Vec<_> = line
                .points
                .iter()
                .filter(|point| self.y.1 == Kind::Linear || point.1 > 0.0)
                .map(|point| (x.x(point.0), y.y(point.1)))
                .collect();
            figure.path(&places, line.colour);
            if self.dots {
                for (across, down) in places {
                    figure.dot(across, down, line.colour);
                }
            }
        }
        figure
    }
}
