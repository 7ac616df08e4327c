//! The commands that ask once and print a table, or again and again.

use selvage_api::{os, time};
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    args::{self, SortBy},
    fleet::{
        Answers, Failures, Fleet, Reply, machine_client, network_client, os_client, time_client,
        warn,
    },
    memory as memories,
    sheet::Sheet,
    tables::{self, From},
    watch,
};
use crate::{Error, session::Session};

/// Prints what was answered and warns of who did not.
pub(crate) fn print<R: Reply>(
    answers: &Answers<'_, R>,
    session: &mut Session<'_>,
    sheet: impl FnOnce(&From<'_, R::Part>) -> Sheet,
) -> Result<(), Error> {
    let good = answers.good();
    let failures: Failures = answers.failures();
    // The table's header alone would look as if there were nothing to list.
    if !answers.print(session)? && (failures.is_empty() || !good.is_empty()) {
        sheet(&good).print(session)?;
    }
    failures.looked(good.len(), session.io)
}

/// Asks, prints, and does so again if it shall be watched. What prints is told
/// which key was pressed meanwhile.
async fn asked<Q: Clone, R: Reply, F>(
    fleet: &Fleet,
    watch: args::Watch,
    session: &mut Session<'_>,
    question: Q,
    send: impl Fn(Channel, Request<Q>) -> F,
    mut show: impl FnMut(&Answers<'_, R>, &mut Session<'_>, Option<char>) -> Result<(), Error>,
) -> Result<(), Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    watch::repeat(watch, session, async |session, key| {
        show(&fleet.ask(question.clone(), &send).await?, session, key)
    })
    .await
}

/// The same where a table says it all.
async fn table<Q: Clone, R: Reply, F>(
    fleet: &Fleet,
    watch: args::Watch,
    session: &mut Session<'_>,
    question: Q,
    send: impl Fn(Channel, Request<Q>) -> F,
    sheet: fn(&From<'_, R::Part>) -> Sheet,
) -> Result<(), Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    let show =
        |answers: &Answers<'_, R>, session: &mut Session<'_>, _| print(answers, session, sheet);
    asked(fleet, watch, session, question, send, show).await
}

pub(crate) async fn containers(
    fleet: &Fleet,
    args: &args::Containers,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let (namespace, driver) = args.place();
    let request = os::ContainersRequest { namespace, driver };
    let send = |to, request| async move { os_client(to).containers(request).await };
    table(fleet, args.watch, session, request, send, tables::containers).await
}

pub(crate) async fn stats(
    fleet: &Fleet,
    args: &args::Containers,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let (namespace, driver) = args.place();
    let request = os::StatsRequest { namespace, driver };
    let send = |to, request| async move { os_client(to).stats(request).await };
    table(fleet, args.watch, session, request, send, tables::stats).await
}

pub(crate) async fn interfaces(
    fleet: &Fleet,
    watch: args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let send = |to, request| async move { network_client(to).interfaces(request).await };
    table(fleet, watch, session, (), send, tables::interfaces).await
}

pub(crate) async fn routes(
    fleet: &Fleet,
    watch: args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let send = |to, request| async move { network_client(to).routes(request).await };
    table(fleet, watch, session, (), send, tables::routes).await
}

pub(crate) async fn processes(
    fleet: &Fleet,
    args: &args::Processes,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut sort = args.sort;
    let send = |to, request| async move { os_client(to).processes(request).await };
    asked(fleet, args.watch, session, (), send, |answers, session, key| {
        match key {
            Some('c') => sort = SortBy::Cpu,
            Some('r' | 'm') => sort = SortBy::Rss,
            _ => {}
        }
        print(answers, session, |good| tables::processes(good, sort))
    })
    .await
}

pub(crate) async fn memory(
    fleet: &Fleet,
    args: &args::Memory,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let send = |to, request| async move { os_client(to).memory(request).await };
    asked(fleet, args.watch, session, (), send, |answers, session, _| {
        if !args.verbose {
            return print(answers, session, memories::brief);
        }
        let good = answers.good();
        if !answers.print(session)? {
            let text = memories::full(&good);
            session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
        }
        answers.failures().looked(good.len(), session.io)
    })
    .await
}

pub(crate) async fn mounts(
    fleet: &Fleet,
    watch: args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let send = |to, request| async move { machine_client(to).mounts(request).await };
    asked(fleet, watch, session, (), send, |answers, session, _| {
        for (node, answer) in answers.good() {
            for mount in answer.stats.iter().filter(|mount| !mount.error.is_empty()) {
                warn(session.io, node, &format!("{}: {}", mount.mounted_on, mount.error))?;
            }
        }
        print(answers, session, tables::mounts)
    })
    .await
}

pub(crate) async fn time(
    fleet: &Fleet,
    args: &args::Time,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let once = args::Watch::default();
    match &args.check {
        None => {
            let send = |to, request| async move { time_client(to).time(request).await };
            table(fleet, once, session, (), send, tables::times).await
        }
        Some(server) => {
            let request = time::TimeRequest { server: server.clone() };
            let send = |to, request| async move { time_client(to).time_check(request).await };
            table(fleet, once, session, request, send, tables::times).await
        }
    }
}
