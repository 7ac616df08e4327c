//! The commands that ask once and print a table, or again and again.

use selvage_api::{os, time};

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

pub(crate) async fn containers(
    fleet: &Fleet,
    args: &args::Containers,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let (namespace, driver) = args.place.place();
    let request = os::ContainersRequest { namespace, driver };
    watch::repeat(args.watch, session, async |session, _| {
        let answers = fleet
            .ask(request.clone(), |channel, request| async move {
                os_client(channel).containers(request).await
            })
            .await?;
        print(&answers, session, tables::containers)
    })
    .await
}

pub(crate) async fn stats(
    fleet: &Fleet,
    args: &args::Containers,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let (namespace, driver) = args.place.place();
    let request = os::StatsRequest { namespace, driver };
    watch::repeat(args.watch, session, async |session, _| {
        let answers = fleet
            .ask(request.clone(), |channel, request| async move {
                os_client(channel).stats(request).await
            })
            .await?;
        print(&answers, session, tables::stats)
    })
    .await
}

pub(crate) async fn processes(
    fleet: &Fleet,
    args: &args::Processes,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut sort = args.sort;
    watch::repeat(args.watch, session, async |session, key| {
        match key {
            Some('c') => sort = SortBy::Cpu,
            Some('r' | 'm') => sort = SortBy::Rss,
            _ => {}
        }
        let answers = fleet
            .ask((), |channel, request| async move { os_client(channel).processes(request).await })
            .await?;
        print(&answers, session, |good| tables::processes(good, sort))
    })
    .await
}

pub(crate) async fn memory(
    fleet: &Fleet,
    args: &args::Memory,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    watch::repeat(args.watch, session, async |session, _| {
        let answers = fleet
            .ask((), |channel, request| async move { os_client(channel).memory(request).await })
            .await?;
        if !args.verbose {
            return print(&answers, session, memories::brief);
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
    watch: &args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    watch::repeat(*watch, session, async |session, _| {
        let answers = fleet
            .ask(
                (),
                |channel, request| async move { machine_client(channel).mounts(request).await },
            )
            .await?;
        for (node, answer) in answers.good() {
            for mount in answer.stats.iter().filter(|mount| !mount.error.is_empty()) {
                warn(session.io, node, &format!("{}: {}", mount.mounted_on, mount.error))?;
            }
        }
        print(&answers, session, tables::mounts)
    })
    .await
}

pub(crate) async fn interfaces(
    fleet: &Fleet,
    watch: &args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    watch::repeat(*watch, session, async |session, _| {
        let answers = fleet
            .ask(
                (),
                |channel, request| async move { network_client(channel).interfaces(request).await },
            )
            .await?;
        print(&answers, session, tables::interfaces)
    })
    .await
}

pub(crate) async fn routes(
    fleet: &Fleet,
    watch: &args::Watch,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    watch::repeat(*watch, session, async |session, _| {
        let answers = fleet
            .ask(
                (),
                |channel, request| async move { network_client(channel).routes(request).await },
            )
            .await?;
        print(&answers, session, tables::routes)
    })
    .await
}

pub(crate) async fn time(
    fleet: &Fleet,
    args: &args::Time,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let answers = match &args.check {
        None => {
            fleet
                .ask((), |channel, request| async move { time_client(channel).time(request).await })
                .await?
        }
        Some(server) => {
            let request = time::TimeRequest { server: server.clone() };
            fleet
                .ask(request, |channel, request| async move {
                    time_client(channel).time_check(request).await
                })
                .await?
        }
    };
    print(&answers, session, tables::times)
}
