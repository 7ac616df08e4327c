//! Listing files.

use std::io::Write;

use selvage_api::machine::{FileInfo, ListRequest};

use super::{
    args::{FileKind, Ls},
    fleet::{Failures, Fleet, fault, machine_client, warn},
    mode,
    sheet::Sheet,
    size,
};
use crate::{Error, Format, error::printable, output, session::Session};

pub(crate) async fn run(fleet: &Fleet, args: &Ls, session: &mut Session<'_>) -> Result<(), Error> {
    let request = ListRequest {
        root: args.path.clone(),
        recurse: args.recurse || args.depth.is_some(),
        recursion_depth: args.depth.unwrap_or_default(),
    };
    let mut stream = fleet
        .stream(
            request,
            |channel, request| async move { machine_client(channel).list(request).await },
        )
        .await?;
    let mut failures = Failures::default();
    let mut listing = Listing::new(args, fleet.is_many());
    let mut count = 0;
    while let Some(file) = fleet.next(&mut stream).await? {
        let node = fleet.name(file.metadata.as_ref());
        if let Some(text) = fault(file.metadata.as_ref()) {
            failures.push(node, text);
        } else if !file.error.is_empty() {
            let name = &file.name;
            warn(session.io, node, &format!("error reading file {name}: {}", file.error))?;
        } else if wanted(args, &file) {
            listing.add(node, &file, session)?;
            count += 1;
        }
    }
    listing.finish(count, &fleet.names(), session)?;
    let answered = fleet.names().len().saturating_sub(failures.machines());
    failures.looked(answered, session.io)
}

fn wanted(args: &Ls, file: &FileInfo) -> bool {
    let is = |kind: &FileKind| match kind {
        FileKind::F => mode::is_regular(file.mode),
        FileKind::D => mode::is_folder(file.mode),
        FileKind::L => mode::is_link(file.mode),
    };
    args.kinds.is_empty() || args.kinds.iter().any(is)
}

/// Files on their way to the screen. Names alone need not wait for each other.
struct Listing {
    sheet: Sheet,
    long: bool,
    many: bool,
    humanize: bool,
}

impl Listing {
    fn new(args: &Ls, many: bool) -> Self {
        let sheet = match (args.long, many) {
            (true, true) => Sheet::new(&["NODE", "MODE", "SIZE(B)", "LASTMOD", "NAME"]),
            (true, false) => Sheet::new(&["MODE", "SIZE(B)", "LASTMOD", "NAME"]),
            (false, _) => Sheet::new(&["NODE", "NAME"]),
        };
        Self { sheet, long: args.long, many, humanize: args.humanize }
    }

    fn add(&mut self, node: &str, file: &FileInfo, session: &mut Session<'_>) -> Result<(), Error> {
        if !matches!(session.global.output, None | Some(Format::Table | Format::Wide)) {
            return session.printer().row(&output::dynamic("machine.FileInfo", file)?);
        }
        if !self.long && !self.many {
            let name = printable(&file.relative_name.replace('\n', "\u{fffd}"));
            return writeln!(session.io.out, "{name}").map_err(Error::Output);
        }
        if self.long {
            let [mode, size, time, name] = long(file, self.humanize);
            match self.many {
                true => self.sheet.push([node.to_owned(), mode, size, time, name]),
                false => self.sheet.push([mode, size, time, name]),
            }
        } else {
            self.sheet.push([node.to_owned(), file.relative_name.clone()]);
        }
        Ok(())
    }

    /// Prints the table, machine by machine: they answer at the same time.
    fn finish(
        &mut self,
        count: usize,
        machines: &[String],
        session: &mut Session<'_>,
    ) -> Result<(), Error> {
        let people = matches!(session.global.output, None | Some(Format::Table | Format::Wide));
        if people && count > 0 && (self.long || self.many) {
            if self.many {
                self.sheet.group(machines);
            }
            self.sheet.print(session)?;
        }
        session.io.out.flush().map_err(Error::Output)
    }
}

pub(crate) fn long(file: &FileInfo, humanize: bool) -> [String; 4] {
    let bytes = u64::try_from(file.size).unwrap_or(0);
    let size = if humanize { size::binary(bytes) } else { file.size.to_string() };
    let time = jiff::Timestamp::from_second(file.modified)
        .map_or(String::new(), |time| time.strftime("%b %-d %Y").to_string());
    let link = if file.link.is_empty() { String::new() } else { format!(" -> {}", file.link) };
    [mode::text(file.mode), size, time, format!("{}{link}", file.relative_name)]
}
