//! A drawing: SVG text, and the same as PNG.

use std::fmt::Write as _;
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::Failure;

pub(super) const WIDTH: f64 = 960.0;
pub(super) const HEIGHT: f64 = 540.0;
pub(super) const INK: &str = "#1f2933";
pub(super) const FAINT: &str = "#616e7c";
pub(super) const GRID: &str = "#e4e7eb";
/// PNGs are drawn at this multiple, for dense screens.
const SCALE: f32 = 1.5;

#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Shapes in a coordinate system of `WIDTH` by `HEIGHT`, origin at the top left.
pub(super) struct Figure {
    svg: String,
}

// Writing into a string cannot fail.
impl Figure {
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let mut svg = String::new();
        let _ = write!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Roboto, 'Helvetica Neue', Arial, sans-serif">"#
        );
        let mut figure = Self { svg };
        figure.rect(0.0, 0.0, WIDTH, HEIGHT, "#ffffff");
        figure.bold(32.0, 40.0, 21.0, title);
        figure.text(32.0, 63.0, 13.5, FAINT, Anchor::Start, subtitle);
        figure
    }

    pub(super) fn text(&mut self, x: f64, y: f64, size: f64, colour: &str, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = write!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    pub(super) fn bold(&mut self, x: f64, y: f64, size: f64, text: &str) {
        let text = escaped(text);
        let _ = write!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" font-weight="bold" fill="{INK}">{text}</text>"#
        );
    }

    /// Text that reads upwards, for a vertical axis.
    pub(super) fn upright(&mut self, x: f64, y: f64, size: f64, text: &str) {
        let text = escaped(text);
        let _ = write!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{FAINT}" text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})">{text}</text>"#
        );
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let _ = write!(
            self.svg,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let _ = write!(
            self.svg,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            self.svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>"#,
            points.join(" ")
        );
    }

    pub(super) fn dot(&mut self, x: f64, y: f64, colour: &str) {
        let _ = write!(
            self.svg,
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="{colour}" stroke="#ffffff" stroke-width="1.5"/>"##
        );
    }

    /// Names and colours in a row above the plot.
    pub(super) fn legend(&mut self, entries: &[(String, &str)]) {
        let mut x = 32.0;
        for (name, colour) in entries {
            self.rect(x, 79.0, 13.0, 13.0, colour);
            self.text(x + 19.0, 90.5, 13.5, INK, Anchor::Start, name);
            x += 19.0 + width_of(name, 13.5) + 26.0;
        }
    }

    pub(super) fn into_svg(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// Roughly how wide a text is drawn.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.54
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Turns SVG into PNG, with the typeface that comes with this program.
pub(super) struct Rasteriser {
    options: Options<'static>,
}

impl Rasteriser {
    pub(super) fn new() -> Self {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_data(include_bytes!("../../assets/Roboto-Regular.ttf").to_vec());
        fonts.load_font_data(include_bytes!("../../assets/Roboto-Bold.ttf").to_vec());
        Self {
            options: Options {
                fontdb: Arc::new(fonts),
                font_family: "Roboto".to_owned(),
                ..Options::default()
            },
        }
    }

    pub(super) fn png(&self, svg: &str) -> Result<Vec<u8>, Failure> {
        let tree = Tree::from_str(svg, &self.options)?;
        let size = |length: f64| (length as f32 * SCALE) as u32;
        let mut pixels = Pixmap::new(size(WIDTH), size(HEIGHT)).ok_or("no memory for a chart")?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        Ok(pixels.encode_png()?)
    }
}

#[cfg(test)]
mod tests {
    use super::{Anchor, Figure, INK, Rasteriser};

    #[test]
    fn text_reaches_the_png() {
        let rasteriser = Rasteriser::new();
        let blank = rasteriser.png(&Figure::new("", "").into_svg()).unwrap();
        let mut figure = Figure::new("a < b & c", "");
        figure.text(100.0, 100.0, 14.0, INK, Anchor::Middle, "µs");
        let drawn = rasteriser.png(&figure.into_svg()).unwrap();
        assert!(drawn.starts_with(b"\x89PNG") && drawn.len() > blank.len());
    }
}
