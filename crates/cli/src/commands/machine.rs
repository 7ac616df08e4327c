//! Machines that have joined, and those that must stay out whatever certificate
//! they show.

use selvage_api::selvage::identity::{
    self as wire, BlockMachineRequest, ListBlockedMachinesRequest, ListBlockedMachinesResponse,
    ListMachinesRequest, ListMachinesResponse, RemoveMachineRequest, UnblockMachineRequest,
    identity_service_client::IdentityServiceClient,
};

use super::{
    join::machine,
    node::{sheet::Sheet, span},
};
use crate::{Error, output, session::Session};

/// Seconds without a report after which a machine is away. Machines report
/// several times a minute, and once a minute that is written down.
const AWAY_AFTER: i64 = 150;
const MACHINES: &str = "selvage.identity.ListMachinesResponse";
const LIST: &str = "selvage.identity.ListBlockedMachinesResponse";

/// `selvage machine`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage machine list
  selvage machine list -l rack=3,role!=spare
  selvage machine block node/rack3-7
  selvage machine list --blocked
  selvage machine unblock node/rack3-7

A machine gets its certificate with `selvage join-token create` and `selvage node
--controller` or `selvage join`.")]
pub enum Machine {
    /// Block a machine at once: no calls, no new certificate
    Block(Block),
    /// Unblock a machine, with any certificate in its name
    Unblock(Unblock),
    /// List the machines that have joined
    #[command(visible_alias = "ls")]
    List(List),
    /// Remove a machine from the list; it returns when it reports again
    Remove(Remove),
}

/// `selvage machine list`
#[derive(clap::Args, Debug)]
pub struct List {
    /// Only those with these labels, such as rack=3,role!=spare
    #[arg(short = 'l', long, value_name = "LABELS", default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Those that are blocked, and by whom
    #[arg(long, conflicts_with = "selector")]
    pub blocked: bool,
}

/// `selvage machine remove`
#[derive(clap::Args, Debug)]
pub struct Remove {
    /// As it is listed
    #[arg(value_parser = machine)]
    pub machine: String,
}

/// `selvage machine block`
#[derive(clap::Args, Debug)]
pub struct Block {
    /// controller, cloudlet/OPERATOR/NAME, node/NAME or dme/NAME
    #[arg(value_parser = machine)]
    pub machine: String,
}

/// `selvage machine unblock`
#[derive(clap::Args, Debug)]
pub struct Unblock {
    /// As it was blocked
    #[arg(value_parser = machine)]
    pub machine: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

pub(crate) async fn run(command: Machine, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Machine::Block(args) => block(args, session).await,
        Machine::Unblock(args) => unblock(args, session).await,
        Machine::List(List { blocked: true, .. }) => list_blocked(session).await,
        Machine::List(args) => list(args, session).await,
        Machine::Remove(args) => remove(args, session).await,
    }
}

async fn block(args: Block, session: &mut Session<'_>) -> Result<(), Error> {
    let request = BlockMachineRequest { machine: args.machine };
    let answer = session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).block_machine(request).await
        })
        .await?;
    let mut printer = session.printer();
    if !printer.is_table() {
        return printer
            .message(&output::dynamic("selvage.identity.BlockMachineResponse", &answer)?);
    }
    let machines = ListBlockedMachinesResponse { machines: answer.blocked.into_iter().collect() };
    printer.message(&output::dynamic(LIST, &machines)?)
}

async fn unblock(args: Unblock, session: &mut Session<'_>) -> Result<(), Error> {
    let name = args.machine;
    let question = format!("Let {name} in again, with any certificate in its name?");
    if !args.yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{name} stays blocked")));
    }
    let request = UnblockMachineRequest { machine: name.clone() };
    session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).unblock_machine(request).await
        })
        .await?;
    session.io.say(&format!("{name} may come in again."))
}

async fn list(args: List, session: &mut Session<'_>) -> Result<(), Error> {
    let request = ListMachinesRequest { selector: args.selector };
    let answer = session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).list_machines(request).await
        })
        .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(MACHINES, &answer)?);
    }
    sheet(&answer, jiff::Timestamp::now().as_second()).print(session)?;
    answer.machines.iter().filter_map(rivalry).try_for_each(|line| session.io.say(&line))
}

