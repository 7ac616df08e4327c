//! The command line as clap reads it.

use std::{path::PathBuf, time::Duration};

use crate::{
    commands::{
        api, apply, backup, call, context, dashboard, dme, dns, events, exec, explain, export,
        join, kaas, login, machine, node, operation, pki, run, shell, token, user, volume,
    },
    duration,
    edge::flags,
    output::Format,
};

const HEADING: &str = "Global options";

// No doc comments on the two types the binary flattens, nor on the choices:
// clap would print them as the help of the whole program, and one line a choice.

#[derive(clap::Args, Debug, Clone, Default)]
pub struct Global {
    /// Server to talk to: https://host:port, http://host:port or unix:///path
    #[arg(
        long,
        global = true,
        env = "SELVAGE_ENDPOINT",
        hide_env_values = true,
        value_name = "URL",
        help_heading = HEADING,
    )]
    pub endpoint: Option<String>,

    /// Context to use instead of the current one
    #[arg(
        long,
        global = true,
        env = "SELVAGE_CONTEXT",
        hide_env_values = true,
        value_name = "NAME",
        help_heading = HEADING,
    )]
    pub context: Option<String>,

    /// PEM file of the CA that signed the server's certificate
    #[arg(
        long,
        global = true,
        env = "SELVAGE_CA",
        hide_env_values = true,
        value_name = "FILE",
        help_heading = HEADING,
    )]
    pub ca: Option<PathBuf>,

    /// PEM file of a client certificate (a machine's)
    #[arg(
        long,
        global = true,
        env = "SELVAGE_CERT",
        hide_env_values = true,
        value_name = "FILE",
        requires = "key",
        help_heading = HEADING,
    )]
    pub cert: Option<PathBuf>,

    /// PEM file of the client certificate's key
    #[arg(
        long,
        global = true,
        env = "SELVAGE_KEY",
        hide_env_values = true,
        value_name = "FILE",
        requires = "cert",
        help_heading = HEADING,
    )]
    pub key: Option<PathBuf>,

    /// File that holds the token, or - for stdin [also: env SELVAGE_TOKEN]
    #[arg(long, global = true, value_name = "FILE", help_heading = HEADING)]
    pub token_file: Option<PathBuf>,

    /// Format of the output
    #[arg(
        short,
        long,
        global = true,
        env = "SELVAGE_OUTPUT",
        hide_env_values = true,
        value_name = "FORMAT",
        help_heading = HEADING,
    )]
    pub output: Option<Format>,

    /// Give up after this long, such as 5s or 2m [default: 30s, none for streams]
    #[arg(
        long,
        global = true,
        env = "SELVAGE_TIMEOUT",
        hide_env_values = true,
        value_name = "TIME",
        value_parser = duration::parse,
        help_heading = HEADING,
    )]
    pub timeout: Option<Duration>,

    /// Use of colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = HEADING)]
    pub color: Colour,

    /// Never ask anything; fail instead
    #[arg(long, global = true, help_heading = HEADING)]
    pub no_input: bool,
}

// When to use colour.
#[derive(clap::ValueEnum, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Colour {
    // On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Log in to a server and remember it as a context
    Login(login::Login),
    /// End the session and forget its token
    Logout,
    /// Show who you are logged in as, and your roles
    #[command(name = "whoami")]
    WhoAmI,
    /// List, choose and remove saved servers
    #[command(subcommand)]
    Context(context::Context),
    /// Call any method of any service
    Call(call::Call),
    /// Explain an error code: cause and what to do
    Explain(explain::Explain),
    /// Add, change and remove people
    #[command(subcommand)]
    User(user::User),
    /// Make, list and end tokens for programs
    #[command(subcommand)]
    Token(token::Token),
    /// Make tokens that let machines join
    #[command(subcommand)]
    JoinToken(join::JoinToken),
    /// Get a certificate for this machine with a join token
    Join(join::Join),
    /// List, block, unblock and remove machines
    #[command(subcommand)]
    Machine(machine::Machine),
    /// Show and replace the certificate authority
    #[command(subcommand)]
    Pki(pki::Pki),
    /// Show the version and the parts of the server
    Status,
    /// List and describe services, methods and messages
    Api(api::Api),
    /// Run an image on a cloudlet: app and instance in one command
    Run(run::Run),
    #[command(flatten)]
    Object(flags::Object),
    /// Apply a file: create what is missing, update what differs
    Apply(apply::Apply),
    /// Delete the objects of a file
    #[command(visible_alias = "delete")]
    Unapply(apply::Unapply),
    /// Write all objects in the format that apply reads
    Export(export::Export),
    /// Run a command in an instance, or open a shell
    Exec(exec::Exec),
    /// Print the log of an instance
    Logs(exec::Logs),
    /// List, follow and cancel long-running operations
    #[command(subcommand)]
    Operation(operation::Operation),
    /// Make, grow, copy and list volumes
    #[command(subcommand)]
    Volume(volume::Volume),
    /// Back up volumes, restore and manage backups
    #[command(subcommand)]
    Backup(backup::Backup),
    // The binary has a command of this name, to run an agent; it takes these
    // up under it.
    #[command(skip)]
    Node(node::Node),
    #[command(skip)]
    Dme(dme::DmeCommand),
    #[command(skip)]
    Dns(dns::DnsCommand),
    #[command(skip)]
    Kaas(kaas::KaasCommand),
    /// Run kubectl against one of your clusters
    Kubectl(kaas::Kubectl),
    #[command(skip)]
    Dashboard(dashboard::Dashboard),
    /// List recent events: what was added, removed, failed, restarted or updated
    Events(events::Events),
    /// Show the health of the system in one line and as exit code
    #[command(after_help = "Exit codes: 0 healthy, 1 warning, 2 critical, 3 unknown")]
    Health,
    /// Print a completion script for your shell
    Completion(shell::Completion),
    /// Write the man pages
    Man(shell::Man),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser, Debug)]
    struct Whole {
        #[command(flatten)]
        global: Global,
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn the_command_line_is_sound() {
        Whole::command().debug_assert();
    }

    #[test]
    fn what_is_flattened_does_not_speak_for_the_whole() {
        assert_eq!(Whole::command().get_about().map(ToString::to_string), None);
    }

    #[test]
    fn global_options_stand_before_and_after_the_command() {
        for line in ["selvage -o json user list", "selvage user list -o json"] {
            let whole = Whole::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(whole.global.output, Some(Format::Json));
        }
    }

    #[test]
    fn every_command_says_what_it_is_for() {
        fn walk(command: &mut clap::Command, path: &str) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && !about.contains('`'), "{path}: {about:?}");
            for inner in command.get_subcommands_mut().filter(|c| c.get_name() != "help") {
                let path = format!("{path} {}", inner.get_name());
                walk(inner, &path);
            }
        }
        for command in Whole::command().get_subcommands_mut() {
            let name = command.get_name().to_owned();
            walk(command, &name);
        }
        for name in ["login", "context", "call", "explain", "user", "join", "api", "completion"] {
            let help =
                Whole::command().find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.contains("Example"), "{help}");
        }
    }

    #[test]
    fn a_typo_is_answered_with_the_right_word() {
        let error = Whole::try_parse_from(["selvage", "whoam"]).unwrap_err().to_string();
        assert!(error.contains("'whoami'"), "{error}");
    }

    #[test]
    fn a_password_cannot_be_given_as_an_argument() {
        assert!(Whole::try_parse_from(["selvage", "login", "--password", "x"]).is_err());
        assert!(Whole::try_parse_from(["selvage", "join", "https://a", "--token", "x"]).is_err());
    }
}
