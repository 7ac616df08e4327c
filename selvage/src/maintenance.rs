//! `selvage store …`: moving a store's content, and looking for damage.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};
use selvage_store::transfer;

use crate::{
    args::Store,
    assemble,
    config::StoreKind,
    up::{fail, load},
};

pub async fn run(command: Store) -> ExitCode {
    let done = match command {
        Store::Export { serve, file } => export(&serve, &file).await,
        Store::Import { serve, file, merge } => import(&serve, &file, merge).await,
        Store::Check { serve } => check(&serve).await,
    };
    done.unwrap_or_else(|error| fail(&error))
}

fn say(text: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(io::stderr(), "{text}");
}

async fn export(serve: &crate::args::Serve, file: &Path) -> anyhow::Result<ExitCode> {
    let store = assemble::store(&load(serve)?).await?;
    let target: Box<dyn Write + Send> = if file == Path::new("-") {
        Box::new(io::stdout())
    } else {
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.write(true).create_new(true).open(file);
        Box::new(file.context("the file to write")?)
    };
    let summary = transfer::export(&store, BufWriter::new(target)).await?;
    store.close().await?;
    say(&format!("exported {} keys at revision {}", summary.keys, summary.revision));
    Ok(ExitCode::SUCCESS)
}

async fn import(
    serve: &crate::args::Serve,
    file: &Path,
    merge: bool,
) -> anyhow::Result<ExitCode> {
    let source: Box<dyn Read + Send> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(file).with_context(|| file.display().to_string())?)
    };
    let store = assemble::store(&load(serve)?).await?;
    let summary = transfer::import(&store, BufReader::new(source), merge).await?;
    store.close().await?;
    say(&format!("imported {} keys", summary.keys));
    Ok(ExitCode::SUCCESS)
}

async fn check(serve: &crate::args::Serve) -> anyhow::Result<ExitCode> {
    let config = load(serve)?;
    if config.store.kind != StoreKind::Embedded {
        bail!("store.kind: only an embedded store can be checked; etcd has tools of its own");
    }
    let path = config.data.join(assemble::STORE_FILE);
    let report = transfer::check(&path).await.with_context(|| path.display().to_string())?;
    for problem in &report.problems {
        say(&format!("problem: {problem}"));
    }
    say(&format!("checked {} keys at revision {}", report.keys, report.revision));
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
