//! Services of machines: how they are, and changing that.

use std::fmt::Write;

use jiff::Timestamp;
use selvage_api::machine::{
    ServiceEvent, ServiceInfo, ServiceList, ServiceRestartRequest, ServiceStartRequest,
    ServiceStopRequest,
};

use super::{
    args::{ServiceAction, Services},
    fleet::{Answers, Fleet, Reply, machine_client},
    sheet::Sheet,
    show, size,
    tables::From,
    watch,
};
use crate::{Error, error::printable, session::Session};

pub(crate) async fn run(
    fleet: &Fleet,
    args: &Services,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let id = args.id.clone().unwrap_or_default();
    let action = match args.action {
        None | Some(ServiceAction::Status) => None,
        Some(ServiceAction::Start) => Some("starting"),
        Some(ServiceAction::Stop) => Some("stopping"),
        Some(ServiceAction::Restart) => Some("restarting"),
    };
    if let Some(action) = action {
        fleet.announce(&format!("{action} the service {id:?}"), session)?;
    }
    match args.action {
        None | Some(ServiceAction::Status) => {
            watch::repeat(args.watch, session, async |session, _| {
                status(fleet, args.id.as_deref(), session).await
            })
            .await
        }
        Some(ServiceAction::Start) => {
            let answers = fleet
                .ask(ServiceStartRequest { id }, |channel, request| async move {
                    machine_client(channel).service_start(request).await
                })
                .await?;
            changed(&answers, session, |answer| &answer.resp)
        }
        Some(ServiceAction::Stop) => {
            let answers = fleet
                .ask(ServiceStopRequest { id }, |channel, request| async move {
                    machine_client(channel).service_stop(request).await
                })
                .await?;
            changed(&answers, session, |answer| &answer.resp)
        }
        Some(ServiceAction::Restart) => {
            let answers = fleet
                .ask(ServiceRestartRequest { id }, |channel, request| async move {
                    machine_client(channel).service_restart(request).await
                })
                .await?;
            changed(&answers, session, |answer| &answer.resp)
        }
    }
}

fn changed<R: Reply>(
    answers: &Answers<'_, R>,
    session: &mut Session<'_>,
    words: impl Fn(&R::Part) -> &String,
) -> Result<(), Error> {
    let good = answers.good();
    if !answers.print(session)? && !good.is_empty() {
        let mut sheet = Sheet::new(&["NODE", "RESPONSE"]);
        for (node, answer) in &good {
            sheet.push([(*node).to_owned(), words(answer).clone()]);
        }
        sheet.print(session)?;
    }
    answers.failures().acted(good.len(), session.io)
}

async fn status(fleet: &Fleet, id: Option<&str>, session: &mut Session<'_>) -> Result<(), Error> {
    let mut answers = fleet
        .ask(
            (),
            |channel, request| async move { machine_client(channel).service_list(request).await },
        )
        .await?;
    let now = Timestamp::now();
    let Some(id) = id else {
        return show::print(&answers, session, |good| table(good, now));
    };
    for message in &mut answers.reply.messages {
        message.services.retain(|service| service.id == id);
    }
    let good = answers.good();
    let found = good.iter().any(|(_, answer)| !answer.services.is_empty());
    if !good.is_empty() && !found {
        answers.failures().looked(good.len(), session.io)?;
        return Err(Error::Unknown {
            kind: "service",
            name: id.to_owned(),
            suggestions: Vec::new(),
            hint: "`selvage node services` shows those there are".into(),
        });
    }
    if !answers.print(session)? {
        let text = printable(&details(&good, now));
        session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
    }
    answers.failures().looked(good.len(), session.io)
}

pub(crate) fn table(answers: &From<'_, ServiceList>, now: Timestamp) -> Sheet {
    let mut sheet =
        Sheet::new(&["NODE", "SERVICE", "STATE", "HEALTH", "LAST CHANGE", "LAST EVENT"]);
    for (node, answer) in answers {
        for service in &answer.services {
            let last = events(service).last();
            sheet.push([
                (*node).to_owned(),
                service.id.clone(),
                service.state.clone(),
                health(service).to_owned(),
                last.map_or(String::new(), |event| ago(event, now)),
                last.map_or("<none>".to_owned(), |event| event.msg.clone()),
            ]);
        }
    }
    sheet
}

/// One service in full, the newest event first. The widest label is that of
/// the health's words.
pub(crate) fn details(answers: &From<'_, ServiceList>, now: Timestamp) -> String {
    let mut text = String::new();
    for (node, answer) in answers {
        for service in &answer.services {
            let mut lines = vec![
                ("NODE", (*node).to_owned()),
                ("ID", service.id.clone()),
                ("STATE", service.state.clone()),
                ("HEALTH", health(service).to_owned()),
            ];
            let said = service.health.as_ref().map_or("", |health| &health.last_message);
            if !said.is_empty() {
                lines.push(("LAST HEALTH MESSAGE", said.to_owned()));
            }
            let label = |at| if at == 0 { "EVENTS" } else { "" };
            lines.extend(events(service).iter().rev().enumerate().map(|(at, event)| {
                let ServiceEvent { state, msg, .. } = event;
                (label(at), format!("[{state}]: {msg} ({})", ago(event, now)))
            }));
            let width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0) + 3;
            for (label, value) in lines {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{label:<width$}{value}");
            }
        }
    }
    text
}

fn events(service: &ServiceInfo) -> &[ServiceEvent] {
    service.events.as_ref().map_or(&[], |events| &events.events)
}

fn health(service: &ServiceInfo) -> &'static str {
    match &service.health {
        Some(health) if !health.unknown && health.healthy => "OK",
        Some(health) if !health.unknown => "Fail",
        _ => "?",
    }
}

fn ago(event: &ServiceEvent, now: Timestamp) -> String {
    let seconds = event.ts.as_ref().map_or(0, |time| now.as_second() - time.seconds);
    format!("{} ago", size::span(seconds))
}
