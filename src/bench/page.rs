//! The report as one page that needs nothing else: tables, and curves drawn as SVG.

use std::fmt::Write as _;

use super::report::{Chart, Report, Table, heading};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
/// Room for the numbers beside and below the curves.
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = 12.0;
const COLOURS: [&str; 6] = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569"];
const LINES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1e293b;background:#fff}table{border-collapse:collapse;margin:.5rem 0 1.5rem;width:100%}\
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
    let columns = table.columns();
    let line = |cells: Vec<String>, tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let head = line(columns.iter().map(|name| heading(name)).collect(), "th");
    let rows: String = table.rows.iter().map(|row| line(Table::cells(row, &columns), "td")).collect();
    format!("<h2>{}</h2><table>{head}{rows}</table>", escape(&table.title))
}

fn draw(chart: &Chart) -> String {
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let most = |value: fn(&(f64, f64)) -> f64| points().map(value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (most_x, most_y) = (most(|p| p.0), most(|p| p.1));
    let x = |value: f64| LEFT + value / most_x * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most_y * (HEIGHT - BOTTOM - TOP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for part in LINES {
        let (height, across) = (y(part * most_y), x(part * most_x));
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{across:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            height + 4.0,
            short(part * most_y),
            HEIGHT - BOTTOM + 16.0,
            short(part * most_x),
        );
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

/// A number for an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} M", v / 1e6),
        v if v >= 1e4 => format!("{:.0} k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
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
    fn the_highest_point_touches_the_top_and_nothing_divides_by_zero() {
        let mut report = samples::report();
        assert!(draw(&report.charts[0]).contains(&format!(",{TOP:.1} ")));
        report.charts[0].curves[0].points.clear();
        assert!(!draw(&report.charts[0]).contains("NaN"));
    }
}
