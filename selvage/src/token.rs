//! A join token on the command line can be read by everybody on the machine
//! for as long as the process runs: the program starts itself again without.

use std::{
    ffi::{OsStr, OsString},
    os::unix::{ffi::OsStrExt, process::CommandExt},
};

use crate::join::TOKEN_VARIABLE;

/// Starts this program again with the token in the environment. Comes back
/// only when that fails.
pub(crate) fn start_again_without(token: &str) -> anyhow::Error {
    let mut args = std::env::args_os();
    let own_name = args.next().unwrap_or_else(|| env!("CARGO_PKG_NAME").into());
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::Error::new(error).context("cannot find this program"),
    };
    let failed = std::process::Command::new(program)
        .arg0(own_name)
        .args(without_token(args))
        .env(TOKEN_VARIABLE, token)
        .exec();
    anyhow::Error::new(failed).context("cannot start again without the token on the command line")
}

fn without_token(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut skip = false;
    for arg in args {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = arg == OsStr::new("--join");
        if !skip && !arg.as_bytes().starts_with(b"--join=") {
            kept.push(arg);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_token_leaves_the_command_line() {
        let kept = |args: &[&str]| {
            let kept = without_token(args.iter().map(OsString::from));
            kept.into_iter().map(|arg| arg.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["node", "--join", "t", "--port", "1"]), ["node", "--port", "1"]);
        assert_eq!(kept(&["node", "--join=t", "--join-file", "f"]), ["node", "--join-file", "f"]);
        assert_eq!(kept(&["node", "--join"]), ["node"]);
    }
}
