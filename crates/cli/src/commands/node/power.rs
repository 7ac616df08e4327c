//! Changes of machines: restarts, reboots, upgrades. None of it may fail on
//! one machine and look as if it had not.

use selvage_api::{machine, os};

use super::{
    args::{ConfirmArgs, Nodes, Restart, Upgrade},
    fleet::{Answers, Fleet, Reply, in_namespace, machine_client, os_client},
    sheet::Sheet,
};
use crate::{Error, error::printable, session::Session};

/// Silent when it worked, unless asked to print what came back.
fn done<R: Reply>(answers: &Answers<'_, R>, session: &mut Session<'_>) -> Result<(), Error> {
    answers.print(session)?;
    answers.failures().acted(answers.good().len(), session.io)
}

pub(crate) async fn restart(
    fleet: &Fleet,
    args: Restart,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let (namespace, driver) = args.place.place();
    let (id, signal_only) = (args.id.clone(), args.signal_only);
    fleet.announce(&format!("restarting {id:?}"), session)?;
    let request = os::RestartRequest {
        namespace: namespace.clone(),
        driver,
        id: args.id,
        signal_only: args.signal_only,
        grace_seconds: args
            .grace
            .map_or(0, |grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX)),
    };
    let answers = fleet
        .ask_patiently(args.grace.unwrap_or_default(), request, |channel, request| async move {
            os_client(channel).restart(request).await
        })
        .await;
    let answers = in_namespace(answers, &namespace)?;
    let good = answers.good();
    if !answers.print(session)? && !good.is_empty() {
        restarts(&good, &id, signal_only).print(session)?;
    }
    in_namespace(answers.failures().acted(good.len(), session.io), &namespace)
}

pub(crate) fn restarts(answers: &[(&str, &os::Restart)], id: &str, signal_only: bool) -> Sheet {
    let mut sheet = Sheet::new(&["NODE", "RESPONSE"]);
    for (node, answer) in answers {
        let response = match (answer.old_pid, answer.new_pid) {
            (old, _) if signal_only => {
                format!("Container {id:?} was sent SIGTERM (process {old})")
            }
            (0, 0) => format!("Container {id:?} restarted"),
            (0, new) => format!("Container {id:?} started (process {new})"),
            (old, 0) => {
                format!("Container {id:?} ended (process {old}) and does not run again yet")
            }
            (old, new) => format!("Container {id:?} restarted (process {old}, now {new})"),
        };
        sheet.push([(*node).to_owned(), response]);
    }
    sheet
}

pub(crate) async fn reboot(
    nodes: Nodes,
    sure: &ConfirmArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let fleet = confirmed("Reboot", nodes, sure, session).await?;
    let answers = fleet
        .ask((), |channel, request| async move { machine_client(channel).reboot(request).await })
        .await?;
    done(&answers, session)
}

pub(crate) async fn shutdown(
    nodes: Nodes,
    sure: &ConfirmArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let fleet = confirmed("Turn off", nodes, sure, session).await?;
    let answers = fleet
        .ask((), |channel, request| async move { machine_client(channel).shutdown(request).await })
        .await?;
    done(&answers, session)
}

pub(crate) async fn reset(
    nodes: Nodes,
    sure: &ConfirmArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let fleet = confirmed("Wipe the configuration of", nodes, sure, session).await?;
    let answers = fleet
        .ask((), |channel, request| async move { machine_client(channel).reset(request).await })
        .await?;
    done(&answers, session)
}

/// Connects, and has the person confirm which machines it will be.
async fn confirmed(
    action: &str,
    nodes: Nodes,
    sure: &ConfirmArgs,
    session: &mut Session<'_>,
) -> Result<Fleet, Error> {
    let fleet = Fleet::connect(nodes, session).await?;
    let names = fleet.names().join(", ");
    if sure.yes && fleet.is_many() {
        session.io.say(&printable(&format!("{action} {names}")))?;
    }
    if sure.yes || session.confirm(&format!("{action} {names}?"), "say --yes to mean it")? {
        Ok(fleet)
    } else {
        Err(Error::Declined(format!("{names}: left alone")))
    }
}

pub(crate) async fn upgrade(
    fleet: &Fleet,
    args: Upgrade,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    fleet.announce(&format!("upgrading to {:?}", args.image), session)?;
    let request = machine::UpgradeRequest { image: args.image };
    let answers = fleet
        .ask(
            request,
            |channel, request| async move { machine_client(channel).upgrade(request).await },
        )
        .await?;
    let good = answers.good();
    if !answers.print(session)? && !good.is_empty() {
        upgrades(&good, jiff::Timestamp::now()).print(session)?;
    }
    answers.failures().acted(good.len(), session.io)
}

pub(crate) fn upgrades(answers: &[(&str, &machine::Upgrade)], now: jiff::Timestamp) -> Sheet {
    let mut sheet = Sheet::new(&["NODE", "ACK", "STARTED"]);
    for (node, answer) in answers {
        let started = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        sheet.push([(*node).to_owned(), answer.ack.clone(), started]);
    }
    sheet
}
