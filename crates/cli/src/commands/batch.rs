//! Many objects in one run: each is put, updated or deleted, and its outcome is a
//! line.

use prost_reflect::DynamicMessage;
use selvage_api::Code;
use serde_json::{Value, json};

use super::{
    object,
    progress::{self, Job, ProgressPrinter},
};
use crate::{
    Error,
    client::Client,
    edge::{Verb, diff, draft, file::Entry},
    error::printable,
    session::Session,
};

/// Outcome of one object.
pub(crate) enum Outcome {
    Created,
    Updated,
    Unchanged,
    Deleted,
    Absent,
    /// Left as it was because another failed.
    NotUpdated,
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
            Self::NotUpdated => "not updated".into(),
            Self::Unchecked(verb, error) => {
                let error = printable(&error.to_string());
                format!("would be {}d, unchecked: {error}", verb.word())
            }
            Self::Failed(error) => format!("failed: {}", printable(&error.to_string())),
        }
    }
}

/// One run over many objects.
pub(crate) struct Batch<'s, 'a> {
    pub(crate) session: &'s mut Session<'a>,
    pub(crate) client: Client,
    dry_run: bool,
    /// Something was, or would be, changed before.
    changed: bool,
    /// Lines of the server about the next object's plan.
    plan: Vec<String>,
    /// Fields that the next object's update changes, in a dry run.
    diff: Vec<String>,
    rows: Vec<Value>,
    failed: Vec<Code>,
    not_updated: usize,
    /// An object could not be brought up to date.
    pub(crate) refresh_failed: bool,
}

impl<'s, 'a> Batch<'s, 'a> {
    pub(crate) async fn new(session: &'s mut Session<'a>, dry_run: bool) -> Result<Self, Error> {
        let client = session.client().await?;
        Ok(Self {
            session,
            client,
            dry_run,
            changed: false,
            plan: Vec::new(),
            diff: Vec::new(),
            rows: Vec::new(),
            failed: Vec::new(),
            not_updated: 0,
            refresh_failed: false,
        })
    }

    /// Creates what is missing, updates what differs.
    pub(crate) async fn put(&mut self, entry: &Entry) -> Outcome {
        match object::find(entry.kind, &entry.draft.message, &self.client).await {
            Err(error) => Outcome::Failed(error),
            Ok(Some(there)) => self.update(entry, &there).await,
            Ok(None) => self.create(entry).await,
        }
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
        if self.dry_run {
            self.diff = diff::lines(there, &entry.draft.message, &fields);
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

    /// Updates an object that is there with what the draft names, or, where that
    /// is nothing, to what it is made of by now.
    pub(crate) async fn refresh(&mut self, entry: &Entry) -> Outcome {
        let result = match object::request(entry.kind, Verb::Update, &entry.draft) {
            Ok(message) => self.send(entry, Verb::Update, message).await,
            Err(error) => Err(error),
        };
        self.refresh_failed |= result.is_err() && !self.dry_run;
        match result {
            Ok(()) => Outcome::Updated,
            Err(error) => self.judged(Verb::Update, error),
        }
    }

    pub(crate) async fn delete(&mut self, entry: &Entry) -> Outcome {
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
        let mut narrator = ProgressPrinter::in_a_list(self.session, self.dry_run);
        let result = progress::perform(self.session, &self.client, &job, &mut narrator).await;
        self.plan = narrator.kept;
        self.changed |= result.is_ok();
        result
    }

    /// Prints the outcome of an object.
    pub(crate) fn report(&mut self, entry: &Entry, outcome: &Outcome) -> Result<(), Error> {
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
        self.not_updated += usize::from(matches!(outcome, Outcome::NotUpdated));
        let plan: Vec<String> = std::mem::take(&mut self.plan);
        let mut row = json!({ "kind": entry.kind.name, "key": key, "outcome": words });
        let diff: Vec<String> = std::mem::take(&mut self.diff);
        if !plan.is_empty() {
            row["plan"] = json!(plan);
        }
        if !diff.is_empty() {
            row["diff"] = json!(diff);
        }
        self.rows.push(row);
        if self.session.printer().is_table() {
            let mut text = format!("{} {}: {words}\n", entry.kind.word, printable(&key));
            for line in diff.iter().chain(plan.iter().filter(|line| !repeats(line))) {
                text += &format!("  {line}\n");
            }
            self.session.io.out.write_all(text.as_bytes()).map_err(Error::Output)?;
            self.session.io.out.flush().map_err(Error::Output)?;
        }
        Ok(())
    }

    /// Prints what is left to print; a failure where one of the objects failed.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let mut printer = self.session.printer();
        if !printer.is_table() {
            printer.values(&[], &self.rows)?;
        }
        let Some(code) = self.failed.first() else { return Ok(()) };
        let mut message = format!("{} of {} objects failed", self.failed.len(), self.rows.len());
        let mut hints = Vec::new();
        if self.not_updated > 0 {
            message += &format!(", {} not updated", self.not_updated);
            hints.push("--keep-going updates the others all the same".to_owned());
        }
        Err(Error::Status { code: *code, message, hints })
    }
}

fn says(error: &Error, text: &str) -> bool {
    matches!(error, Error::Status { message, .. } if message.contains(text))
}

/// Returns whether the failure may be that another object of the file is not there
/// yet, or still is.
fn waits_for_others(verb: Verb, error: &Error) -> bool {
    match verb {
        Verb::Delete => error.code() == Code::FailedPrecondition,
        _ => matches!(error.code(), Code::NotFound | Code::Unavailable),
    }
}

/// Returns whether a line of a plan names the object alone, as the line above it does.
fn repeats(line: &str) -> bool {
    line.starts_with("dry run: would ") && !line.contains("} and ")
}
