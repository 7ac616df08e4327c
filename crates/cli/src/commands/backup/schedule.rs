//! `selvage backup schedule`.

use selvage_api::selvage::volumes::{
    DeleteScheduleRequest, ListSchedulesRequest, ListSchedulesResponse, Retention,
    Schedule as Described, SetScheduleRequest,
};

use super::{
    args::{Schedule, Set},
    ask, time,
};
use crate::{
    Error,
    commands::node::{sheet::Sheet, span},
    output,
    session::Session,
};

const SCHEDULES: &str = "selvage.volumes.ListSchedulesResponse";

pub(super) async fn run(command: Schedule, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Schedule::Set(args) => set(*args, session).await,
        Schedule::List => list(session).await,
        Schedule::Delete { name } => {
            let client = session.client().await?;
            let request = DeleteScheduleRequest { name: name.clone() };
            let gone = ask(&client, request, async |mut client, request| {
                client.delete_schedule(request).await
            });
            gone.await?;
            session.io.say(&format!("Schedule {name} has ended; what it made stays."))
        }
    }
}

async fn set(args: Set, session: &mut Session<'_>) -> Result<(), Error> {
    if args.store.credentials.is_empty() {
        return Err(Error::invalid(
            "a schedule needs --credentials NAME: keys are not kept, only the name of those that \
             the server's machine has",
        ));
    }
    let schedule = Described {
        name: args.name,
        volume: args.volume,
        repository: Some(args.store.bare(&args.repository)),
        every_seconds: args.every.as_secs(),
        offset_seconds: args.at.unwrap_or_default().as_secs(),
        keep: args.keep.rules(),
        verify_every_seconds: args.verify_every.unwrap_or_default().as_secs(),
        verify_read_percent: args.verify_read,
        ..Described::default()
    };
    let client = session.client().await?;
    let request = SetScheduleRequest { schedule: Some(schedule) };
    let made =
        ask(&client, request, async |mut client, request| client.set_schedule(request).await);
    let made = made.await?;
    print(ListSchedulesResponse { schedules: vec![made] }, session)
}

async fn list(session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let answer = ask(&client, ListSchedulesRequest {}, async |mut client, request| {
        client.list_schedules(request).await
    });
    print(answer.await?, session)
}

fn print(answer: ListSchedulesResponse, session: &mut Session<'_>) -> Result<(), Error> {
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(SCHEDULES, &answer)?);
    }
    let mut sheet = Sheet::new(&[
        "NAME",
        "VOLUME",
        "REPOSITORY",
        "EVERY",
        "NEXT",
        "KEEP",
        "ERROR",
        "+VERIFIED",
        "+REPORT",
    ]);
    for schedule in &answer.schedules {
        let repository = schedule.repository.clone().unwrap_or_default();
        sheet.push([
            schedule.name.clone(),
            schedule.volume.clone(),
            repository.path,
            span(i64::try_from(schedule.every_seconds).unwrap_or(i64::MAX)),
            time(schedule.next_at.as_ref()),
            schedule.keep.as_ref().map(rules).unwrap_or_default(),
            schedule.error.clone(),
            time(schedule.verified_at.as_ref()),
            schedule.verify_report.clone(),
        ]);
    }
    sheet.print(session)
}

/// `7 daily, 12 monthly`
fn rules(keep: &Retention) -> String {
    let all = [
        (keep.last, "last"),
        (keep.hourly, "hourly"),
        (keep.daily, "daily"),
        (keep.weekly, "weekly"),
        (keep.monthly, "monthly"),
        (keep.yearly, "yearly"),
    ];
    let given = all.iter().filter(|(count, _)| *count > 0);
    given.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}
