//! Columns on a terminal.

use std::io::{self, Write};

use comfy_table::{Attribute, Cell, Table as Grid, presets};
use serde_json::Value;

use super::Column;

const NOTHING: &str = "-";
/// A cell longer than this makes a table unreadable; `-o yaml` has it all.
const LONGEST: usize = 120;

/// Cells are cut to no less than this to make a table fit while it can lose a column.
const SHORTEST: usize = 16;
/// Least width to which columns are cut when no further column can be dropped.
const STUB: usize = 6;
/// A table that does not fit keeps at least so many columns.
const FEWEST: usize = 3;

/// Columns that a table loses first; then it loses the others from the right.
const LOST_FIRST: &[&str] = &[
    "URI",
    "DEVELOPER",
    "VERSION",
    "OPERATOR",
    "FLAVOR",
    "MASTERS",
    "NODES",
    "LATITUDE",
    "LONGITUDE",
    "CLUSTER",
    "RESTARTS",
];
/// Columns without which a row says nothing.
const KEPT: &[&str] = &["NAME", "NODE", "APP", "STATE", "STATUS", "HEALTH", "OUTCOME"];

/// Distance between columns, and what is done with very short and very
/// long cells.
#[derive(Debug, Clone, Copy)]
struct Style {
    gap: u16,
    nothing: &'static str,
    longest: usize,
}

const OURS: Style = Style { gap: 2, nothing: NOTHING, longest: LONGEST };
/// As the clients of the original node services print, byte for byte; widths
/// are counted in 16 bits.
const ORIGINAL: Style = Style { gap: 3, nothing: "", longest: 30_000 };

/// Rows that wait to be written under one header.
#[derive(Debug)]
pub(crate) struct Table {
    style: Style,
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Widths so far: later rows line up with earlier ones.
    widths: Vec<u16>,
    headed: bool,
    /// The terminal was too narrow for all columns.
    lost_columns: bool,
}

impl Table {
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        let widths = vec![0; columns.len()];
        Self { style: OURS, columns, rows: Vec::new(), widths, headed: false, lost_columns: false }
    }

    /// One that looks as the original node services' clients print it.
    pub(crate) fn original(columns: Vec<Column>) -> Self {
        Self { style: ORIGINAL, ..Self::new(columns) }
    }

    pub(crate) fn push(&mut self, value: &Value) {
        let Style { nothing, longest, .. } = self.style;
        let cells = self.columns.iter().map(|column| {
            cell(column, value).map_or_else(|| nothing.to_owned(), |text| shorten(text, longest))
        });
        self.rows.push(cells.collect());
    }

    /// Returns whether columns were left out because the terminal is too narrow.
    pub(crate) fn lost_columns(&self) -> bool {
        self.lost_columns
    }

    /// Writes the rows that wait, after the header if it was not yet written.
    /// A table that does not fit into the columns of the terminal has its wide
    /// cells cut, then loses the columns that tell least, then is cut.
    pub(crate) fn write(
        &mut self,
        out: &mut dyn Write,
        colour: bool,
        columns: Option<usize>,
    ) -> io::Result<()> {
        if let Some(columns) = columns.filter(|_| !self.headed) {
            self.fit(columns);
        }
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING).force_no_tty();
        if colour {
            grid.enforce_styling();
        }
        let header = |text: &str| {
            let cell = Cell::new(text);
            if colour { cell.add_attribute(Attribute::Bold) } else { cell }
        };
        if !self.headed {
            grid.add_row(self.columns.iter().map(|column| header(&column.title)));
        }
        for row in self.rows.drain(..) {
            grid.add_row(row);
        }
        self.headed = true;
        let natural = grid.column_max_content_widths();
        for (at, (width, natural)) in self.widths.iter_mut().zip(natural).enumerate() {
            *width = natural.max(*width);
            if let Some(column) = grid.column_mut(at) {
                column.set_padding((0, self.style.gap + *width - natural));
            }
        }
        for line in grid.lines() {
            let line = line.trim_end();
            // A line with colours is a header; it is short.
            match columns.filter(|_| !line.contains('\x1b')) {
                Some(columns) => writeln!(out, "{}", shorten(line.to_owned(), columns))?,
                None => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    }

    /// Width of each column with its gap.
    fn natural_widths(&self) -> Vec<usize> {
        let width = |at: usize, column: &Column| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            let widest = cells.chain([column.title.chars().count()]).max().unwrap_or(0);
            widest + usize::from(self.style.gap)
        };
        self.columns.iter().enumerate().map(|(at, column)| width(at, column)).collect()
    }

    fn fit(&mut self, columns: usize) {
        let columns = columns + usize::from(self.style.gap);
        while self.longest_cell(columns, SHORTEST).is_none() {
            let Some(at) = self.least_telling() else { break };
            self.lose(at);
        }
        // What is too wide even so is cut as lines.
        let longest = self.longest_cell(columns, SHORTEST);
        let longest = longest.or_else(|| self.longest_cell(columns, STUB)).unwrap_or(STUB);
        for cell in self.rows.iter_mut().flatten() {
            *cell = shorten(std::mem::take(cell), longest);
        }
    }

    /// Length to which cells are cut so that rows fit, if that is no less than
    /// `least`.
    fn longest_cell(&self, columns: usize, least: usize) -> Option<usize> {
        let gap = usize::from(self.style.gap);
        let widths = self.natural_widths();
        let fits = |longest: &usize| {
            let cut = widths.iter().zip(&self.columns).map(|(width, column)| {
                (*width).min(longest.max(&column.title.chars().count()) + gap)
            });
            cut.sum::<usize>() <= columns
        };
        let widest = widths.iter().max().map_or(least, |width| width.saturating_sub(gap));
        (least..=widest.max(least)).rev().find(fits)
    }

    /// The column that is lost next, if one may be lost.
    fn least_telling(&self) -> Option<usize> {
        if self.columns.len() <= FEWEST {
            return None;
        }
        let at = |title: &&str| self.columns.iter().position(|column| column.title == *title);
        let rightmost = || self.columns.iter().rposition(|it| !KEPT.contains(&it.title.as_str()));
        LOST_FIRST.iter().find_map(at).or_else(rightmost)
    }

    fn lose(&mut self, at: usize) {
        self.columns.remove(at);
        self.widths.remove(at);
        self.rows.iter_mut().for_each(|row| {
            row.remove(at);
        });
        self.lost_columns = true;
    }
}

