//! File systems on volumes: found, made and grown by the system's programs.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    process::Stdio,
    str::FromStr,
};

use tokio::process::Command;

use crate::{Error, Result};

/// Folders of programs, whatever the environment says.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// blkid's code for "nothing was found".
const NOTHING: i32 = 2;
/// e2fsck's code for "all is well now".
const REPAIRED: i32 = 1;
/// A file system may leave so much of its device unused.
const REST: u64 = 64 << 20;
/// Superblocks are in the first bytes of a device.
const BEGINNING: usize = 4096;

/// A file system that volumes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Option of its mounts. A copy has the UUID of what it is a copy of, and xfs
    /// refuses to mount two of one UUID.
    pub(crate) fn option(self) -> Option<&'static str> {
        (self == Self::Xfs).then_some("nouuid")
    }

    /// Returns the size of such a file system by the beginning of its device; none where
    /// there is none.
    fn size(self, beginning: &[u8]) -> Option<u64> {
        let at = |from: usize, length: usize| beginning.get(from..from + length);
        let little = |from| Some(u32::from_le_bytes(at(from, 4)?.try_into().ok()?));
        let big = |from| Some(u32::from_be_bytes(at(from, 4)?.try_into().ok()?));
        match self {
            Self::Ext4 => {
                const SUPERBLOCK: usize = 1024;
                const WIDE: u32 = 0x80;
                if at(SUPERBLOCK + 0x38, 2)? != [0x53, 0xef] {
                    return None;
                }
                let is_wide = little(SUPERBLOCK + 0x60)? & WIDE != 0;
                let high = if is_wide { little(SUPERBLOCK + 0x150)? } else { 0 };
                let blocks = u64::from(high) << 32 | u64::from(little(SUPERBLOCK + 4)?);
                blocks.checked_mul(1024_u64.checked_shl(little(SUPERBLOCK + 24)?)?)
            }
            Self::Xfs => {
                if at(0, 4)? != b"XFSB" {
                    return None;
                }
                let blocks = u64::from(big(8)?) << 32 | u64::from(big(12)?);
                blocks.checked_mul(big(4)?.into())
            }
        }
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "" | "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            other => {
                let text = format!("{other:?} is not ext4 or xfs");
                Err(Error::invalid("volume_capability.mount.fs_type", text))
            }
        }
    }
}

fn command(program: &'static str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).env("LC_ALL", "C").stdin(Stdio::null());
    command.kill_on_drop(false);
    command
}

async fn run(program: &'static str, arguments: &[&str], path: &Path) -> Result<()> {
    let output = command(program).args(arguments).arg(path).output().await;
    let output = output.map_err(Error::file(program))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(program, &output.stderr)),
    }
}

fn failed(program: &'static str, said: &[u8]) -> Error {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let text = lines[lines.len().saturating_sub(2)..].join("; ");
    let text = if text.is_empty() { "failed".to_owned() } else { text };
    Error::Program { program, text }
}

/// Tells what is on a device; nothing on one that is empty. What cannot be told
/// is an error: nobody may format it.
async fn content(device: &Path) -> Result<Option<String>> {
    let mut command = command("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device);
    let output = command.output().await.map_err(Error::file("blkid"))?;
    if output.status.code() == Some(NOTHING) {
        return Ok(None);
    }
    if !output.status.success() {
        return Err(failed("blkid", &output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |key: &str| text.lines().find_map(|line| Some(line.strip_prefix(key)?.to_owned()));
    let found = value("TYPE=").or_else(|| value("PTTYPE="));
    let unknown = || Error::Program { program: "blkid", text: "found something unknown".into() };
    found.map(Some).ok_or_else(unknown)
}

/// Sees that a device has this file system, and makes it on an empty one. What
/// is there is never touched.
pub(crate) async fn provide(device: &Path, kind: Kind) -> Result<()> {
    match content(device).await? {
        Some(found) if found == kind.name() => Ok(()),
        Some(found) => Err(Error::Precondition(format!(
            "the volume holds {found}, not {}: it is left as it is",
            kind.name()
        ))),
        None => make(device, kind).await,
    }
}

async fn make(device: &Path, kind: Kind) -> Result<()> {
    tracing::info!(device = %device.display(), kind = kind.name(), "file system is made");
    match kind {
        // Without the five percent that are kept for root.
        Kind::Ext4 => run("mkfs.ext4", &["-q", "-F", "-m", "0"], device).await,
        Kind::Xfs => run("mkfs.xfs", &["-q"], device).await,
    }
}

/// Returns whether a file system is smaller than its device, as on a copy that was
/// made larger than its source.
pub(crate) fn is_short(device: &Path, kind: Kind, size: u64) -> Result<bool> {
    let read = || -> io::Result<Vec<u8>> {
        let mut beginning = vec![0; BEGINNING];
        File::open(device)?.read_exact(&mut beginning)?;
        Ok(beginning)
    };
    let beginning = read().map_err(Error::file(device))?;
    Ok(kind.size(&beginning).is_some_and(|has| has.saturating_add(REST) < size))
}

/// Grows a file system that is not mounted, where its kind can be. One that is
/// mounted takes a right that not every machine gives.
pub(crate) async fn grow_unmounted(device: &Path, kind: Kind, size: u64) -> Result<()> {
    if kind != Kind::Ext4 || !is_short(device, kind, size)? {
        return Ok(());
    }
    let mut check = command("e2fsck");
    let checked = check.args(["-f", "-p"]).arg(device).output().await;
    let checked = checked.map_err(Error::file("e2fsck"))?;
    if !matches!(checked.status.code(), Some(0 | REPAIRED)) {
        return Err(failed("e2fsck", &checked.stdout));
    }
    run("resize2fs", &[], device).await
}

/// Grows the file system that is mounted there to the size of its device.
pub(crate) async fn grow(kind: &str, device: &Path, mounted: &Path) -> Result<()> {
    match kind {
        "ext4" => run("resize2fs", &[], device).await,
        "xfs" => run("xfs_growfs", &[], mounted).await,
        other => Err(Error::Precondition(format!("{other} cannot be grown"))),
    }
}
