//! A table in the making.

use serde_json::Value;

use crate::{Error, output::Column, session::Session};

/// Columns and rows of text.
#[derive(Debug, Clone)]
pub(crate) struct Sheet {
    columns: Vec<Column>,
    rows: Vec<Value>,
}

impl Sheet {
    /// A title with `+` in front is one for `-o wide` alone.
    pub(crate) fn new(titles: &[&str]) -> Self {
        let column = |(at, title): (usize, &&str)| {
            let place = at.to_string();
            match title.strip_prefix('+') {
                Some(title) => Column::new(title, &place).wide(),
                None => Column::new(title, &place),
            }
        };
        Self { columns: titles.iter().enumerate().map(column).collect(), rows: Vec::new() }
    }

    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.into_iter().enumerate();
        self.rows.push(cells.map(|(at, cell)| (at.to_string(), Value::String(cell))).collect());
    }

    /// Puts rows with the same first cell together, in this order of cells.
    pub(crate) fn group(&mut self, order: &[String]) {
        let place = |row: &Value| order.iter().position(|cell| row["0"] == cell.as_str());
        self.rows.sort_by_cached_key(|row| place(row).unwrap_or(order.len()));
    }

    pub(crate) fn print(&self, session: &mut Session<'_>) -> Result<(), Error> {
        session.printer().original(&self.columns, &self.rows)
    }

    #[cfg(test)]
    pub(crate) fn text(&self, format: crate::Format) -> String {
        let mut out = Vec::new();
        let mut printer = crate::output::Printer::new(&mut out, format, false);
        assert!(printer.original(&self.columns, &self.rows).is_ok());
        String::from_utf8_lossy(&out).into_owned()
    }
}
