//! The report as one page that needs nothing else: tables, and curves drawn as SVG.

use std::fmt::Write as _;

use super::report::{Chart, Report, Table};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
/// Room for the numbers beside and below the curves.
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;
const COLOURS: [&str; 6] = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569"];
/// About so many lines go across a chart.
const LINES: f64 = 5.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1e293b;background:#fff}table{border-collapse:collapse;margin:.5rem 0 1.5rem;min-width:50%}\
td,th{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e2e8f0;font-variant-numeric:tabular-nums}\
td:first-child,th:first-child{text-align:left}code{background:#f1f5f9;padding:.1rem .3rem}\
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#475569}.key span{margin-right:1.2rem}";

#[must_use]
pub fn page(report: &Report) -> String {
    let engine = report.engine.as_ref().map_or("a given server".to_owned(), |engine| format!("the {engine} engine"));
    let title = format!("{} on {}", escape(&report.scenario), escape(&engine));
    let mut body = format!(
        "<h1>{title}</h1><p><code>{}</code><br>{}, version {}, {} cores</p>",
        escape(&report.command),
        escape(&report.at),
        escape(&report.version),
        report.cores
    );
    report.tables.iter().for_each(|table| body.push_str(&draw_table(table)));
    report.charts.iter().for_each(|chart| body.push_str(&draw(chart)));
    for note in &report.notes {
        let _ = write!(body, "<p>{}</p>", escape(note));
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style>\
         <body>{body}</body></html>\n"
    )
}

fn draw_table(table: &Table) -> String {
    let line = |(at, cells): (usize, &Vec<String>)| {
        let tag = if at == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let lines: String = table.lines().iter().enumerate().map(line).collect();
    format!("<h2>{}</h2><table>{lines}</table>", escape(&table.title))
}

fn draw(chart: &Chart) -> String {
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (most_x, most_y) = (most(|p| p.0), most(|p| p.1));
    let x = |value: f64| LEFT + value / most_x * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most_y * (HEIGHT - BOTTOM - TOP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for value in marks(most_y) {
        let (height, end, label) = (y(value), WIDTH - RIGHT, LEFT - 6.0);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{label}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            height + 4.0,
            short(value),
        );
    }
    for value in marks(most_x) {
        let (across, below) = (x(value), HEIGHT - BOTTOM + 16.0);
        let _ = write!(svg, "<text x=\"{across:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", short(value));
    }
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        HEIGHT - 6.0,
        escape(&chart.x)
    );
    let mut key = String::new();
    for (curve, colour) in chart.curves.iter().zip(COLOURS.iter().cycle()) {
        let line: String = curve.points.iter().map(|(px, py)| format!("{:.1},{:.1} ", x(*px), y(*py))).collect();
        let name = escape(&curve.name);
        let _ = write!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"><title>{name}</title></polyline>"
        );
        let _ = write!(key, "<span style=\"color:{colour}\">● {name}</span>");
    }
    format!("<h2>{}</h2><div class=\"key\">{key}</div>{svg}</svg>", escape(&chart.title))
}

/// Round numbers from 0 to the most.
fn marks(most: f64) -> impl Iterator<Item = f64> {
    let unit = 10_f64.powf((most / LINES).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|round| round * unit).into_iter().find(|step| step * LINES >= most);
    let step = step.unwrap_or(most);
    (0..).map(move |n| f64::from(n) * step).take_while(move |value| *value <= most)
}

/// A number for an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", tenths(v / 1e6)),
        v if v >= 1e4 => format!("{} k", tenths(v / 1e3)),
        v if v >= 1.0 || v == 0.0 => tenths(v),
        v => format!("{v:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

fn tenths(value: f64) -> String {
    format!("{value:.1}").trim_end_matches(".0").to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::samples;

    #[test]
    fn the_page_holds_everything_and_needs_nothing() {
        let page = page(&samples::report());
        for needle in ["<polyline", "accepted/s", "54,322", "single &lt;posts&gt;", "a note", "Saturation"] {
            assert!(page.contains(needle), "{needle} is not in the page");
        }
        for outside in ["http:", "https:", "src=", "href=", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn axes_are_marked_with_round_numbers() {
        let labels = |most: f64| marks(most).map(short).collect::<Vec<_>>();
        assert_eq!(labels(29.0), ["0", "10", "20"]);
        assert_eq!(labels(91.0), ["0", "20", "40", "60", "80"]);
        assert_eq!(labels(700_000.0), ["0", "200 k", "400 k", "600 k"]);
        assert_eq!(labels(1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }

    #[test]
    fn the_highest_point_touches_the_top_and_nothing_divides_by_zero() {
        let mut report = samples::report();
        assert!(draw(&report.charts[0]).contains(&format!(",{TOP:.1} ")));
        report.charts[0].curves[0].points.clear();
        assert!(!draw(&report.charts[0]).contains("NaN"));
    }
}
