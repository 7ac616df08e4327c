//! Updates of many instances: those of apps that changed, or those that flags
//! and selectors mean.

use prost_reflect::{DynamicMessage, Value};
use selvage_kit::labels::Selector;

use super::batch::{Batch, Outcome};
use crate::{
    Error,
    edge::{
        Draft, Kind, Verb, catalog, draft,
        file::Entry,
        flags::{self, ObjectArgs},
        rpc,
    },
    session::Session,
    suggest,
};

/// `appinst update --all` and `--selector`.
pub(crate) async fn update(
    kind: &'static Kind,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let selector = args.selector.as_deref().map(|text| parse(kind, text)).transpose()?;
    let mut filter = Draft::new(kind);
    args.fill_key(&mut filter)?;
    let mut wanted = Draft::new(kind);
    args.fill(&mut wanted)?;
    let mut batch = Batch::new(session, args.dry_run).await?;
    let fits = |object: &DynamicMessage| match &selector {
        Some(selector) => selector.matches(&flags::labels(kind, object)),
        None => true,
    };
    let all = shown(kind, &filter.message, &batch).await?;
    let chosen: Vec<Entry> =
        all.into_iter().filter(fits).map(|it| entry(kind, &wanted, &it)).collect();
    if chosen.is_empty() {
        return batch.session.io.say(&format!("No {} fit.", kind.plural));
    }
    refresh(&mut batch, &chosen, args.keep_going).await?;
    batch.finish()
}

/// Reads a selector whose names must be those of fields.
fn parse(kind: &Kind, text: &str) -> Result<Selector, Error> {
    let names = flags::names(kind);
    for part in text.split(',') {
        let name = part.split('=').next().unwrap_or(part).trim_end_matches('!').trim();
        if !names.iter().any(|known| known == name) {
            return Err(Error::Field {
                path: "--selector".into(),
                message: format!("{} have no field {name:?}", kind.plural),
                suggestions: suggest::closest(name, names.iter().map(String::as_str)),
            });
        }
    }
    Selector::parse(text).map_err(|error| Error::invalid(format!("--selector: {error}")))
}

async fn shown(
    kind: &Kind,
    filter: &DynamicMessage,
    batch: &Batch<'_, '_>,
) -> Result<Vec<DynamicMessage>, Error> {
    match kind.method(Verb::Show) {
        Some(method) => rpc::show(&batch.client, method, draft::only_key(filter)).await,
        None => Ok(Vec::new()),
    }
}

/// Change of an object that is there.
fn entry(kind: &'static Kind, wanted: &Draft, object: &DynamicMessage) -> Entry {
    let mut draft = wanted.clone();
    draft.take_key(object);
    Entry { kind, draft }
}

/// Updates one after the other. What fails for one may fail for all: the others keep
/// the version that serves.
async fn refresh(
    batch: &mut Batch<'_, '_>,
    entries: &[Entry],
    keep_going: bool,
) -> Result<(), Error> {
    for entry in entries {
        let outcome = match !keep_going && batch.refresh_failed {
            true => Outcome::NotUpdated,
            false => batch.refresh(entry).await,
        };
        batch.report(entry, &outcome)?;
    }
    Ok(())
}

/// Wishes about the instances of apps that changed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Roll {
    /// Update them without asking.
    pub(crate) always: bool,
    /// Go on after one that failed.
    pub(crate) keep_going: bool,
}

/// Offers to update the instances of apps that changed: they run what the apps
/// were until then.
pub(crate) async fn offer(
    batch: &mut Batch<'_, '_>,
    apps: &[&Entry],
    roll: Roll,
) -> Result<(), Error> {
    let Some(kind) = catalog::kind("appinst") else { return Ok(()) };
    for app in apps {
        let instances = shown(kind, &of_app(kind, &app.draft.message), batch).await?;
        if instances.is_empty() {
            continue;
        }
        let name = draft::key_text(&app.draft.message);
        let count = instances.len();
        let question = format!("app {name} changed; update its {count} instances now?");
        let asks = batch.session.io.prompt.is_some();
        if roll.always || (asks && batch.session.confirm(&question, "say --roll to mean it")?) {
            let unchanged = Draft::new(kind);
            let entries: Vec<Entry> =
                instances.iter().map(|object| entry(kind, &unchanged, object)).collect();
            refresh(batch, &entries, roll.keep_going).await?;
        } else if !asks {
            batch.session.io.say(&format!(
                "app {name} changed; its {count} instances run what it was: `selvage apply --roll` updates them"
            ))?;
        }
    }
    Ok(())
}

/// A filter for the instances of an app.
fn of_app(kind: &Kind, app: &DynamicMessage) -> DynamicMessage {
    let mut filter = DynamicMessage::new(kind.message.clone());
    let key = app.get_field_by_name("key").map(std::borrow::Cow::into_owned);
    let of_instance = filter.get_field_by_name_mut("key").and_then(Value::as_message_mut);
    if let (Some(key), Some(of_instance)) = (key, of_instance) {
        of_instance.set_field_by_name("app_key", key);
    }
    filter
}
