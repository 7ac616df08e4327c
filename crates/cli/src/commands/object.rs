//! Create, update, delete and show of one kind of object.

use std::{collections::HashMap, time::Duration};

use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use super::{
    progress::{self, Job, Narrator},
    revision,
};
use crate::{
    Error,
    client::Client,
    edge::{
        Draft, Kind, Verb, catalog, draft,
        file::{self, Entry},
        flags::{Action, Object, ObjectArgs},
        rpc,
    },
    output::{Format, Printer},
    session::Session,
};

/// How often a watched list is looked at.
const POLL: Duration = Duration::from_secs(1);

pub(crate) async fn run(object: Object, session: &mut Session<'_>) -> Result<(), Error> {
    let Object { kind, action, args } = object;
    match action {
        Action::Verb(Verb::Show) => show(kind, &args, session).await,
        Action::Verb(verb) => change(kind, verb, &args, session).await,
        Action::History => revision::history(kind, &args, session).await,
        Action::Rollback(to) => revision::rollback(kind, to, &args, session).await,
    }
}

/// The objects that flags and file describe.
fn drafts(
    kind: &'static Kind,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<Vec<Draft>, Error> {
    let mut drafts: Vec<Draft> = match &args.file {
        None => vec![Draft::new(kind)],
        Some(path) => {
            let (text, origin) = file::text(path, session.io)?;
            let entries = file::entries(&text, &origin, Some(kind))?;
            entries.into_iter().map(|Entry { draft, .. }| draft).collect()
        }
    };
    drafts.iter_mut().try_for_each(|draft| args.fill(draft))?;
    Ok(drafts)
}

async fn change(
    kind: &'static Kind,
    verb: Verb,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if args.names_nothing() {
        return Err(Error::Invalid {
            message: format!("nothing says which {} to {}", kind.word, verb.word()),
            hints: vec![format!(
                "give flags or -f FILE; `selvage {} {} --help` shows them",
                kind.command(),
                verb.word()
            )],
        });
    }
    let drafts = drafts(kind, args, session)?;
    let messages: Vec<DynamicMessage> =
        drafts.iter().map(|draft| request(kind, verb, draft)).collect::<Result<_, _>>()?;
    if verb == Verb::Delete && !args.yes && !args.dry_run {
        confirm(kind, &messages, session)?;
    }
    let client = session.client().await?;
    for message in messages {
        one(kind, verb, message, args, &client, session).await?;
    }
    Ok(())
}

/// What is sent for a draft.
pub(crate) fn request(kind: &Kind, verb: Verb, draft: &Draft) -> Result<DynamicMessage, Error> {
    let named = draft.named(kind);
    let injects = kind.method(verb).is_some_and(|method| method.name.starts_with("Inject"));
    match verb {
        // An instance is updated to what its app is by now.
        Verb::Update if named.is_empty() && kind.name != "AppInst" => Err(Error::Invalid {
            message: format!(
                "{} {}: nothing to update; name at least one field besides the key",
                kind.word,
                draft::key_text(&draft.message)
            ),
            hints: vec![format!("`selvage {} update --help` shows them", kind.command())],
        }),
        Verb::Update => {
            let mut message = draft.with_mask(named);
            draft::keep_key(&mut message);
            Ok(message)
        }
        // Onto an object that is there only what the mask names is injected.
        Verb::Create if injects => Ok(draft.with_mask(named)),
        Verb::Delete => Ok(deletion(draft)),
        Verb::Create | Verb::Show => Ok(draft.message.clone()),
    }
}

/// The key, and how to go about it.
pub(crate) fn deletion(draft: &Draft) -> DynamicMessage {
    let mut message = draft::kept_key(&draft.message);
    let mode = draft.message.get_field_by_name("crm_override").map(std::borrow::Cow::into_owned);
    if let Some(mode @ Value::EnumNumber(1..)) = mode {
        message.set_field_by_name("crm_override", mode);
    }
    message
}

/// Asks where somebody can be asked; scripts mean what they say.
fn confirm(
    kind: &Kind,
    messages: &[DynamicMessage],
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if session.io.prompt.is_none() && !session.global.no_input {
        return Ok(());
    }
    let what = match messages {
        [one] => format!("{} {}", kind.word, draft::key_text(one)),
        several => format!("{} {}", several.len(), kind.plural),
    };
    if session.confirm(&format!("Delete {what}?"), "say --yes to mean it")? {
        return Ok(());
    }
    Err(Error::Declined(format!("{what} stays")))
}

async fn one(
    kind: &'static Kind,
    verb: Verb,
    message: DynamicMessage,
    args: &ObjectArgs,
    client: &Client,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let Some(method) = kind.method(verb) else {
        return Err(Error::Unexpected(format!("{} cannot be done", verb.word())));
    };
    let key = draft::key_text(&message);
    let job = Job { kind, method, message, watch: args.watch, dry_run: args.dry_run };
    let mut narrator = Narrator::lines(session);
    progress::perform(session, client, &job, &mut narrator).await?;
    if narrator.lines > 0 {
        return Ok(());
    }
    let will = if args.dry_run { "would be" } else { "is" };
    let done = format!("{}d", verb.word());
    session.io.say(&format!("{} {key} {will} {done}.", kind.word))
}

async fn show(
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
    if args.watch {
        return tokio::select! {
            result = Box::pin(watch(kind, &client, &filter.message, session)) => result,
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
    if count == 0 && session.io.out_is_terminal {
        session.io.say(&format!("No {} here.", kind.plural))?;
    }
    Ok(())
}

/// Shows again and again, and says what is different.
async fn watch(
    kind: &'static Kind,
    client: &Client,
    filter: &DynamicMessage,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let mut before: Option<String> = None;
    let Some(method) = kind.method(Verb::Show) else { return Ok(()) };
    loop {
        let states = States::of(kind, client, session).await;
        let objects = rpc::show(client, method, filter.clone()).await?;
        let now = render(&objects, &states, session)?;
        let text = match &before {
            _ if before.as_ref() == Some(&now) => String::new(),
            _ if session.io.out_is_terminal => format!("\x1b[H\x1b[2J{now}"),
            None => now.clone(),
            Some(before) => difference(before, &now),
        };
        session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
        session.io.out.flush().map_err(Error::Output)?;
        before = Some(now);
        tokio::time::sleep(POLL).await;
    }
}

fn render(
    objects: &[DynamicMessage],
    states: &States,
    session: &Session<'_>,
) -> Result<String, Error> {
    let mut text = Vec::new();
    let format = session.global.output.unwrap_or(Format::Table);
    let colour = session.io.colour_on_out(session.global.color);
    let mut printer = Printer::new(&mut text, format, colour);
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

/// Lines that went and lines that came. How far columns stand apart is no
/// difference.
pub(crate) fn difference(before: &str, now: &str) -> String {
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
    fn only_what_changed_is_told() {
        let before = "NAME  STATE\na     READY\nb     READY\n";
        let now = "NAME      STATE\na         READY\nb         GONE\nlong-one  READY\n";
        assert_eq!(difference(before, now), "- b     READY\n+ b         GONE\n+ long-one  READY\n");
    }
}
