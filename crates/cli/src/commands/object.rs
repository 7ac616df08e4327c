//! Create, update and delete of one kind of object.

use std::io::Write as _;

use prost_reflect::{DynamicMessage, Value};

use super::{
    names,
    progress::{self, Job, ProgressPrinter},
    revision, roll, show,
};
use crate::{
    Error,
    client::Client,
    edge::{
        Draft, Kind, Verb, diff, draft,
        file::{self, Entry},
        flags::{Action, Object, ObjectArgs},
        rpc,
    },
    error::printable,
    session::Session,
};

pub(crate) async fn run(object: Object, session: &mut Session<'_>) -> Result<(), Error> {
    let Object { kind, action, args } = object;
    match action {
        Action::Verb(Verb::Show) => show::run(kind, &args, session).await,
        Action::Verb(Verb::Update) if args.means_many() => roll::update(kind, &args, session).await,
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
    let mut drafts = match verb {
        // Depends on what is there.
        Verb::Update if needs_lists(kind, args) => Vec::new(),
        _ => drafts(kind, args, session)?,
    };
    if let (Verb::Create, Some(name), [draft]) = (verb, &args.name, drafts.as_mut_slice()) {
        names::put(kind, &mut draft.message, name)?;
    }
    let requests = |drafts: &[Draft]| {
        drafts.iter().map(|draft| request(kind, verb, draft)).collect::<Result<Vec<_>, _>>()
    };
    // Mistakes are found before anybody is asked for anything.
    let mut messages = requests(&drafts)?;
    let client = session.client().await?;
    let is_there = verb != Verb::Create;
    if is_there && (args.name.is_some() || drafts.is_empty()) {
        drafts = vec![existing(kind, verb, args, &client).await?];
        messages = requests(&drafts)?;
    }
    if verb == Verb::Delete && !args.yes && !args.dry_run {
        confirm(kind, &messages, session)?;
    }
    for message in messages {
        if verb == Verb::Update && args.dry_run {
            print_difference(kind, &message, &client, session).await?;
        }
        one(kind, verb, message, args, &client, session).await?;
    }
    Ok(())
}

fn needs_lists(kind: &Kind, args: &ObjectArgs) -> bool {
    args.file.is_none() && !args.partial_paths(kind).is_empty()
}

/// The draft of a change of an object that is there: found by its name, with
/// the lists that are changed in part.
async fn existing(
    kind: &'static Kind,
    verb: Verb,
    args: &ObjectArgs,
    client: &Client,
) -> Result<Draft, Error> {
    let mut asked = Draft::new(kind);
    args.fill_key(&mut asked)?;
    let there = match &args.name {
        Some(name) => Some(names::resolve(kind, name, &asked.message, client).await?),
        None => find(kind, &asked.message, client).await?,
    };
    let Some(there) = there else {
        let mut draft = Draft::new(kind);
        args.fill(&mut draft)?;
        return Ok(draft);
    };
    let paths = if verb == Verb::Update { args.partial_paths(kind) } else { Vec::new() };
    let mut draft = Draft::of(kind, &there, &paths);
    args.fill(&mut draft)?;
    draft.take_key(&there);
    Ok(draft)
}

/// The object of a key as the server has it.
pub(crate) async fn find(
    kind: &Kind,
    message: &DynamicMessage,
    client: &Client,
) -> Result<Option<DynamicMessage>, Error> {
    let Some(method) = kind.method(Verb::Show) else { return Ok(None) };
    let mine = draft::kept_key(message);
    let mut found = rpc::show(client, method, mine.clone()).await?;
    let at = found.iter().position(|it| draft::same_key(&mine, it));
    Ok(at.map(|at| found.swap_remove(at)))
}

/// Prints which fields an update changes.
async fn print_difference(
    kind: &Kind,
    message: &DynamicMessage,
    client: &Client,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if !session.printer().is_table() {
        return Ok(());
    }
    let Some(there) = find(kind, message, client).await? else { return Ok(()) };
    let paths = draft::mask_of(message);
    let changed: Vec<String> =
        paths.into_iter().filter(|path| draft::differs(path, message, &there)).collect();
    for line in diff::lines(&there, message, &changed) {
        writeln!(session.io.out, "{}", printable(&line)).map_err(Error::Output)?;
    }
    Ok(())
}

/// Builds the request for a draft.
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

/// Asks before something is deleted. Where nobody can be asked, `--yes` must say so.
fn confirm(
    kind: &Kind,
    messages: &[DynamicMessage],
    session: &mut Session<'_>,
) -> Result<(), Error> {
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
    let mut narrator = ProgressPrinter::lines(session);
    progress::perform(session, client, &job, &mut narrator).await?;
    if narrator.lines > 0 {
        return Ok(());
    }
    let will = if args.dry_run { "would be" } else { "is" };
    let done = format!("{}d", verb.word());
    session.io.say(&format!("{} {key} {will} {done}.", kind.word))
}
