//! Machines that must stay out, whatever certificate they show.

use selvage_api::selvage::identity::{
    BlockMachineRequest, ListBlockedMachinesRequest, ListBlockedMachinesResponse,
    UnblockMachineRequest, identity_service_client::IdentityServiceClient,
};

use super::join::machine;
use crate::{Error, output, session::Session};

const LIST: &str = "selvage.identity.ListBlockedMachinesResponse";

/// `selvage machine`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage machine block node/rack3-7
  selvage machine list
  selvage machine unblock node/rack3-7

A machine gets its certificate with `selvage join-token create` and `selvage join`.")]
pub enum Machine {
    /// Refuse a machine every call, at once, and a new certificate too
    Block(Block),
    /// Let a machine in again, with any certificate in its name
    Unblock(Unblock),
    /// List the machines that are blocked
    List,
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
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

pub(crate) async fn run(command: Machine, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Machine::Block(args) => block(args, session).await,
        Machine::Unblock(args) => unblock(args, session).await,
        Machine::List => list(session).await,
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

async fn list(session: &mut Session<'_>) -> Result<(), Error> {
    let answer = session
        .client()
        .await?
        .call(ListBlockedMachinesRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).list_blocked_machines(request).await
        })
        .await?;
    session.printer().message(&output::dynamic(LIST, &answer)?)
}
