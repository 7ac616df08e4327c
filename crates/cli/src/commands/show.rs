//! Show of one kind of object, once or again and again.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write as _,
    time::Duration,
};

use prost_reflect::{DynamicMessage, ReflectMessage};

use super::names;
use crate::{
    Error,
    client::Client,
    edge::{Draft, Kind, Verb, catalog, draft, flags::ObjectArgs, rpc},
    output::{self, Format, Printer},
    session::Session,
};

/// Interval at which a watched list is asked for.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn run(
    kind: &'static Kind,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let method = kind
        .method(Verb::Show)
        .ok_or_else(|| Error::Unexpected(format!("{} cannot be shown", kind.plural)))?;
    let mut filter = Draft::new(kind);
    args.fill(&mut filter)?;
    let client = session.client().await?;
    let is_meant = |object: &DynamicMessage| match &args.name {
        Some(name) => names::means(kind, object, name),
        None => true,
    };
    if args.watch {
        let asked = (&filter.message, &is_meant as &Selector<'_>);
        return tokio::select! {
            result = Box::pin(watch(kind, &client, asked, session)) => result,
            Ok(()) = tokio::signal::ctrl_c() => Ok(()),
        };
    }
    let states = States::of(kind, &client, session).await;
    let mut answers =
        rpc::open(&client, method, filter.message, false).await.map_err(|failure| failure.error)?;
    let mut count = 0;
    let mut printer = session.printer();
    let failed = loop {
        match answers.next(&client).await {
            Ok(Some(object)) if !is_meant(&object) => continue,
            Ok(Some(object)) => printer.row_with(&object, &states.beside(&object))?,
            Ok(None) => break None,
            Err(failure) => break Some(failure.error),
        }
        count += 1;
    };
    // What came before a failure is worth seeing.
    printer.flush()?;
    if let Some(error) = failed {
        return Err(error);
    }
    match &args.name {
        Some(name) if count == 0 => Err(Error::Unknown {
            kind: &kind.word,
            name: name.clone(),
            suggestions: Vec::new(),
            hint: format!("`selvage {} list` shows those there are", kind.command()),
        }),
        None if count == 0 => session.io.say(&format!("No {} here.", kind.plural)),
        _ => Ok(()),
    }
}

/// Decides whether an object is among those that are shown.
type Selector<'a> = dyn Fn(&DynamicMessage) -> bool + Sync + 'a;