/// A single thing, one field a line.
pub(crate) fn write_fields(
    out: &mut dyn Write,
    columns: &[Column],
    value: &Value,
) -> io::Result<()> {
    let widest = columns.iter().map(|column| column.title.chars().count()).max().unwrap_or(0);
    for column in columns {
        let text = cell(column, value).unwrap_or_else(|| NOTHING.into());
        writeln!(out, "{:<width$}  {text}", column.title, width = widest)?;
    }
    Ok(())
}

fn cell(column: &Column, value: &Value) -> Option<String> {
    let text = if column.path == ["@health"] {
        health(value)?
    } else if column.message.as_deref() == Some(PORT) {
        ports(column, value)?
    } else {
        let found = column.path.iter().try_fold(value, |value, name| value.get(name))?;
        words(found, column.message.as_deref())
    };
    // One row, one line, and no steering of the terminal.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    (!text.is_empty()).then_some(text)
}

/// Health of an instance, as its crm sees it; none while there is nothing to
/// be seen.
fn health(value: &Value) -> Option<String> {
    let state = value.get("state").and_then(Value::as_str)?;
    let runtime = value.get("runtime_info")?;
    let unhealthy = runtime.get("unhealthy").and_then(Value::as_str).unwrap_or_default();
    let has = |name| runtime.get(name).and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    match (state, unhealthy) {
        ("READY" | "UPDATE_REQUESTED" | "UPDATING" | "UPDATE_ERROR", text) if !text.is_empty() => {
            Some(format!("unhealthy: {text}"))
        }
        // Nobody has looked at what no crm runs.
        ("READY", _) if has("addresses") || has("container_ids") => Some("healthy".to_owned()),
        ("UPDATE_REQUESTED" | "UPDATING" | "UPDATE_ERROR", _) if has("addresses") => {
            Some("healthy, old version".to_owned())
        }
        ("CREATE_ERROR" | "UPDATE_ERROR" | "DELETE_ERROR", _) => Some("failed".to_owned()),
        _ => None,
    }
}

fn words(value: &Value, message: Option<&str>) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            items.iter().map(|item| words(item, message)).collect::<Vec<_>>().join(",")
        }
        Value::Object(_) if message == Some("selvage.identity.Grant") => {
            let part = |name| value.get(name).and_then(Value::as_str).unwrap_or_default();
            match part("organisation") {
                "" => part("role").to_owned(),
                organisation => format!("{}:{organisation}", part("role")),
            }
        }
        // What a map holds.
        Value::Object(members) if message.is_some_and(|name| name.ends_with("Entry")) => {
            let pairs = members.iter().map(|(key, value)| format!("{key}={}", words(value, None)));
            pairs.collect::<Vec<_>>().join(",")
        }
        // A key that is a name and nothing else.
        Value::Object(members) if members.len() == 1 && members.contains_key("name") => {
            members.values().map(|name| words(name, None)).collect()
        }
        Value::Object(members) if members.is_empty() => String::new(),
        other => other.to_string(),
    }
}

const PORT: &str = "distributed_match_engine.AppPort";

