//! `selvage dashboard` and `selvage health`: the overview on a terminal.

mod follow;
mod screen;
mod text;

use std::io::Write;

use selvage_api::{
    Code,
    selvage::dashboard::{
        GetOverviewRequest, Overview, OverviewUpdate, Severity,
        dashboard_service_client::DashboardServiceClient,
    },
};

use crate::{Error, error::printable, output, session::Session};

/// `selvage dashboard`
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Dashboard {
    /// Stay on the screen and follow what changes
    #[arg(long, short)]
    pub watch: bool,
}

/// Exit codes of `selvage health`, as monitoring programs expect them.
const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
const UNKNOWN: u8 = 3;

async fn overview(session: &mut Session<'_>) -> Result<Overview, Error> {
    let client = session.client().await?;
    client
        .call(GetOverviewRequest {}, |channel, request| async move {
            DashboardServiceClient::new(channel).get_overview(request).await
        })
        .await
}

pub(crate) async fn dashboard(args: &Dashboard, session: &mut Session<'_>) -> Result<(), Error> {
    if args.watch {
        return screen::watch(session).await;
    }
    let overview = overview(session).await?;
    if session.global.output.is_some() {
        let message = output::dynamic("selvage.dashboard.Overview", &overview)?;
        return session.printer().message(&message);
    }
    let colour = session.io.colour_on_out(session.global.color);
    for line in text::lines(&overview, jiff::Timestamp::now()) {
        let (before, after) = if colour { line.tone.codes() } else { ("", "") };
        let shown = printable(&line.text);
        writeln!(session.io.out, "{before}{shown}{after}").map_err(Error::Output)?;
    }
    Ok(())
}

/// One line, and 0, 1 or 2 for what is well, a warning and what does not work;
/// 3 when nobody can tell.
pub(crate) async fn health(session: &mut Session<'_>) -> Result<(), Error> {
    let (line, code) = match overview(session).await {
        Ok(overview) => judged(&overview),
        Err(error) if unknown(error.code()) => (format!("UNKNOWN: {error}"), UNKNOWN),
        Err(error) => return Err(error),
    };
    writeln!(session.io.out, "{}", printable(&line)).map_err(Error::Output)?;
    if code == 0 { Ok(()) } else { Err(Error::Exited(code)) }
}

/// The server is not there; who may not ask is told so instead.
fn unknown(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Internal)
}

fn judged(overview: &Overview) -> (String, u8) {
    let verdict = overview.verdict.clone().unwrap_or_default();
    let (word, code) = match verdict.severity() {
        Severity::Ok | Severity::Notice => ("OK", 0),
        Severity::Warning => ("WARNING", WARNING),
        Severity::Critical => ("CRITICAL", CRITICAL),
    };
    (format!("{word}: {}", verdict.sentence), code)
}

/// Takes an update over into what is known.
fn apply(known: &mut Overview, update: OverviewUpdate) {
    let OverviewUpdate { version, changed, overview, problems, problems_ended, time, .. } = update;
    (known.version, known.time) = (version, time);
    let new = overview.unwrap_or_default();
    for name in &changed {
        match name.as_str() {
            "verdict" => known.verdict.clone_from(&new.verdict),
            "problems" => known.problems.clone_from(&new.problems),
            "problems_total" => known.problems_total = new.problems_total,
            "counts" => known.counts.clone_from(&new.counts),
            "radar" => known.radar.clone_from(&new.radar),
            "capacity" => known.capacity.clone_from(&new.capacity),
            "sources" => known.sources.clone_from(&new.sources),
            "places" => known.places.clone_from(&new.places),
            // Of a server that is newer than we are.
            _ => {}
        }
    }
    known.problems.retain(|problem| !problems_ended.contains(&problem.id));
    for problem in problems {
        known.problems.retain(|old| old.id != problem.id);
        known.problems.push(problem);
    }
    known.problems.sort_by_key(|problem| {
        let since = problem.since.map(|since| (since.seconds, since.nanos));
        (std::cmp::Reverse(problem.severity), since)
    });
}

#[cfg(test)]
mod tests {
    use selvage_api::selvage::dashboard::{Problem, Verdict};

    use super::*;

    fn problem(id: &str, severity: Severity) -> Problem {
        Problem { id: id.into(), severity: severity.into(), ..Problem::default() }
    }

    #[test]
    fn an_update_changes_what_it_names() {
        let mut known = Overview {
            problems: vec![problem("a", Severity::Warning), problem("b", Severity::Critical)],
            problems_total: 2,
            ..Overview::default()
        };
        let verdict = Verdict { sentence: "So it is.".into(), ..Verdict::default() };
        let update = OverviewUpdate {
            version: 7,
            changed: vec!["verdict".into(), "something new".into()],
            overview: Some(Overview { verdict: Some(verdict), ..Overview::default() }),
            problems: vec![problem("c", Severity::Critical), problem("a", Severity::Notice)],
            problems_ended: vec!["b".into()],
            ..OverviewUpdate::default()
        };
        apply(&mut known, update);
        let ids: Vec<&str> = known.problems.iter().map(|problem| problem.id.as_str()).collect();
        assert_eq!(ids, ["c", "a"]);
        assert_eq!((known.version, known.problems_total), (7, 2));
        assert_eq!(known.verdict.map(|verdict| verdict.sentence).as_deref(), Some("So it is."));
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let with = |severity: Severity| Overview {
            verdict: Some(Verdict { severity: severity.into(), sentence: "x.".into() }),
            ..Overview::default()
        };
        assert_eq!(judged(&with(Severity::Notice)), ("OK: x.".into(), 0));
        assert_eq!(judged(&with(Severity::Warning)), ("WARNING: x.".into(), 1));
        assert_eq!(judged(&with(Severity::Critical)), ("CRITICAL: x.".into(), 2));
    }
}
