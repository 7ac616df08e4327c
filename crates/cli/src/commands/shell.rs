//! Completion scripts and man pages.

use std::{fs, path::PathBuf};

use clap::builder::PossibleValuesParser;
use selvage_api::{code::ALL, methods};

use crate::{Error, config::Files, session::Session};

/// `selvage completion`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  source <(selvage completion bash)                          in ~/.bashrc
  selvage completion zsh  > ~/.zfunc/_selvage
  selvage completion fish > ~/.config/fish/completions/selvage.fish

The script knows the names of your contexts as they are when it is made.")]
pub struct Completion {
    /// Your shell
    pub shell: clap_complete::Shell,
}

/// `selvage man`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  selvage man ~/.local/share/man/man1")]
pub struct Man {
    /// Directory to write the pages to; made if it is not there
    pub dir: PathBuf,
}

pub(crate) fn completion(
    args: &Completion,
    root: clap::Command,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut root = with_names(root, &contexts(session));
    let name = root.get_name().to_owned();
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut root, name, &mut script);
    session.io.out.write_all(&script).map_err(Error::Output)
}

/// None when they cannot be read: a shell that starts is no place to complain.
fn contexts(session: &Session<'_>) -> Vec<String> {
    Files::locate(session.io)
        .and_then(|files| files.contexts())
        .map(|contexts| contexts.contexts.into_keys().collect())
        .unwrap_or_default()
}

/// The command line with the names that can stand in it, so that the shell
/// can offer them.
fn with_names(root: clap::Command, contexts: &[String]) -> clap::Command {
    let methods: Vec<String> = methods().iter().map(|method| method.path[1..].to_owned()).collect();
    let codes: Vec<String> = ALL.iter().map(|code| code.name().to_owned()).collect();
    let mut root = offer(root, &[], "context", contexts);
    for verb in ["use", "show", "remove"] {
        root = offer(root, &["context", verb], "name", contexts);
    }
    root = offer(root, &["context", "rename"], "from", contexts);
    root = offer(root, &["explain"], "code", &codes);
    offer(root, &["call"], "method", &methods)
}

fn offer(command: clap::Command, path: &[&str], argument: &str, names: &[String]) -> clap::Command {
    match path {
        [first, rest @ ..] if command.find_subcommand(first).is_some() => {
            command.mut_subcommand(*first, |inner| offer(inner, rest, argument, names))
        }
        [] if !names.is_empty() => command.mut_args(|arg| {
            if arg.get_id() == argument {
                arg.value_parser(PossibleValuesParser::new(names.iter().cloned()))
            } else {
                arg
            }
        }),
        _ => command,
    }
}

pub(crate) fn man(args: &Man, root: clap::Command, session: &mut Session<'_>) -> Result<(), Error> {
    fs::create_dir_all(&args.dir).map_err(|source| Error::write(&args.dir, source))?;
    clap_mangen::generate_to(root, &args.dir).map_err(|source| Error::write(&args.dir, source))?;
    session.io.say(&format!("The man pages are in {}.", args.dir.display()))
}
