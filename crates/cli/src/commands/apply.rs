//! Many objects from one file: made, changed and taken away in the order that
//! their references ask for.

use std::path::PathBuf;

use prost_reflect::DynamicMessage;
use selvage_api::Code;
use serde_json::{Value, json};

use super::{
    object,
    progress::{self, Job, Narrator},
};
use crate::{
    Error,
    client::Client,
    edge::{
        Verb, draft,
        file::{self, Entry},
        rpc,
    },
    error::printable,
    session::Session,
};

/// `selvage apply`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage apply -f edge.yaml
  selvage apply -f edge.yaml --dry-run
  selvage export | selvage apply -f -

The file is a data set (flavors:, operators:, developers:, cloudlets:,
cloudletinfos:, clusters:, apps:, clusterinsts:, appinsts:, each a list), or
documents that say what they are (kind: App). Fields that the file does not
name stay as they are; objects that it does not name are left alone.")]
pub struct Apply {
    /// YAML, or - for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `selvage unapply`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  selvage unapply -f edge.yaml

What depends on others goes first. What is gone already is no failure.")]
pub struct Unapply {
    /// YAML, or - for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// What became of an object.
enum Outcome {
    Created,
    Updated,
    Unchanged,
    Deleted,
    Absent,
    /// In a dry run: what it waits for is itself only planned.
    Unchecked(Verb, Error),
    Failed(Error),
}

impl Outcome {
    fn words(&self, dry_run: bool) -> String {
        let will = if dry_run { "would be " } else { "" };
        match self {
            Self::Created => format!("{will}created"),
            Self::Updated => format!("{will}updated"),
            Self::Deleted => format!("{will}deleted"),
            Self::Unchanged => "unchanged".into(),
            Self::Absent => "absent".into(),
            Self::Unchecked(verb, error) => {
                let error = printable(&error.to_string());
                format!("would be {}d, unchecked: {error}", verb.word())
            }
            Self::Failed(error) => format!("failed: {}", printable(&error.to_string())),
        }
    }
}

/// One run over a file.
struct Run<'s, 'a> {
    session: &'s mut Session<'a>,
    client: Client,
    dry_run: bool,
    /// Something was, or would be, changed before.
    changed: bool,
    /// What the server says of the next object's plan.
    plan: Vec<String>,
    rows: Vec<Value>,
    failed: Vec<Code>,
}

pub(crate) async fn apply(args: &Apply, session: &mut Session<'_>) -> Result<(), Error> {
    let (text, origin) = file::text(&args.file, session.io)?;
    let mut entries = file::entries(&text, &origin, None)?;
    entries.sort_by_key(|entry| entry.kind.order());
    let mut run = Run::new(session, args.dry_run).await?;
    for entry in &entries {
        let outcome = run.put(entry).await;
        run.tell(entry, &outcome)?;
    }
    run.finish()
}

pub(crate) async fn unapply(args: &Unapply, session: &mut Session<'_>) -> Result<(), Error> {
    let (text, origin) = file::text(&args.file, session.io)?;
    let mut entries = file::entries(&text, &origin, None)?;
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.kind.order()));
    let asks = session.io.prompt.is_some() || session.global.no_input;
    if asks && !args.yes && !args.dry_run {
        let question = format!("Delete the {} objects of {origin}?", entries.len());
        if !session.confirm(&question, "say --yes to mean it")? {
            return Err(Error::Declined("they stay".into()));
        }
    }
    let mut run = Run::new(session, args.dry_run).await?;
    for entry in &entries {
        let outcome = run.take_away(entry).await;
        run.tell(entry, &outcome)?;
    }
    run.finish()
}

impl<'s, 'a> Run<'s, 'a> {
    async fn new(session: &'s mut Session<'a>, dry_run: bool) -> Result<Self, Error> {
        let client = session.client().await?;
        let (plan, rows, failed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { session, client, dry_run, changed: false, plan, rows, failed })
    }

    async fn put(&mut self, entry: &Entry) -> Outcome {
        match self.there(entry).await {
            Err(error) => Outcome::Failed(error),
            Ok(Some(there)) => self.update(entry, &there).await,
            Ok(None) => self.create(entry).await,
        }
    }

    /// The object as the server has it.
    async fn there(&self, entry: &Entry) -> Result<Option<DynamicMessage>, Error> {
        let Some(method) = entry.kind.method(Verb::Show) else { return Ok(None) };
        let mine = draft::kept_key(&entry.draft.message);
        let mut found = rpc::show(&self.client, method, mine.clone()).await?;
        let at = found.iter().position(|it| draft::same_key(&mine, it));
        Ok(at.map(|at| found.swap_remove(at)))
    }

