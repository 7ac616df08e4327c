//! Which versions there are.

use std::fmt::Write;

use selvage_api::machine::{self, VersionInfo};
use selvage_kit::build::build;

use super::{
    args,
    fleet::{Fleet, machine_client},
    tables::From,
};
use crate::{Error, Format, error::printable, session::Session};

pub(crate) fn client(args: &args::Version, session: &mut Session<'_>) -> Result<(), Error> {
    let text = client_text(&build(), args.short);
    session.io.out.write_all(text.as_bytes()).map_err(Error::Output)
}

pub(crate) async fn run(
    fleet: &Fleet,
    args: &args::Version,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let answers = fleet
        .ask((), |channel, request| async move { machine_client(channel).version(request).await })
        .await?;
    let good = answers.good();
    if matches!(session.global.output, None | Some(Format::Table | Format::Wide)) {
        let text = client_text(&build(), args.short) + &server_text(&good, args.short);
        session.io.out.write_all(printable(&text).as_bytes()).map_err(Error::Output)?;
    } else {
        answers.print(session)?;
    }
    answers.failures().looked(good.len(), session.io)
}

fn client_text(version: &VersionInfo, short: bool) -> String {
    if short {
        return format!("Client: {}\n", version.tag);
    }
    format!("Client:\n{}", block(version))
}

pub(crate) fn server_text(answers: &From<'_, machine::Version>, short: bool) -> String {
    let mut text = if short { String::new() } else { "Server:\n".to_owned() };
    for (node, answer) in answers {
        let empty = VersionInfo::default();
        let version = answer.version.as_ref().unwrap_or(&empty);
        // Writing to a string cannot fail.
        let _ = if short {
            writeln!(text, "{node}: {}", version.tag)
        } else {
            write!(text, "\tNODE:        {node}\n{}", block(version))
        };
    }
    text
}

fn block(version: &VersionInfo) -> String {
    let VersionInfo { tag, sha, built, go_version, os, arch } = version;
    let line =
        |label: &str, value: &str| format!("\t{label:<13}{value}").trim_end().to_owned() + "\n";
    [
        line("Tag:", tag),
        line("SHA:", sha),
        line("Built:", built),
        line("Go version:", go_version),
        line("OS/Arch:", &format!("{os}/{arch}")),
    ]
    .concat()
}
