//! The programs of QEMU, run with arguments and never through a shell.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::Command;

use super::user::User;
use crate::{Error, Result, error::During};

/// Time a disk may take to be made.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) qemu: PathBuf,
    image: PathBuf,
    /// Gives a machine a session of its own,
    session: PathBuf,
    /// lets it into its network,
    enter: PathBuf,
    /// and takes all rights from it.
    surrender: PathBuf,
}

impl Tools {
    pub(super) fn find() -> Result<Self> {
        Ok(Self {
            qemu: program("qemu-system-x86_64")?,
            image: program("qemu-img")?,
            session: program("setsid")?,
            enter: program("nsenter")?,
            surrender: program("setpriv")?,
        })
    }

    /// QEMU as another user, in this folder: of the files there it is told by
    /// names alone, as it may not enter the folders above.
    pub(super) fn machine(&self, user: User, folder: &Path, network: Option<&Path>) -> Command {
        let mut command = Command::new(&self.session);
        if let Some(network) = network {
            command.arg(&self.enter).arg(format!("--net={}", network.display()));
        }
        command.arg(&self.surrender).args(user.arguments()).arg("--").arg(&self.qemu);
        // Nothing that this process was told is for it.
        command.env_clear().current_dir(folder);
        command
    }

    /// Returns what `qemu-img` says in this folder, or why it does not.
    pub(super) async fn image<A: AsRef<OsStr>>(
        &self,
        folder: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Vec<u8>> {
        let run = Command::new(&self.image)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let failed = |text: String| {
            Error::Runtime(selvage_runtime::Error::Program { program: "qemu-img".into(), text })
        };
        let done = tokio::time::timeout(TOOL_TIMEOUT, run).await;
        let done = done.map_err(|_| failed("it took too long".into()))?;
        let done = done.during("running qemu-img")?;
        if done.status.success() {
            return Ok(done.stdout);
        }
        Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
    }
}

fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(usual).map(|place| place.join(name));
    let found = places.find(|place| place.is_absolute() && is_program(place));
    found.ok_or_else(|| {
        Error::state(format!("a cloudlet of virtual machines needs {name}, which is not installed"))
    })
}

fn is_program(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}
