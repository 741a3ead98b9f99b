//! SVG drawing, and conversion to PNG.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::Failure;

pub(super) const WIDTH: f64 = 960.0;
pub(super) const HEIGHT: f64 = 540.0;
pub(super) const INK: &str = "#1f2933";
pub(super) const FAINT: &str = "#616e7c";
pub(super) const GRID: &str = "#e4e7eb";
/// Text attributes.
pub(super) const MIDDLE: &str = r#"text-anchor="middle""#;
pub(super) const END: &str = r#"text-anchor="end""#;
const START: &str = r#"text-anchor="start""#;
/// PNG pixels per unit, for high-density screens.
const SCALE: f32 = 1.5;

/// Shapes in a coordinate system of `WIDTH` by `HEIGHT`, origin at the top left.
pub(super) struct Figure {
    svg: String,
}

impl Figure {
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="Roboto, 'Helvetica Neue', Arial, sans-serif">"#
        );
        let mut figure = Self { svg };
        figure.rect(0.0, 0.0, WIDTH, HEIGHT, "#ffffff");
        figure.text((32.0, 40.0), 21.0, INK, r#"font-weight="bold""#, title);
        figure.text((32.0, 63.0), 13.5, FAINT, START, subtitle);
        figure
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), size: f64, colour: &str, attributes: &str, text: &str) {
        let text = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        self.svg += &format!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{colour}" {attributes}>{text}</text>"#
        );
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.svg += &format!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.svg += &format!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="1"/>"#
        );
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        self.svg += &format!(
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>"#
        );
    }

    pub(super) fn dot(&mut self, x: f64, y: f64, colour: &str) {
        self.svg += &format!(
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="{colour}" stroke="#ffffff" stroke-width="1.5"/>"##
        );
    }

    /// Draws names and colors in a row above the plot.
    pub(super) fn legend<'a>(&mut self, entries: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut x = 32.0;
        for (name, colour) in entries {
            self.rect(x, 79.0, 13.0, 13.0, colour);
            self.text((x + 19.0, 90.5), 13.5, INK, START, name);
            // The text width is estimated from its length.
            x += 19.0 + name.chars().count() as f64 * 13.5 * 0.54 + 26.0;
        }
    }

    pub(super) fn into_svg(self) -> String {
        self.svg + "</svg>\n"
    }
}

/// Converts SVG to PNG with the bundled typeface.
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
    use super::{Figure, INK, MIDDLE, Rasteriser};

    #[test]
    fn text_reaches_the_png() {
        let rasteriser = Rasteriser::new();
        let blank = rasteriser.png(&Figure::new("", "").into_svg()).unwrap();
        let mut figure = Figure::new("a < b & c", "");
        figure.text((100.0, 100.0), 14.0, INK, MIDDLE, "µs");
        let drawn = rasteriser.png(&figure.into_svg()).unwrap();
        assert!(drawn.starts_with(b"\x89PNG") && drawn.len() > blank.len());
    }
}
