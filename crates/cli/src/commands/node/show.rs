//! The commands that ask once and print a table, or again and again.

use std::{io::Write, time::Duration};

use selvage_api::{os, time};
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    args::{self, SortBy},
    fleet::{
        Answers, Failures, Fleet, Reply, in_namespace, machine_client, network_client, os_client,
        time_client, warn,
    },
    memory as memories,
    sheet::Sheet,
    tables::{self, From},
    watch,
};
use crate::{Error, Format, error::printable, session::Session};

/// Stands for all namespaces.
const EVERYWHERE: &str = "*";

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

/// Timeout of each machine for the first look: who takes longer delays nobody
/// but himself.
const FIRST_LOOK: Duration = Duration::from_secs(2);

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
    let people = matches!(session.global.output, None | Some(Format::Table | Format::Wide));
    let hurried = fleet.is_many() && !fleet.has_node_timeout() && (people || watch.watch);
    let first = fleet.of(fleet.named(), Some(FIRST_LOOK));
    let first = if hurried { &first } else { fleet };
    watch::repeat(watch, session, async |session, key| {
        let mut answers = first.ask(question.clone(), &send).await?;
        // The next frame looks again.
        let late = if hurried && !watch.watch { answers.take_late() } else { Vec::new() };
        let seen = answers.good().len();
        if late.is_empty() || !answers.reply.parts().is_empty() {
            show(&answers, session, key)?;
        }
        if late.is_empty() {
            return Ok(());
        }
        session.io.say(&printable(&format!("waiting for {}", late.join(", "))))?;
        session.io.out.flush().map_err(Error::Output)?;
        let rest = fleet.of(late, None);
        let rest = rest.ask(question.clone(), &send).await?;
        match rest.good().is_empty() {
            // Some have answered: those who have not are warned of.
            true => rest.failures().looked(seen, session.io),
            false => show(&rest, session, key),
        }
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
    let request = os::ContainersRequest { namespace: namespace.clone(), driver };
    let send = |to, request| async move { os_client(to).containers(request).await };
    let once = !args.watch.watch && namespace != EVERYWHERE;
    asked(fleet, args.watch, session, request, send, |answers, session, _| {
        in_namespace(print(answers, session, tables::containers), &namespace)?;
        let good = answers.good();
        if once && !good.is_empty() && good.iter().all(|(_, of)| of.containers.is_empty()) {
            session.io.say(&format!(
                "no containers in the namespace {namespace}; --namespace '*' shows those of all"
            ))?;
        }
        Ok(())
    })
    .await
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