/// Shows again and again, and says what is different.
async fn watch(
    kind: &'static Kind,
    client: &Client,
    (filter, is_meant): (&DynamicMessage, &Selector<'_>),
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if session.global.output == Some(Format::Json) {
        return watch_lines(kind, client, (filter, is_meant), session).await;
    }
    let mut before: Option<String> = None;
    let Some(method) = kind.method(Verb::Show) else { return Ok(()) };
    loop {
        let states = States::of(kind, client, session).await;
        let mut objects = rpc::show(client, method, filter.clone()).await?;
        objects.retain(is_meant);
        let now = render(&objects, &states, session)?;
        let text = match &before {
            _ if before.as_ref() == Some(&now) => String::new(),
            _ if session.io.out_is_terminal => format!("\x1b[H\x1b[2J{now}"),
            None => now.clone(),
            Some(before) => changes(before, &now),
        };
        session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
        session.io.out.flush().map_err(Error::Output)?;
        before = Some(now);
        tokio::time::sleep(POLL).await;
    }
}

/// Prints an object a line when it is new or has changed, and one that has gone
/// as `{"deleted":…}`.
async fn watch_lines(
    kind: &'static Kind,
    client: &Client,
    (filter, is_meant): (&DynamicMessage, &Selector<'_>),
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut before: BTreeMap<String, String> = BTreeMap::new();
    let Some(method) = kind.method(Verb::Show) else { return Ok(()) };
    loop {
        let mut objects = rpc::show(client, method, filter.clone()).await?;
        objects.retain(is_meant);
        let mut now = BTreeMap::new();
        for object in &objects {
            let line = output::to_value(object, false)?.to_string();
            now.insert(draft::key_text(object), line);
        }
        for line in changed_lines(&before, &now) {
            writeln!(session.io.out, "{line}").map_err(Error::Output)?;
        }
        session.io.out.flush().map_err(Error::Output)?;
        before = now;
        tokio::time::sleep(POLL).await;
    }
}

/// Lines of JSON by key: those that are gone, then those that are new.
fn changed_lines(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let gone = before.iter().filter(|(key, _)| !now.contains_key(*key));
    let gone = gone.map(|(_, line)| format!("{{\"deleted\":{line}}}"));
    let new = now.iter().filter(|(key, line)| before.get(*key) != Some(line));
    gone.chain(new.map(|(_, line)| line.clone())).collect()
}

fn render(
    objects: &[DynamicMessage],
    states: &States,
    session: &Session<'_>,
) -> Result<String, Error> {
    let mut text = Vec::new();
    let format = session.global.output.unwrap_or(Format::Table);
    let colour = session.io.colour_on_out(session.global.color);
    let mut printer = Printer::new(&mut text, format, colour).columns(session.io.columns);
    objects.iter().try_for_each(|object| printer.row_with(object, &states.beside(object)))?;
    printer.flush()?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// States of cloudlets, by the texts of their keys: cloudlets themselves are
/// intent, and their agents tell how they are. Empty for other kinds.
struct States(HashMap<String, String>);

impl States {
    /// Whoever may not see them sees the cloudlets all the same.
    async fn of(kind: &Kind, client: &Client, session: &Session<'_>) -> Self {
        let format = session.global.output.unwrap_or(Format::Table);
        let info = catalog::kind("cloudletinfo");
        let method = info.and_then(|info| info.method(Verb::Show));
        let (Some(info), Some(method)) = (info, method) else { return Self(HashMap::new()) };
        if kind.name != "Cloudlet" || !matches!(format, Format::Table | Format::Wide) {
            return Self(HashMap::new());
        }
        let all = DynamicMessage::new(info.message.clone());
        let infos = rpc::show(client, method, all).await.unwrap_or_default();
        Self(infos.iter().map(|info| (draft::key_text(info), state_name(info))).collect())
    }

    fn beside(&self, object: &DynamicMessage) -> Vec<(&'static str, String)> {
        let state = self.0.get(&draft::key_text(object));
        state.map(|state| ("@state", state.clone())).into_iter().collect()
    }
}

/// The name of a message's state, without what all its names begin with.
fn state_name(message: &DynamicMessage) -> String {
    let field = message.descriptor().get_field_by_name("state");
    let Some((field, prost_reflect::Kind::Enum(names))) = field.map(|f| (f.clone(), f.kind()))
    else {
        return String::new();
    };
    let number = message.get_field(&field).as_enum_number().unwrap_or_default();
    let name = names.get_value(number).map(|value| value.name().to_owned()).unwrap_or_default();
    name.trim_start_matches("CLOUDLET_STATE_").to_owned()
}

/// Lines that went and lines that came, under the header of the table.
pub(crate) fn changes(before: &str, now: &str) -> String {
    let changed = difference(before, now);
    let header = now.lines().next().unwrap_or_default();
    if changed.is_empty() || changed.contains(&format!("+ {header}\n")) {
        return changed;
    }
    format!("  {header}\n{changed}")
}

/// Lines that went and lines that came. How far columns stand apart is no
/// difference.
fn difference(before: &str, now: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let of = |text: &str| text.lines().map(words).collect::<Vec<_>>();
    let (old, new) = (of(before), of(now));
    let gone = before.lines().filter(|line| !new.contains(&words(line)));
    let come = now.lines().filter(|line| !old.contains(&words(line)));
    let gone = gone.map(|line| format!("- {line}\n"));
    gone.chain(come.map(|line| format!("+ {line}\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_of_json_reads_json_alone() {
        let lines = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, line)| ((*key).to_owned(), (*line).to_owned())).collect()
        };
        let before: BTreeMap<String, String> =
            lines(&[("a", r#"{"n":1}"#), ("b", r#"{"n":2}"#), ("c", r#"{"n":3}"#)]);
        let now = lines(&[("b", r#"{"n":2}"#), ("c", r#"{"n":4}"#), ("d", r#"{"n":5}"#)]);
        let all = changed_lines(&before, &now);
        assert_eq!(all, [r#"{"deleted":{"n":1}}"#, r#"{"n":4}"#, r#"{"n":5}"#]);
    }

    #[test]
    fn only_changes_are_shown() {
        let before = "NAME  STATE\na     READY\nb     READY\n";
        let now = "NAME      STATE\na         READY\nb         GONE\nlong-one  READY\n";
        let lines = "- b     READY\n+ b         GONE\n+ long-one  READY\n";
        assert_eq!(difference(before, now), lines);
        assert_eq!(changes(before, now), format!("  NAME      STATE\n{lines}"));
        assert_eq!(changes(before, before), "");
        assert_eq!(changes("", "A  B\n1  2\n"), "+ A  B\n+ 1  2\n");
    }
}
