//! `selvage down`: stops the apps that outlive a daemon, and removes what they
//! have on this machine.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};
use selvage_crm::{Footprint, teardown};
use selvage_store::{
    Store,
    embedded::{self, Embedded},
};

use crate::{
    args::{Down, Serve},
    config::{BAD_CONFIG, load},
    daemon::{fail, store},
};

/// Entries of a data directory, by which one is known.
const OURS: [&str; 4] = [store::FILE, "crm.redb", "pki", "cloudlet.json"];

pub(crate) async fn run(down: &Down, global: &selvage_cli::Global) -> ExitCode {
    let serve = Serve { config: down.config.clone(), data: down.data.clone(), ..Serve::default() };
    let data = match load(&serve) {
        Ok(config) => config.data,
        Err(error) => {
            fail(&error);
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let done = take_down(&data, down, global).await;
    done.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
}

async fn take_down(data: &Path, down: &Down, global: &selvage_cli::Global) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("only root can remove networks and mounts: run it with sudo");
    }
    let cloudlets = teardown::find(data)?;
    let purge = down.purge && data.exists();
    if cloudlets.is_empty() && !purge {
        return say(&nothing(data)?);
    }
    refuse_while_running(data).await?;
    if purge {
        check_ours(data)?;
    }
    if !down.yes && !agreed(&question(&cloudlets, data, purge), global)? {
        bail!("nothing was removed");
    }
    let mut removed = Vec::new();
    for cloudlet in &cloudlets {
        removed.extend(teardown::remove(cloudlet, data).await?);
        say(&format!("stopped the apps of cloudlet {cloudlet}"))?;
    }
    if purge {
        removed.extend(teardown::remove_containers(data).await?);
        fs::remove_dir_all(data).with_context(|| data.display().to_string())?;
        removed.push(format!("data directory {}", data.display()));
    }
    for what in removed {
        say(&format!("removed {what}"))?;
    }
    Ok(())
}

/// Fails while a daemon uses the data directory.
async fn refuse_while_running(data: &Path) -> anyhow::Result<()> {
    let path = data.join(store::FILE);
    if !path.exists() {
        return Ok(());
    }
    match Embedded::open(&path, embedded::Options::default()).await {
        Ok(store) => Ok(store.close().await?),
        Err(error @ selvage_store::Error::Locked { .. }) => {
            Err(anyhow::Error::new(error).context("stop the daemon first"))
        }
        // A store that cannot be read keeps nobody from removing it.
        Err(_) => Ok(()),
    }
}

/// Fails where a directory is not the data directory of a daemon.
fn check_ours(data: &Path) -> anyhow::Result<()> {
    if OURS.iter().any(|name| data.join(name).exists()) {
        return Ok(());
    }
    bail!("{} is no data directory of selvage: it was left alone", data.display())
}

fn question(cloudlets: &[Footprint], data: &Path, purge: bool) -> String {
    let names: Vec<String> = cloudlets.iter().map(ToString::to_string).collect();
    let stop = match names.as_slice() {
        [] => String::new(),
        names => format!(
            "Stop all apps of cloudlet {} and remove their networks and mounts",
            names.join(", ")
        ),
    };
    let delete = format!("delete {} with all keys, objects and images", data.display());
    match (stop.is_empty(), purge) {
        (false, true) => format!("{stop}, and {delete}?"),
        (false, false) => format!("{stop}?"),
        (true, _) => format!("D{}?", &delete[1..]),
    }
}

/// Asks whoever sits at the terminal.
fn agreed(question: &str, global: &selvage_cli::Global) -> anyhow::Result<bool> {
    let Some(mut prompt) = selvage_cli::Io::process(global).prompt else {
        bail!("{question} Nobody can be asked here: say --yes to mean it");
    };
    let answer = prompt.line(&format!("{question} [y/N] "))?;
    Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

/// Text for a data directory without a cloudlet, with those that have one.
fn nothing(data: &Path) -> anyhow::Result<String> {
    let mut text = format!("No cloudlet has its data in {}.", data.display());
    for (cloudlet, there) in teardown::directories()? {
        text += &format!("\nCloudlet {cloudlet} has: selvage down --data {}", there.display());
    }
    Ok(text)
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cloudlet(name: &str) -> Footprint {
        Footprint {
            operator: "op".into(),
            name: name.into(),
            kind: selvage_crm::Kind::Containers,
            network_scheme: "10.101.0.0/16".into(),
            containerd: None,
        }
    }

    #[test]
    fn the_question_says_what_will_be_gone() {
        let data = Path::new("/srv/selvage");
        let both = question(&[cloudlet("a"), cloudlet("b")], data, true);
        assert!(both.contains("cloudlet op/a, op/b") && both.contains("delete /srv/selvage"));
        let apps = question(&[cloudlet("a")], data, false);
        assert!(!apps.contains("/srv/selvage") && apps.ends_with('?'), "{apps}");
        assert!(question(&[], data, true).starts_with("Delete /srv/selvage"));
    }

    #[test]
    fn a_folder_that_is_not_ours_is_not_purged() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_ours(folder.path()).is_err());
        fs::create_dir(folder.path().join("pki")).unwrap();
        assert!(check_ours(folder.path()).is_ok());
    }
}
