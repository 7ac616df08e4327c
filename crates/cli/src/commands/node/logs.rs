//! Text that machines send in a stream: kernel messages, logs, files.

use std::{collections::BTreeMap, io::Write};

use selvage_api::{common::Data, machine, os};
use serde_json::{Value, json};
use tonic::Streaming;

use super::{
    args,
    fleet::{Failures, Fleet, fault, machine_client, os_client, warn},
    lines::{Slicer, Tail},
};
use crate::{Error, Format, error::printable, session::Session};

pub(crate) async fn dmesg(
    fleet: &Fleet,
    args: &args::Dmesg,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let json = machine_readable(session);
    let request = os::DmesgRequest {
        follow: args.follow,
        tail: args.tail,
        last: args.last.unwrap_or_default(),
        level: args.level.clone().unwrap_or_default(),
        facility: args.facility.clone().unwrap_or_default(),
        contains: args.grep.clone().unwrap_or_default(),
        json,
        ..os::DmesgRequest::default()
    };
    let stream = fleet
        .stream(request, |channel, request| async move { os_client(channel).dmesg(request).await })
        .await?;
    // A record is a piece: its lines belong together.
    copy(fleet, stream, session, |_, piece| vec![without_end(piece).to_vec()]).await
}

pub(crate) async fn logs(
    fleet: &Fleet,
    args: &args::Logs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let stream = stream_of(fleet, args, args.follow).await?;
    let most = match args.tail {
        None => return by_lines(fleet, stream, session).await,
        Some(most) if args.follow => {
            let there = lines_of_each(fleet, stream_of(fleet, args, false).await?).await?;
            return last_lines_on(fleet, stream, session, &there, most).await;
        }
        Some(most) => most,
    };
    let mut slicer = Slicer::default();
    let mut tail = Tail::new(most);
    let result = copy(fleet, stream, session, |node, piece| {
        slicer.feed(node, piece).into_iter().for_each(|line| tail.push(node, line));
        Vec::new()
    })
    .await;
    slicer.rest().into_iter().for_each(|(node, line)| tail.push(&node, line));
    for (node, line) in tail.into_lines() {
        print(&node, &line, session)?;
    }
    session.io.out.flush().map_err(Error::Output)?;
    result
}

async fn stream_of(
    fleet: &Fleet,
    args: &args::Logs,
    follow: bool,
) -> Result<Streaming<Data>, Error> {
    let (namespace, driver) = args.place.place();
    let request = machine::LogsRequest { namespace, driver, id: args.id.clone(), follow };
    let send = |channel, request| async move { machine_client(channel).logs(request).await };
    fleet.stream(request, send).await
}

