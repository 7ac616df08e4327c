//! Reboot, shutdown, reset and upgrade: for machines that are ours alone.

use std::{fs, io, path::PathBuf, process::Command};

use rustix::system::{RebootCommand, reboot};

/// Power actions on a machine as a whole. All of them block.
pub trait Power: Send + Sync + 'static {
    /// Starts the machine anew.
    fn reboot(&self) -> io::Result<()>;

    /// Turns the machine off.
    fn shutdown(&self) -> io::Result<()>;

    /// Returns the reason why the machine cannot be reset, if it cannot.
    fn reset_obstacle(&self) -> Option<String>;

    /// Takes away what makes this machine one of ours, and starts it anew.
    fn reset(&self) -> io::Result<()>;

    /// Returns the reason why the machine cannot be upgraded, if it cannot.
    fn upgrade_obstacle(&self) -> Option<String>;

    /// Upgrades the machine to what is in the image.
    fn upgrade(&self, image: &str) -> io::Result<()>;
}

/// The machine that this process runs on.
#[derive(Debug, Clone, Default)]
pub struct SystemPower {
    /// Files and folders that a reset removes.
    pub reset_paths: Vec<PathBuf>,
    /// Program that upgrades the machine, with its arguments; the image comes
    /// last.
    pub installer: Vec<String>,
}

impl Power for SystemPower {
    fn reboot(&self) -> io::Result<()> {
        rustix::fs::sync();
        Ok(reboot(RebootCommand::Restart)?)
    }

    fn shutdown(&self) -> io::Result<()> {
        rustix::fs::sync();
        Ok(reboot(RebootCommand::PowerOff)?)
    }

    fn reset_obstacle(&self) -> Option<String> {
        let nothing = "the agent is not told which files to remove (node.reset_paths)";
        self.reset_paths.is_empty().then(|| nothing.to_owned())
    }

    fn reset(&self) -> io::Result<()> {
        for path in &self.reset_paths {
            let removed = match fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
                Ok(_) => fs::remove_file(path),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.reboot()
    }

    fn upgrade_obstacle(&self) -> Option<String> {
        let nothing = "the agent is not told which program upgrades (node.installer)";
        self.installer.is_empty().then(|| nothing.to_owned())
    }

    fn upgrade(&self, image: &str) -> io::Result<()> {
        let [program, arguments @ ..] = self.installer.as_slice() else {
            return Err(io::Error::other("no installer"));
        };
        let status = Command::new(program).args(arguments).arg(image).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }
}
