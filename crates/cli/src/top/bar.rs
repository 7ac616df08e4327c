//! Numbers as pictures of one line.

use std::collections::VecDeque;

const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A gauge such as `[|||||      43%]`, so wide in all.
pub(crate) fn gauge(share: f64, width: usize) -> String {
    let inner = width.saturating_sub(2);
    let label = format!("{:.0}%", share * 100.0);
    if inner <= label.len() {
        return format!("{label:>width$}");
    }
    let room = inner - label.len();
    let full = ((share * inner as f64).round() as usize).min(room);
    format!("[{}{}{label}]", "|".repeat(full), " ".repeat(room - full))
}

/// The newest points, 0 to 100, so many characters wide.
pub(crate) fn sparkline(points: &VecDeque<u64>, width: usize) -> String {
    let known = points.len().min(width);
    let step = |point: &u64| {
        let at = usize::try_from(*point * 8 / 100).unwrap_or(7);
        STEPS[at.min(7)]
    };
    let blank = std::iter::repeat_n(' ', width - known);
    blank.chain(points.iter().skip(points.len() - known).map(step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_as_wide_as_asked_for() {
        assert_eq!(gauge(0.0, 12), "[        0%]");
        assert_eq!(gauge(0.5, 12), "[|||||  50%]");
        assert_eq!(gauge(1.0, 12), "[||||||100%]");
        assert_eq!(gauge(0.07, 4), "  7%");
    }

    #[test]
    fn sparklines_end_with_the_newest() {
        let points = VecDeque::from([0, 50, 100]);
        assert_eq!(sparkline(&points, 5), "  ▁▅█");
        assert_eq!(sparkline(&points, 2), "▅█");
    }
}
