//! Follows changes of the configuration file.

use std::{path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{Result, Volumes, config::Config};

/// Interval at which the file is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Puts every new version of the file in force until told to stop. A version
/// that is wrong is told and passed over.
pub(crate) async fn follow(
    volumes: Volumes,
    path: PathBuf,
    mut config: Config,
    stop: CancellationToken,
) {
    let mut last_failure = None;
    while stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
        let failure = match take_over(&volumes, &path, &mut config).await {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        if failure != last_failure
            && let Some(error) = &failure
        {
            tracing::warn!(%error, "configuration not reloaded, the old one stays");
        }
        last_failure = failure;
    }
}

async fn take_over(volumes: &Volumes, path: &std::path::Path, config: &mut Config) -> Result<()> {
    let new = Config::load(path)?;
    if new == *config {
        return Ok(());
    }
    if needs_restart(config, &new) {
        tracing::warn!(
            "backend, loop.directory, lvm-command-prefix, socket and backup need a restart"
        );
    }
    let kept = Config {
        socket_name: config.socket_name.clone(),
        socket_mode: config.socket_mode.clone(),
        lvm_command_prefix: config.lvm_command_prefix.clone(),
        backend: config.backend,
        ..new.clone()
    };
    volumes.configure(&kept).await?;
    tracing::info!(classes = kept.device_classes.len(), "configuration reloaded");
    *config = new;
    Ok(())
}

/// Returns whether something changed that only a start takes over.
fn needs_restart(old: &Config, new: &Config) -> bool {
    old.socket_name != new.socket_name
        || old.socket_mode != new.socket_mode
        || old.lvm_command_prefix != new.lvm_command_prefix
        || old.backend() != new.backend()
        || old.loop_files.directory != new.loop_files.directory
        || old.backup != new.backup
}
