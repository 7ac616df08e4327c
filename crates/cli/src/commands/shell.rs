//! Completion scripts and man pages.

use std::{fs, path::PathBuf};

use crate::{Error, session::Session};

/// `selvage completion`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage completion bash > ~/.local/share/bash-completion/completions/selvage
  selvage completion zsh  > ~/.zfunc/_selvage
  selvage completion fish > ~/.config/fish/completions/selvage.fish")]
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
    mut root: clap::Command,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let name = root.get_name().to_owned();
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut root, name, &mut script);
    session.io.out.write_all(&script).map_err(Error::Output)
}

pub(crate) fn man(args: &Man, root: clap::Command, session: &mut Session<'_>) -> Result<(), Error> {
    fs::create_dir_all(&args.dir).map_err(|source| Error::write(&args.dir, source))?;
    clap_mangen::generate_to(root, &args.dir).map_err(|source| Error::write(&args.dir, source))?;
    session.io.say(&format!("The man pages are in {}.", args.dir.display()))
}