/// Ports of an instance; an instance without a name has no URLs.
fn ports(column: &Column, instance: &Value) -> Option<String> {
    let found = column.path.iter().try_fold(instance, |value, name| value.get(name))?;
    let host = instance.get("uri").and_then(Value::as_str).unwrap_or_default();
    let all = found.as_array()?.iter().map(|one| port(one, host));
    Some(all.collect::<Vec<_>>().join(","))
}

/// Protocol, public port, and the port inside where that is another; of http the URL.
fn port(value: &Value, host: &str) -> String {
    let text = |name| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name| value.get(name).and_then(Value::as_i64).unwrap_or_default();
    let protocol = text("proto").trim_start_matches("L_PROTO_").to_lowercase();
    match (number("public_port"), number("internal_port")) {
        (1.., _) if protocol == "http" && !host.is_empty() => {
            let path = match text("path_prefix").trim_matches('/') {
                "" => String::new(),
                path => format!("{path}/"),
            };
            format!("http://{}{host}:{}/{path}", text("fqdn_prefix"), number("public_port"))
        }
        (public, internal) if public == internal => format!("{protocol}:{public}"),
        (public, internal) => format!("{protocol}:{public}->{internal}"),
    }
}

fn shorten(text: String, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text;
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_does_not_wrap() {
        let titles = ["NODE", "NAMESPACE", "ID", "IMAGE", "PID", "STATUS"];
        let rows = [
            [
                "rack1",
                "system",
                "registry",
                "registry.example/a/very/long/name/of/an/image:1.22.3",
                "7",
                "RUNNING",
            ],
            [
                "rack2",
                "k8s.io",
                "kube-system/coredns-7f9c544f75-mkw2x",
                "coredns:1",
                "123456",
                "RUNNING",
            ],
        ];
        let text = |columns: Option<usize>| {
            let columns_of = titles.map(|title| Column::new(title, title)).to_vec();
            let mut table = Table::original(columns_of);
            for row in rows {
                let cells = titles.into_iter().zip(row);
                table.push(
                    &cells.map(|(title, cell)| (title.to_owned(), Value::from(cell))).collect(),
                );
            }
            let mut out = Vec::new();
            assert!(table.write(&mut out, false, columns).is_ok());
            String::from_utf8_lossy(&out).into_owned()
        };
        for columns in [20, 40, 60, 80, 100] {
            let text = text(Some(columns));
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}:\n{text}");
            assert!(text.starts_with("NODE"), "{text}");
        }
        assert!(text(Some(100)).contains("STATUS"), "only the image is cut");
        assert!(text(None).contains("image:1.22.3   7"), "{}", text(None));
    }

    #[test]
    fn an_http_port_is_a_url() {
        let column = Column { message: Some(PORT.into()), ..Column::new("PORTS", "mapped_ports") };
        let of = |uri: &str| {
            let http = json!({
                "proto": "L_PROTO_HTTP", "internal_port": 8080, "public_port": 443,
                "path_prefix": "acme/hello10/p8080", "fqdn_prefix": "hello-tcp.",
            });
            let hidden = json!({ "proto": "L_PROTO_HTTP", "internal_port": 9, "public_port": 0 });
            let tcp = json!({ "proto": "L_PROTO_TCP", "internal_port": 80, "public_port": 81 });
            cell(&column, &json!({ "uri": uri, "mapped_ports": [http, hidden, tcp] }))
        };
        let url = "http://hello-tcp.hello.here.example:443/acme/hello10/p8080/";
        assert_eq!(of("hello.here.example"), Some(format!("{url},http:0->9,tcp:81->80")));
        assert_eq!(of(""), Some("http:443->8080,http:0->9,tcp:81->80".into()));
    }

    #[test]
    fn an_instance_is_healthy_only_when_it_serves() {
        let seen = |state: &str, addresses: &[&str], unhealthy: &str| {
            let runtime_info = json!({ "addresses": addresses, "unhealthy": unhealthy });
            health(&json!({ "state": state, "runtime_info": runtime_info })).unwrap_or_default()
        };
        let there = ["10.1.1.1:80"];
        assert_eq!(seen("READY", &there, ""), "healthy");
        assert_eq!(seen("READY", &there, "exit 1"), "unhealthy: exit 1");
        assert_eq!(seen("UPDATE_ERROR", &there, ""), "healthy, old version");
        assert_eq!(seen("UPDATE_ERROR", &there, "exit 1"), "unhealthy: exit 1");
        assert_eq!(seen("UPDATE_ERROR", &[], ""), "failed");
        assert_eq!(seen("CREATE_ERROR", &[], ""), "failed");
        assert_eq!(seen("CREATING", &[], ""), "");
        assert_eq!(seen("READY", &[], ""), "", "nobody has looked");
        assert_eq!(health(&json!({ "state": "READY" })), None);
    }
}
