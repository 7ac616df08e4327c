//! `selvage store …`: moving a store's content, and looking for damage.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use selvage_controller::import::Dump;
use selvage_store::{
    Error,
    transfer::{self, Existing},
};

use crate::{
    args::{ImportSource, Serve, Store},
    config::{Config, StoreKind, load},
    daemon::{fail, store},
};

pub(crate) async fn run(command: Store) -> ExitCode {
    let done = match command {
        Store::Export { serve, file } => export(&serve, &file).await,
        Store::Import { serve, file, merge, from: None } => import(&serve, &file, merge).await,
        Store::Import { serve, file, merge, from: Some(ImportSource::EdgeCloud) } => {
            import_edge_cloud(&serve, &file, merge).await
        }
        Store::Check { serve } => check(&serve).await,
    };
    done.unwrap_or_else(|error| fail(&error))
}

fn say(text: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(io::stderr(), "{text}");
}

/// The data file of the embedded store, which must be there.
fn data_file(config: &Config) -> anyhow::Result<PathBuf> {
    let path = config.data.join(store::FILE);
    if !path.try_exists().with_context(|| path.display().to_string())? {
        bail!("there is no store {}", path.display());
    }
    Ok(path)
}

async fn export(serve: &Serve, file: &Path) -> anyhow::Result<ExitCode> {
    let config = load(serve)?;
    if config.store.kind == StoreKind::Embedded {
        data_file(&config)?;
    }
    let store = store::open(&config).await?;
    let exported = transfer::export(store.as_ref(), file).await;
    store.close().await?;
    let exported = exported?;
    say(&format!("exported {} keys at revision {}", exported.keys, exported.revision));
    Ok(ExitCode::SUCCESS)
}

async fn import(serve: &Serve, file: &Path, merge: bool) -> anyhow::Result<ExitCode> {
    let config = load(serve)?;
    // A file that is no use must not leave an empty store behind.
    let content = transfer::read(file).await?;
    let store = store::open(&config).await?;
    let existing = if merge { Existing::Merge } else { Existing::Refuse };
    let imported = transfer::import(store.as_ref(), content, existing).await;
    store.close().await?;
    let imported = match imported {
        Err(refused @ Error::NotEmpty { .. }) => {
            bail!("{refused}: say --merge to write over those that the file has, and keep the rest")
        }
        imported => imported?,
    };
    say(&format!("imported {} keys", imported.keys));
    Ok(ExitCode::SUCCESS)
}

async fn import_edge_cloud(serve: &Serve, file: &Path, merge: bool) -> anyhow::Result<ExitCode> {
    let config = load(serve)?;
    let text = tokio::fs::read_to_string(file).await;
    let text = text.with_context(|| file.display().to_string())?;
    let dump = Dump::read(&text).with_context(|| file.display().to_string())?;
    let left_out = dump.left_out;
    let store = store::open(&config).await?;
    let written = dump.write(&store, merge).await;
    store.close().await?;
    say(&format!("imported {} objects", written?));
    if left_out > 0 {
        say(&format!("left out {left_out} reports of agents and controllers: they come anew"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn check(serve: &Serve) -> anyhow::Result<ExitCode> {
    let config = load(serve)?;
    if config.store.kind != StoreKind::Embedded {
        bail!("store.kind: only an embedded store can be checked; etcd has tools of its own");
    }
    let report = transfer::check(&data_file(&config)?).await?;
    for problem in &report.problems {
        say(&format!("problem: {problem}"));
    }
    say(&format!("checked {} keys at revision {}", report.keys, report.revision));
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
