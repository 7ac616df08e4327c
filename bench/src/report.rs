//! A table on standard output.
#![allow(clippy::print_stdout, reason = "the table is what the program is for")]

/// Collects rows and prints them with their columns aligned.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<[String; 4]>,
}

impl Report {
    pub fn new() -> Self {
        let heads = ["what", "measured", "compared with", "ratio and goal"];
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    pub fn row(
        &mut self,
        what: impl Into<String>,
        measured: impl Into<String>,
        compared: impl Into<String>,
        ratio: impl Into<String>,
    ) {
        self.rows.push([what.into(), measured.into(), compared.into(), ratio.into()]);
    }

    pub fn print(&self) {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; 4] = std::array::from_fn(|column| width(column).unwrap_or(0));
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// How many times `a` is `b`, and whether that meets the goal.
pub fn at_least(a: f64, b: f64, goal: f64) -> String {
    let ratio = a / b;
    let verdict = if ratio >= goal { "met" } else { "missed" };
    format!("{ratio:.1}x (goal >= {goal}x: {verdict})")
}

/// How many times `a` is `b`, where more is worse.
pub fn at_most(a: f64, b: f64, goal: f64) -> String {
    let ratio = a / b;
    let verdict = if ratio <= goal { "met" } else { "missed" };
    format!("{ratio:.2}x (goal <= {goal}x: {verdict})")
}

/// What part of the goal a figure is, where more is worse.
pub fn of_goal(figure: f64, goal: f64) -> String {
    let verdict = if figure <= goal { "met" } else { "missed" };
    format!("{:.2} of the goal ({verdict})", figure / goal)
}