/// Sentence about two agents that report under one name.
fn rivalry(machine: &wire::Machine) -> Option<String> {
    let [one, other] = machine.rivals.as_slice() else { return None };
    Some(format!("two agents report as {} from {one} and {other}: stop one", machine.machine))
}

/// A moment to the minute: reports are written down once a minute.
fn clock(seconds: i64) -> String {
    let moment = jiff::Timestamp::from_second(seconds);
    moment.map_or("-".into(), |moment| moment.strftime("%Y-%m-%d %H:%MZ").to_string())
}

fn sheet(answer: &ListMachinesResponse, now: i64) -> Sheet {
    let mut sheet = Sheet::new(&[
        "MACHINE",
        "ADDRESS",
        "STATE",
        "LAST SEEN",
        "LABELS",
        "+VERSION",
        "+CERTIFICATE ENDS",
    ]);
    for machine in &answer.machines {
        let seen = machine.last_seen.as_ref();
        let state = match seen {
            _ if machine.blocked => "blocked".to_owned(),
            Some(_) if !machine.rivals.is_empty() => "two agents".to_owned(),
            None => "joined".to_owned(),
            Some(seen) if now - seen.seconds <= AWAY_AFTER => "up".to_owned(),
            Some(seen) => format!("away since {}", clock(seen.seconds)),
        };
        let seen = seen.map_or("-".to_owned(), |at| format!("{} ago", span(now - at.seconds)));
        let ends = machine.certificate_ends.as_ref();
        let ends = ends.and_then(|at| jiff::Timestamp::from_second(at.seconds).ok());
        let mut labels: Vec<String> =
            machine.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.sort();
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        sheet.push([
            machine.machine.clone(),
            or_none(machine.address.clone()),
            state,
            seen,
            or_none(labels.join(",")),
            or_none(machine.version.clone()),
            ends.map_or("-".to_owned(), |at| at.to_string()),
        ]);
    }
    sheet
}

async fn remove(args: Remove, session: &mut Session<'_>) -> Result<(), Error> {
    let request = RemoveMachineRequest { machine: args.machine.clone() };
    session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).remove_machine(request).await
        })
        .await?;
    session.io.say(&format!("{} is off the list.", args.machine))
}

async fn list_blocked(session: &mut Session<'_>) -> Result<(), Error> {
    let answer = session
        .client()
        .await?
        .call(ListBlockedMachinesRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).list_blocked_machines(request).await
        })
        .await?;
    session.printer().message(&output::dynamic(LIST, &answer)?)
}

#[cfg(test)]
mod tests {
    use selvage_api::selvage::identity::Machine as Known;

    use super::*;

    #[test]
    fn machines_are_a_table() {
        let seen = prost_types::Timestamp { seconds: 1000, nanos: 0 };
        let machines = vec![
            Known {
                machine: "node/a".into(),
                address: "192.0.2.1:8443".into(),
                labels: [("role", "worker"), ("rack", "3")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                last_seen: Some(seen),
                ..Known::default()
            },
            Known {
                machine: "node/gone".into(),
                last_seen: Some(prost_types::Timestamp { seconds: 600, nanos: 0 }),
                ..Known::default()
            },
            Known { machine: "node/new".into(), ..Known::default() },
            Known {
                machine: "node/twice".into(),
                address: "rack1:1".into(),
                last_seen: Some(seen),
                rivals: vec!["rack1:1".into(), "rack2:1".into()],
                ..Known::default()
            },
            Known { machine: "node/stolen".into(), blocked: true, ..Known::default() },
        ];
        let lines: Vec<String> = machines.iter().filter_map(rivalry).collect();
        assert_eq!(lines, ["two agents report as node/twice from rack1:1 and rack2:1: stop one"]);
        let text = sheet(&ListMachinesResponse { machines }, 1061).text(crate::Format::Table);
        assert_eq!(
            text,
            "MACHINE       ADDRESS          STATE                          LAST SEEN   LABELS\n\
             node/a        192.0.2.1:8443   up                             1m1s ago    rack=3,role=worker\n\
             node/gone     -                away since 1970-01-01 00:10Z   7m41s ago   -\n\
             node/new      -                joined                         -           -\n\
             node/twice    rack1:1          two agents                     1m1s ago    -\n\
             node/stolen   -                blocked                        -           -\n"
        );
    }
}
