//! The programs of QEMU, run with arguments and never through a shell.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::Command;

use crate::{Error, Result, error::During};

/// Time a disk may take to be looked at or made; a stranger's may be made
/// to take for ever.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) qemu: PathBuf,
    image: PathBuf,
    /// Gives a machine a session of its own.
    pub(super) session: PathBuf,
}

impl Tools {
    pub(super) fn find() -> Result<Self> {
        Ok(Self {
            qemu: program("qemu-system-x86_64")?,
            image: program("qemu-img")?,
            session: program("setsid")?,
        })
    }

    /// Returns what `qemu-img` says, or why it does not.
    pub(super) async fn image<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Vec<u8>> {
        let run = Command::new(&self.image)
            .args(arguments)
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
