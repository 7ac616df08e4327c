//! The overview as lines.

use jiff::Timestamp;
use selvage_api::selvage::dashboard::{Capacity, Overview, Severity};

/// Severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    Good,
    Warning,
    Bad,
}

impl Tone {
    /// Escape codes before and after it on a terminal with colours.
    pub(super) fn codes(self) -> (&'static str, &'static str) {
        let end = "\x1b[0m";
        match self {
            Self::Plain => ("", ""),
            Self::Heading => ("\x1b[1m", end),
            Self::Good => ("\x1b[32m", end),
            Self::Warning => ("\x1b[33m", end),
            Self::Bad => ("\x1b[1;31m", end),
        }
    }

    fn of(severity: Severity) -> Self {
        match severity {
            Severity::Ok => Self::Good,
            Severity::Notice => Self::Plain,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Bad,
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) tone: Tone,
    pub(super) text: String,
}

fn line(tone: Tone, text: impl Into<String>) -> Line {
    Line { tone, text: text.into() }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "OK",
        Severity::Notice => "NOTICE",
        Severity::Warning => "WARNING",
        Severity::Critical => "CRITICAL",
    }
}

/// `40 s`, `5 min`, `3 h`, `2 d`.
fn ago(time: Option<prost_types::Timestamp>, now: Timestamp) -> String {
    let Some(time) = time else { return "?".into() };
    let seconds = now.as_second().saturating_sub(time.seconds).max(0);
    match seconds {
        ..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// All of it.
pub(super) fn lines(overview: &Overview, now: Timestamp) -> Vec<Line> {
    let verdict = overview.verdict.clone().unwrap_or_default();
    let severity = verdict.severity();
    let mut all =
        vec![line(Tone::of(severity), format!("{}  {}", word(severity), verdict.sentence))];
    problems(overview, now, &mut all);
    marks(overview, &mut all);
    counts(overview, &mut all);
    room(overview, now, &mut all);
    sources(overview, now, &mut all);
    all
}

fn heading(text: &str, all: &mut Vec<Line>) {
    all.push(line(Tone::Plain, ""));
    all.push(line(Tone::Heading, text));
}

fn problems(overview: &Overview, now: Timestamp, all: &mut Vec<Line>) {
    if overview.problems.is_empty() {
        return;
    }
    heading("PROBLEMS", all);
    for problem in &overview.problems {
        let severity = problem.severity();
        let since = ago(problem.since, now);
        let text = format!("  {:<8}  {since:>7}  {}", word(severity), problem.summary);
        all.push(line(Tone::of(severity), text));
        for more in [&problem.detail, &problem.command].into_iter().filter(|more| !more.is_empty())
        {
            all.push(line(Tone::Plain, format!("{:21}{more}", "")));
        }
    }
    let hidden = (overview.problems_total as usize).saturating_sub(overview.problems.len());
    if hidden > 0 {
        all.push(line(Tone::Plain, format!("  and {hidden} more")));
    }
}

fn marks(overview: &Overview, all: &mut Vec<Line>) {
    if overview.radar.is_empty() {
        return;
    }
    heading("SCORES", all);
    for mark in &overview.radar {
        let name = mark.name.replace('_', " ");
        all.push(line(Tone::Plain, format!("  {name:<15} {:>5.1}", mark.value)));
        for reason in mark.reasons.iter().take(3) {
            all.push(line(Tone::Plain, format!("{:18}-{:.0}  {}", "", reason.points, reason.text)));
        }
    }
}

fn counts(overview: &Overview, all: &mut Vec<Line>) {
    if overview.counts.is_empty() {
        return;
    }
    heading("OBJECTS", all);
    for count in &overview.counts {
        let states: Vec<String> =
            count.states.iter().map(|(state, number)| format!("{number} {state}")).collect();
        let text = format!("  {:<15} {:>5}  {}", count.kind, count.total, states.join(", "));
        let tone = if count.healthy < count.total { Tone::Warning } else { Tone::Plain };
        all.push(line(tone, text));
    }
}

fn room(overview: &Overview, now: Timestamp, all: &mut Vec<Line>) {
    if overview.capacity.is_empty() {
        return;
    }
    heading("CAPACITY", all);
    for capacity in &overview.capacity {
        let share = capacity.used_bytes as f64 / capacity.total_bytes.max(1) as f64;
        let tone = match share {
            share if share >= capacity.full => Tone::Bad,
            share if share >= capacity.near_full => Tone::Warning,
            _ => Tone::Plain,
        };
        all.push(line(tone, full(capacity, share, now)));
    }
}

fn full(capacity: &Capacity, share: f64, now: Timestamp) -> String {
    let name = capacity.object.as_ref().map_or("", |object| object.name.as_str());
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let text = format!(
        "  {name:<15} {:>5.1} %  {:.1} of {:.1} GiB",
        share * 100.0,
        gib(capacity.used_bytes),
        gib(capacity.total_bytes)
    );
    text + &forecast(capacity, now)
}

/// When it is full, and how sure that is.
fn forecast(capacity: &Capacity, now: Timestamp) -> String {
    let left = |at: Option<prost_types::Timestamp>| {
        let hours = at?.seconds.saturating_sub(now.as_second()).max(0) / 3600;
        Some(if hours < 48 { format!("{hours} h") } else { format!("{} d", hours / 24) })
    };
    let earliest = left(capacity.full_earliest);
    match (left(capacity.full_at), earliest, left(capacity.full_latest)) {
        (Some(at), Some(earliest), Some(latest)) if earliest != latest => {
            format!(", full in {at} ({earliest} to {latest})")
        }
        (Some(at), Some(earliest), None) => format!(", full in {at} (at least {earliest})"),
        (Some(at), ..) => format!(", full in {at}"),
        (None, Some(earliest), _) => format!(", not full for at least {earliest}"),
        (None, None, _) => String::new(),
    }
}

fn sources(overview: &Overview, now: Timestamp, all: &mut Vec<Line>) {
    let failing: Vec<_> =
        overview.sources.iter().filter(|s| s.stale || !s.error.is_empty()).collect();
    if failing.is_empty() {
        return;
    }
    heading("STALE SOURCES", all);
    for source in failing {
        let age = ago(source.fetched_at, now);
        let text =
            format!("  {} {}: last {age} ago; {}", source.name, source.section, source.error);
        all.push(line(Tone::Warning, text));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::selvage::dashboard::{Count, Mark, Object, Problem, Reason, Source, Verdict};

    use super::*;

    #[test]
    fn everything_that_matters_is_said() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let at = |seconds: i64| {
            Some(prost_types::Timestamp { seconds: 1_800_000_000 + seconds, nanos: 0 })
        };
        let severity = Severity::Critical.into();
        let overview = Overview {
            verdict: Some(Verdict { severity, sentence: "Cloudlet a/b is offline.".into() }),
            problems: vec![Problem {
                severity,
                summary: "Cloudlet a/b is offline".into(),
                command: "selvage cloudletinfo show".into(),
                since: at(-300),
                ..Problem::default()
            }],
            problems_total: 4,
            radar: vec![Mark {
                name: "cluster_health".into(),
                value: 0.0,
                reasons: vec![Reason {
                    text: "it is offline".into(),
                    points: 100.0,
                    ..Default::default()
                }],
            }],
            counts: vec![Count {
                kind: "cloudlet".into(),
                total: 1,
                states: [("offline".to_owned(), 1)].into_iter().collect(),
                ..Count::default()
            }],
            capacity: vec![Capacity {
                object: Some(Object { name: "vg".into(), ..Object::default() }),
                used_bytes: 9 << 30,
                total_bytes: 10 << 30,
                near_full: 0.85,
                full: 0.95,
                full_at: at(5 * 86_400),
                full_earliest: at(30 * 3600),
                full_latest: at(9 * 86_400),
                ..Capacity::default()
            }],
            sources: vec![Source {
                name: "ceph".into(),
                section: "storage".into(),
                fetched_at: at(-90),
                stale: true,
                error: "connection refused".into(),
            }],
            ..Overview::default()
        };
        let shown = lines(&overview, now);
        let text: Vec<&str> = shown.iter().map(|line| line.text.as_str()).collect();
        let expected = "\
CRITICAL  Cloudlet a/b is offline.

PROBLEMS
  CRITICAL    5 min  Cloudlet a/b is offline
                     selvage cloudletinfo show
  and 3 more

SCORES
  cluster health    0.0
                  -100  it is offline

OBJECTS
  cloudlet            1  1 offline

CAPACITY
  vg               90.0 %  9.0 of 10.0 GiB, full in 5 d (30 h to 9 d)

STALE SOURCES
  ceph storage: last 90 s ago; connection refused";
        assert_eq!(text.join("\n"), expected);
        assert_eq!(shown[0].tone, Tone::Bad);
    }
}
