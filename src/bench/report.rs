//! What a scenario found: tables and curves, as text, as JSON and as a page ([`super::page`]).

use std::fmt::Write as _;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// One line of a table: names and values in their order.
#[derive(Clone, Debug, Default)]
pub struct Row(pub Vec<(&'static str, Value)>);

impl Row {
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// This row and behind it another.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// A number, or nothing where it is not known.
    #[must_use]
    pub fn maybe<V: Into<Value>>(self, name: &'static str, value: Option<V>) -> Self {
        self.with(name, value.map_or(Value::Null, Into::into))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields: Map<String, Value> =
            self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        fields.serialize(serializer)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub title: String,
    pub rows: Vec<Row>,
}

/// Curves over one axis.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    pub title: String,
    pub x: String,
    pub curves: Vec<Curve>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Everything a run found, and what it ran on.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub scenario: String,
    /// Not known of a server that was given.
    pub engine: Option<String>,
    pub command: String,
    pub version: String,
    pub at: String,
    pub cores: usize,
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
    /// What a reader of the figures should know.
    pub notes: Vec<String>,
}

impl Report {
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let _ = writeln!(text, "\n{}\n{}", table.title, table.to_text());
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

impl Table {
    /// The names of all columns, in the order they first appear.
    #[must_use]
    pub fn columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.0) {
            if !columns.contains(name) {
                columns.push(*name);
            }
        }
        columns
    }

    /// The lines of the table, the first one its head. A table that is wider than a terminal lies on its side.
    #[must_use]
    pub fn lines(&self) -> Vec<Vec<String>> {
        let columns = self.columns();
        let head: Vec<String> = columns.iter().map(|name| heading(name)).collect();
        let cell =
            |row: &Row, column| row.0.iter().find(|(name, _)| *name == column).map_or(String::new(), |(_, v)| show(v));
        let cells = |row| columns.iter().map(|column| cell(row, *column)).collect();
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(self.rows.iter().map(cells)).collect();
        if widths(&lines).iter().map(|width| width + GAP).sum::<usize>() <= WIDEST {
            return lines;
        }
        (0..columns.len()).map(|column| lines.iter().map(|line| line[column].clone()).collect()).collect()
    }

    fn to_text(&self) -> String {
        let lines = self.lines();
        let widths = widths(&lines);
        let mut text = String::new();
        for line in &lines {
            for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
                // The first column is what a line is about, the others are numbers.
                let gap = " ".repeat(GAP);
                let _ = if at == 0 { write!(text, "{gap}{cell:<width$}") } else { write!(text, "{gap}{cell:>width$}") };
            }
            text.push('\n');
        }
        text
    }
}

/// Blanks between two columns.
const GAP: usize = 2;
/// What a terminal shows in one line.
const WIDEST: usize = 110;

/// How wide each column is.
fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    (0..columns).map(width).collect()
}

/// `accept_p99_ms` is for programs, `accept p99 ms` for people.
#[must_use]
pub fn heading(name: &str) -> String {
    name.replace("_per_s", "/s").replace('_', " ")
}

#[must_use]
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(count) => grouped(count),
            None => show_float(number.as_f64().unwrap_or_default()),
        },
        other => other.to_string(),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "only numbers of a size to be shown come here"
)]
fn show_float(number: f64) -> String {
    match number {
        large if large >= 100.0 => grouped(large.round() as u64),
        small => format!("{small:.2}"),
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
pub mod samples {
    use super::*;

    pub fn report() -> Report {
        let row = |name: &str, rate: f64| Row::default().with("what", name).with("accepted_per_s", rate);
        let rows = vec![row("single <posts>", 54_321.6), row("batch", 7.25).maybe("rss_mb", None::<u64>)];
        Report {
            scenario: "ingest".into(),
            engine: Some("embedded".into()),
            command: "drone-delivery bench ingest".into(),
            version: "0".into(),
            at: "2026-12-01T10:00:00Z".into(),
            cores: 2,
            tables: vec![Table { title: "Saturation".into(), rows }],
            charts: vec![Chart {
                title: "Rate".into(),
                x: "seconds".into(),
                curves: vec![Curve { name: "accepted/s".into(), points: vec![(0.0, 0.0), (1.0, 5.0), (2.0, 2.5)] }],
            }],
            notes: vec!["a note".into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_shows_what_is_not_known_as_a_dash() {
        let text = samples::report().to_text();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["what", "accepted/s", "rss", "mb"]);
        assert!(lines[1].contains("54,322") && lines[2].contains("7.25"), "{text}");
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
        assert!(lines[2].ends_with('-'), "{text}");
    }

    #[test]
    fn a_wide_table_lies_on_its_side() {
        let names = ["a_long_name_of_one", "a_long_name_of_two", "a_long_name_of_three", "a_long_name_of_four"];
        let names = [names, ["e_name_of_five", "f_name_of_six", "g_name_of_seven", "h_name_of_eight"]].concat();
        let row = |first: u64| names.iter().zip(first..).fold(Row::default(), |row, (name, v)| row.with(name, v));
        let lines = Table { title: String::new(), rows: vec![row(1), row(11)] }.lines();
        assert_eq!(lines.len(), names.len());
        assert_eq!(lines[1], ["a long name of two", "2", "12"]);
    }

    #[test]
    fn json_has_names_and_numbers() {
        let json = serde_json::to_value(samples::report()).unwrap();
        assert_eq!(json["tables"][0]["rows"][0]["accepted_per_s"], 54_321.6);
        assert_eq!(json["tables"][0]["rows"][1]["rss_mb"], Value::Null);
        assert_eq!(json["charts"][0]["curves"][0]["points"][1][1], 5.0);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
