//! A table on standard output.
#![allow(clippy::print_stdout, reason = "the table is what the program is for")]

/// Ratio of a figure to another, and to a goal where there is one.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    ratio: String,
    goal: String,
    verdict: &'static str,
}

impl Verdict {
    fn new(ratio: String, goal: String, met: bool) -> Self {
        Self { ratio, goal, verdict: if met { "met" } else { "missed" } }
    }
}

impl From<String> for Verdict {
    fn from(ratio: String) -> Self {
        Self { ratio, ..Self::default() }
    }
}

impl From<&str> for Verdict {
    fn from(ratio: &str) -> Self {
        ratio.to_owned().into()
    }
}

/// Collects rows and prints them with their columns aligned.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<[String; 6]>,
}

impl Report {
    pub fn new() -> Self {
        let heads = ["what", "measured", "compared with", "ratio", "goal", "verdict"];
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    pub fn row(
        &mut self,
        what: impl Into<String>,
        measured: impl Into<String>,
        compared: impl Into<String>,
        verdict: impl Into<Verdict>,
    ) {
        let Verdict { ratio, goal, verdict } = verdict.into();
        let (what, measured, compared) = (what.into(), measured.into(), compared.into());
        self.rows.push([what, measured, compared, ratio, goal, verdict.to_owned()]);
    }

    pub fn print(&self) {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or(0));
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// Ratio of `a` to `b`, and whether that meets the goal.
pub fn at_least(a: f64, b: f64, goal: f64) -> Verdict {
    let ratio = a / b;
    Verdict::new(format!("{ratio:.2}x"), format!(">= {goal}x"), ratio >= goal)
}

/// Ratio of `a` to `b`, where more is worse.
pub fn at_most(a: f64, b: f64, goal: f64) -> Verdict {
    let ratio = a / b;
    Verdict::new(format!("{ratio:.2}x"), format!("<= {goal}x"), ratio <= goal)
}

/// Share of the goal that a figure is, where more is worse.
pub fn of_goal(figure: f64, goal: f64) -> Verdict {
    let ratio = figure / goal;
    Verdict::new(format!("{ratio:.2} of the goal"), "<= 1".into(), figure <= goal)
}

/// Ratio of a figure to a goal, where more is better.
pub fn at_least_figure(figure: f64, goal: f64) -> Verdict {
    Verdict::new(format!("{:.1} of the goal", figure / goal), ">= 1".into(), figure >= goal)
}
