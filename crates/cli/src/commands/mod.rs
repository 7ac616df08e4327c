//! The commands, one module each.

pub(crate) mod api;
pub(crate) mod apply;
pub(crate) mod backup;
pub(crate) mod batch;
pub(crate) mod browser;
pub(crate) mod call;
pub(crate) mod certificate;
pub(crate) mod context;
pub(crate) mod dashboard;
pub(crate) mod dme;
pub(crate) mod dns;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod join;
pub(crate) mod kaas;
pub(crate) mod login;
pub(crate) mod machine;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod object;
pub(crate) mod operation;
pub(crate) mod pki;
pub(crate) mod progress;
pub(crate) mod revision;
pub(crate) mod roll;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod trust;
pub(crate) mod user;
pub(crate) mod volume;

use crate::{Command, Error, session::Session};

pub(crate) async fn dispatch(
    command: Command,
    session: &mut Session<'_>,
    root: clap::Command,
) -> Result<(), Error> {
    match command {
        Command::Login(args) => login::login(&args, session).await,
        Command::Logout => login::logout(session).await,
        Command::WhoAmI => status::whoami(session).await,
        Command::Context(args) => context::run(args, session),
        Command::Call(args) => call::run(args, session).await,
        Command::Explain(args) => explain::run(&args, session),
        Command::User(args) => user::run(args, session).await,
        Command::Token(args) => token::run(args, session).await,
        Command::JoinToken(args) => join::create_token(args, session).await,
        Command::Join(args) => join::join(&args, session).await,
        Command::Machine(args) => machine::run(args, session).await,
        Command::Pki(args) => pki::run(args, session).await,
        Command::Status => status::status(session).await,
        Command::Api(args) => api::run(&args, session),
        Command::Run(args) => Box::pin(run::run(&args, session)).await,
        Command::Object(object) => object::run(object, session).await,
        Command::Apply(args) => apply::apply(&args, session).await,
        Command::Unapply(args) => apply::unapply(&args, session).await,
        Command::Export(args) => export::run(&args, session).await,
        Command::Operation(args) => operation::run(args, session).await,
        Command::Node(args) => node::run(args, session).await,
        Command::Dashboard(args) => dashboard::dashboard(&args, session).await,
        Command::Events(args) => events::run(args, session).await,
        Command::Health => dashboard::health(session).await,
        Command::Dme(args) => dme::run(args, session).await,
        Command::Dns(args) => dns::run(args, session).await,
        Command::Kaas(args) => Box::pin(kaas::run(args, session)).await,
        Command::Kubectl(args) => kaas::kubectl(args, session).await,
        Command::Exec(args) => Box::pin(exec::exec(args, session)).await,
        Command::Logs(args) => Box::pin(exec::logs(args, session)).await,
        Command::Volume(args) => volume::run(args, session).await,
        Command::Backup(args) => backup::run(args, session).await,
        Command::Completion(args) => shell::completion(&args, root, session),
        Command::Man(args) => shell::man(&args, root, session),
    }
}