    async fn create(&mut self, entry: &Entry) -> Outcome {
        let result = match object::request(entry.kind, Verb::Create, &entry.draft) {
            Ok(message) => self.send(entry, Verb::Create, message).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Outcome::Created,
            Err(error) if says(&error, "Key already exists") => Outcome::Unchanged,
            Err(error) => self.judged(Verb::Create, error),
        }
    }

    /// A failure, unless the plan so far may be all that it wants.
    fn judged(&self, verb: Verb, error: Error) -> Outcome {
        if self.dry_run && self.changed && waits_for_others(verb, &error) {
            Outcome::Unchecked(verb, error)
        } else {
            Outcome::Failed(error)
        }
    }

    async fn update(&mut self, entry: &Entry, there: &DynamicMessage) -> Outcome {
        let fields = entry.draft.differing(entry.kind, there);
        if fields.is_empty() {
            return Outcome::Unchanged;
        }
        let mut message = entry.draft.with_mask(fields);
        if let Some(key) = there.get_field_by_name("key") {
            message.set_field_by_name("key", key.into_owned());
        }
        match self.send(entry, Verb::Update, message).await {
            Ok(()) => Outcome::Updated,
            Err(error) => self.judged(Verb::Update, error),
        }
    }

    async fn take_away(&mut self, entry: &Entry) -> Outcome {
        let message = object::deletion(&entry.draft);
        match self.send(entry, Verb::Delete, message).await {
            Ok(()) => Outcome::Deleted,
            Err(error) if says(&error, "Key not found") => Outcome::Absent,
            Err(error) => self.judged(Verb::Delete, error),
        }
    }

    async fn send(
        &mut self,
        entry: &Entry,
        verb: Verb,
        message: DynamicMessage,
    ) -> Result<(), Error> {
        let kind = entry.kind;
        let Some(method) = kind.method(verb) else {
            return Err(Error::Unexpected(format!("{} cannot be done", verb.word())));
        };
        let job = Job { kind, method, message, watch: true, dry_run: self.dry_run };
        let mut narrator = Narrator::in_a_list(self.session, self.dry_run);
        let result = progress::perform(self.session, &self.client, &job, &mut narrator).await;
        self.plan = narrator.kept;
        self.changed |= result.is_ok();
        result
    }

    fn tell(&mut self, entry: &Entry, outcome: &Outcome) -> Result<(), Error> {
        let key = draft::key_text(&entry.draft.message);
        let words = outcome.words(self.dry_run);
        if let Outcome::Failed(error) = outcome {
            match error {
                Error::Interrupted => return Err(Error::Interrupted),
                // The next object would be made in earnest too.
                Error::NotDry(method) => return Err(Error::NotDry(method.clone())),
                _ => {}
            }
            self.failed.push(error.code());
        }
        let plan: Vec<String> = std::mem::take(&mut self.plan);
        let mut row = json!({ "kind": entry.kind.name, "key": key, "outcome": words });
        if !plan.is_empty() {
            row["plan"] = json!(plan);
        }
        self.rows.push(row);
        if self.session.printer().is_table() {
            let mut text = format!("{} {}: {words}\n", entry.kind.word, printable(&key));
            for line in plan.iter().filter(|line| !repeats(line)) {
                text += &format!("  {line}\n");
            }
            self.session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
            self.session.io.out.flush().map_err(Error::Output)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        let mut printer = self.session.printer();
        if !printer.is_table() {
            printer.values(&[], &self.rows)?;
        }
        let Some(code) = self.failed.first() else { return Ok(()) };
        Err(Error::Status {
            code: *code,
            message: format!("{} of {} objects failed", self.failed.len(), self.rows.len()),
            hints: Vec::new(),
        })
    }
}

fn says(error: &Error, text: &str) -> bool {
    matches!(error, Error::Status { message, .. } if message.contains(text))
}

/// Whether the failure may be that another object of the file is not there
/// yet, or still is.
fn waits_for_others(verb: Verb, error: &Error) -> bool {
    match verb {
        Verb::Delete => error.code() == Code::FailedPrecondition,
        _ => matches!(error.code(), Code::NotFound | Code::Unavailable),
    }
}

/// Whether a line of a plan names the object alone, as the line above it does.
fn repeats(line: &str) -> bool {
    line.starts_with("dry run: would ") && !line.contains("} and ")
}