/// Number of lines that the log of each machine has by now.
async fn lines_of_each(
    fleet: &Fleet,
    mut stream: Streaming<Data>,
) -> Result<BTreeMap<String, usize>, Error> {
    let mut counts = BTreeMap::new();
    while let Some(Data { metadata, bytes }) = fleet.next(&mut stream).await? {
        let count: &mut usize = counts.entry(fleet.name(metadata.as_ref()).to_owned()).or_default();
        *count += bytes.iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(counts)
}

/// Prints the last lines of those that are there, and goes on with new ones. A
/// log only grows: its first lines are the same in both streams.
async fn last_lines_on(
    fleet: &Fleet,
    stream: Streaming<Data>,
    session: &mut Session<'_>,
    there: &BTreeMap<String, usize>,
    most: usize,
) -> Result<(), Error> {
    let mut slicer = Slicer::default();
    let mut passed: BTreeMap<String, usize> = BTreeMap::new();
    copy(fleet, stream, session, |node, piece| {
        let left_out = there.get(node).map_or(0, |count| count.saturating_sub(most));
        let passed = passed.entry(node.to_owned()).or_default();
        let lines = slicer.feed(node, piece).into_iter();
        lines.filter(|_| std::mem::replace(passed, *passed + 1) >= left_out).collect()
    })
    .await
}

/// A file as it is, for a pipe and of one machine; else by lines.
pub(crate) async fn cat(
    fleet: &Fleet,
    args: args::Cat,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let request = machine::ReadRequest { path: args.path };
    let mut stream = fleet
        .stream(
            request,
            |channel, request| async move { machine_client(channel).read(request).await },
        )
        .await?;
    if fleet.is_many() {
        return by_lines(fleet, stream, session).await;
    }
    let mut failures = Failures::default();
    let mut slicer = Slicer::default();
    while let Some(Data { metadata, bytes }) = fleet.next(&mut stream).await? {
        match fault(metadata.as_ref()) {
            Some(text) => failures.push(fleet.name(metadata.as_ref()), text),
            None if session.io.out_is_terminal => {
                for line in slicer.feed("", &bytes) {
                    let line = printable(&String::from_utf8_lossy(&line));
                    writeln!(session.io.out, "{line}").map_err(Error::Output)?;
                }
            }
            None => session.io.out.write_all(&bytes).map_err(Error::Output)?,
        }
    }
    for (_, rest) in slicer.rest() {
        let rest = printable(&String::from_utf8_lossy(&rest));
        write!(session.io.out, "{rest}").map_err(Error::Output)?;
    }
    session.io.out.flush().map_err(Error::Output)?;
    failures.acted(0, session.io)
}

/// Prints what comes line by line.
async fn by_lines(
    fleet: &Fleet,
    stream: Streaming<Data>,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut slicer = Slicer::default();
    let result = copy(fleet, stream, session, |node, piece| slicer.feed(node, piece)).await;
    for (node, line) in slicer.rest() {
        print(&node, &line, session)?;
    }
    session.io.out.flush().map_err(Error::Output)?;
    result
}

/// Prints what comes, made lines by `slice`, until it ends.
async fn copy(
    fleet: &Fleet,
    mut stream: Streaming<Data>,
    session: &mut Session<'_>,
    mut slice: impl FnMut(&str, &[u8]) -> Vec<Vec<u8>>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    let all = fleet.names().len();
    while let Some(Data { metadata, bytes }) = fleet.next(&mut stream).await? {
        let node = fleet.name(metadata.as_ref());
        if let Some(text) = fault(metadata.as_ref()) {
            // Whoever follows the others wants to know now.
            if fleet.is_many() {
                warn(session.io, node, text)?;
            }
            failures.push(node, text);
            continue;
        }
        for line in slice(node, &bytes) {
            print(node, &line, session)?;
        }
        session.io.out.flush().map_err(Error::Output)?;
    }
    match failures.machines() {
        failed if failed < all => Ok(()),
        _ => failures.warned().acted(0, session.io),
    }
}

fn machine_readable(session: &Session<'_>) -> bool {
    !matches!(session.global.output, None | Some(Format::Table | Format::Wide))
}

fn print(node: &str, line: &[u8], session: &mut Session<'_>) -> Result<(), Error> {
    if machine_readable(session) {
        let text = String::from_utf8_lossy(line);
        return session.printer().record(&record(node, &text));
    }
    let out = &mut session.io.out;
    if session.io.out_is_terminal {
        let line = format!("{node}: {}", String::from_utf8_lossy(line));
        writeln!(out, "{}", printable(&line)).map_err(Error::Output)
    } else {
        let mut whole = format!("{node}: ").into_bytes();
        whole.extend_from_slice(line);
        whole.push(b'\n');
        out.write_all(&whole).map_err(Error::Output)
    }
}

/// A line that is a JSON object already gets the machine's name; any other
/// becomes one.
fn record(node: &str, text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => {
            let node = ("node".to_owned(), Value::String(node.to_owned()));
            std::iter::once(node).chain(members).collect()
        }
        _ => json!({ "node": node, "line": text }),
    }
}

fn without_end(piece: &[u8]) -> &[u8] {
    piece.strip_suffix(b"\n").unwrap_or(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_carry_the_machine_they_are_from() {
        assert_eq!(
            record("a", r#"{"message":"x","seq":1}"#).to_string(),
            r#"{"node":"a","message":"x","seq":1}"#
        );
        assert_eq!(record("a", "plain").to_string(), r#"{"node":"a","line":"plain"}"#);
        assert_eq!(record("a", "7").to_string(), r#"{"node":"a","line":"7"}"#);
    }
}
