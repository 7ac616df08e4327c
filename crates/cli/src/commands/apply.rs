//! Many objects from files: made, changed and taken away in the order that
//! their references ask for.

use std::path::{Path, PathBuf};

use super::{
    batch::{Batch, Outcome},
    roll::{self, Roll},
};
use crate::{
    Error,
    edge::file::{self, Entry},
    session::Session,
};

/// `selvage apply`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage apply -f edge.yaml
  selvage apply -f edge.yaml --dry-run
  selvage apply -f site/ -f apps.yaml
  selvage export | selvage apply -f -

A file is a data set (flavors:, operators:, developers:, cloudlets:,
cloudletinfos:, clusters:, apps:, clusterinsts:, appinsts:, each a list), or
documents that say what they are (kind: App). Fields that the files do not
name stay as they are; objects that they do not name are left alone.")]
pub struct Apply {
    /// YAML, a folder of it, or - for stdin; may be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Only show what would be done, field by field
    #[arg(long)]
    pub dry_run: bool,
    /// Update the instances of apps that changed, without asking
    #[arg(long)]
    pub roll: bool,
    /// Go on with other instances after one could not be updated
    #[arg(long)]
    pub keep_going: bool,
}

/// `selvage unapply`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  selvage unapply -f edge.yaml

What depends on others goes first. What is gone already is no failure.")]
pub struct Unapply {
    /// YAML, a folder of it, or - for stdin; may be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

/// The objects of all files, with a text that names them.
fn entries(files: &[PathBuf], session: &mut Session<'_>) -> Result<(Vec<Entry>, String), Error> {
    let mut all = Vec::new();
    let mut names = Vec::new();
    for path in files {
        for path in expand(path)? {
            let (text, origin) = file::text(&path, session.io)?;
            all.extend(file::entries(&text, &origin, None)?);
            names.push(origin);
        }
    }
    Ok((all, names.join(", ")))
}

/// A file, or the YAML files of a folder in the order of their names.
fn expand(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |source| Error::read(path, source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let is_yaml = file.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if is_yaml && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(Error::invalid(format!("{} holds no file .yaml or .yml", path.display())));
    }
    files.sort();
    Ok(files)
}

pub(crate) async fn apply(args: &Apply, session: &mut Session<'_>) -> Result<(), Error> {
    let (mut entries, _) = entries(&args.files, session)?;
    entries.sort_by_key(|entry| entry.kind.order());
    let mut batch = Batch::new(session, args.dry_run).await?;
    let mut changed = Vec::new();
    for entry in &entries {
        let outcome = batch.put(entry).await;
        if entry.kind.name == "App" && matches!(outcome, Outcome::Updated) {
            changed.push(entry);
        }
        batch.report(entry, &outcome)?;
    }
    if !args.dry_run {
        let wish = Roll { always: args.roll, keep_going: args.keep_going };
        roll::offer(&mut batch, &changed, wish).await?;
    }
    batch.finish()
}

pub(crate) async fn unapply(args: &Unapply, session: &mut Session<'_>) -> Result<(), Error> {
    let (mut entries, origin) = entries(&args.files, session)?;
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.kind.order()));
    if !args.yes && !args.dry_run {
        let question = format!("Delete the {} objects of {origin}?", entries.len());
        if !session.confirm(&question, "say --yes to mean it")? {
            return Err(Error::Declined("they stay".into()));
        }
    }
    let mut batch = Batch::new(session, args.dry_run).await?;
    for entry in &entries {
        let outcome = batch.delete(entry).await;
        batch.report(entry, &outcome)?;
    }
    batch.finish()
}
