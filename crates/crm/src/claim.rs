//! Claim of a cloudlet's name on a machine. Names of networks and containers
//! follow from the name of the cloudlet: two agents of one name would take each
//! other's. A claim stays behind when its process ends, as what that has made
//! does: whoever comes next learns from it where the data was.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::{footprint::Footprint, platform::network::Range};

/// Folder of the claims of this machine.
const FOLDER: &str = "/run/selvage/cloudlets";
/// Network namespace of this process; another one has other networks.
const NAMESPACE: &str = "/proc/self/ns/net";

/// Content of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) process: u32,
    pub(crate) data: PathBuf,
    pub(crate) cloudlet: Footprint,
}

/// Claims of one network namespace.
pub(crate) struct Claims {
    folder: PathBuf,
    namespace: u64,
}

/// Name of a cloudlet that this process has for as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    _file: File,
    path: PathBuf,
    /// Holder before this one, if it left something.
    pub(crate) before: Option<Holder>,
}

impl Claim {
    /// Removes the claim: nothing of the cloudlet is left.
    pub(crate) fn give_up(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl Claims {
    /// Claims of the network that this process is in.
    pub(crate) fn here() -> anyhow::Result<Self> {
        let namespace = fs::metadata(NAMESPACE).context("network namespace")?.ino();
        Ok(Self { folder: FOLDER.into(), namespace })
    }

    fn path(&self, cloudlet: &Footprint) -> PathBuf {
        self.folder.join(format!("{}-{}", hex::encode(cloudlet.to_string()), self.namespace))
    }

    /// Takes the name of a cloudlet. Fails where another process has it, naming
    /// that one.
    pub(crate) fn take(&self, cloudlet: &Footprint, data: &Path) -> anyhow::Result<Claim> {
        let path = self.path(cloudlet);
        let open = || -> io::Result<File> {
            fs::create_dir_all(&self.folder)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
        };
        let mut file =
            open().with_context(|| format!("claim of cloudlet {cloudlet}: {}", path.display()))?;
        let locked = selvage_lock::take(&file);
        let before = read(&mut file);
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = before.map_or_else(String::new, |holder| {
                    format!(
                        ", by process {} with data in {}",
                        holder.process,
                        holder.data.display()
                    )
                });
                bail!(
                    "cloudlet {cloudlet} runs on this machine already{holder}: stop that one, or \
                     give this one another name (crm.cloudlet)"
                );
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).context(format!("cloudlet {cloudlet}"));
            }
        }
        let holder = Holder {
            process: std::process::id(),
            data: data.to_owned(),
            cloudlet: cloudlet.clone(),
        };
        write(&mut file, &holder).with_context(|| path.display().to_string())?;
        Ok(Claim { _file: file, path, before })
    }

    /// Returns all claims, with whether a process has each now.
    pub(crate) fn all(&self) -> anyhow::Result<Vec<(Holder, bool)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.folder.display().to_string())?,
        };
        let end = format!("-{}", self.namespace);
        let mut found = Vec::new();
        for entry in entries.flatten() {
            if !entry.file_name().to_string_lossy().ends_with(&end) {
                continue;
            }
            let Ok(mut file) = File::open(entry.path()) else { continue };
            let held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
            found.extend(read(&mut file).map(|holder| (holder, held)));
        }
        Ok(found)
    }

    /// Fails where another cloudlet that runs here has addresses of this range.
    pub(crate) fn check_range(&self, cloudlet: &Footprint, range: Range) -> anyhow::Result<()> {
        for (holder, held) in self.all()? {
            let other = &holder.cloudlet;
            let same = (&other.operator, &other.name) == (&cloudlet.operator, &cloudlet.name);
            let Ok(theirs) = Range::parse(&other.network_scheme) else { continue };
            if held && !same && range.overlaps(theirs) {
                bail!(
                    "network_scheme: {range} meets {theirs} of cloudlet {other}, which runs on \
                     this machine: give one of them another range in its crm.site"
                );
            }
        }
        Ok(())
    }
}

fn read(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write(file: &mut File, holder: &Holder) -> io::Result<()> {
    let text = serde_json::to_vec(holder)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Kind;

    fn cloudlet(name: &str, range: &str) -> Footprint {
        Footprint {
            operator: "op".into(),
            name: name.into(),
            kind: Kind::Containers,
            network_scheme: range.into(),
            containerd: None,
        }
    }

    fn claims(folder: &Path, namespace: u64) -> Claims {
        Claims { folder: folder.to_owned(), namespace }
    }

    #[test]
    fn a_name_is_for_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (claims(folder.path(), 1), claims(folder.path(), 2));
        let site = cloudlet("site", "10.1.0.0/16");
        let held = here.take(&site, Path::new("/data/one")).unwrap();
        assert_eq!(held.before, None);
        let refused = here.take(&site, Path::new("/data/two")).unwrap_err().to_string();
        assert!(refused.contains("cloudlet op/site"), "{refused}");
        let holder = format!("process {} with data in /data/one", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        // Another name, and another network, are nobody's concern.
        let _other = here.take(&cloudlet("site2", "10.2.0.0/16"), Path::new("/data/two")).unwrap();
        let _same = elsewhere.take(&site, Path::new("/data/two")).unwrap();
        drop(held);
        let next = here.take(&site, Path::new("/data/two")).unwrap();
        assert_eq!(next.before.as_ref().unwrap().data, Path::new("/data/one"));
        next.give_up().unwrap();
        let found = here.all().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0.cloudlet.name.as_str(), found[0].1), ("site2", true));
    }

    #[test]
    fn ranges_of_cloudlets_that_run_here_must_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let here = claims(folder.path(), 1);
        let held = here.take(&cloudlet("one", "10.1.0.0/16"), Path::new("/data/one")).unwrap();
        let check = |name: &str, range: &str| {
            here.check_range(&cloudlet(name, range), Range::parse(range).unwrap())
        };
        let refused = check("two", "10.1.7.0/24").unwrap_err().to_string();
        assert!(refused.starts_with("network_scheme: 10.1.7.0/24 meets 10.1.0.0/16"), "{refused}");
        assert!(refused.contains("cloudlet op/one"), "{refused}");
        check("two", "10.2.0.0/16").unwrap();
        check("one", "10.1.0.0/16").unwrap();
        drop(held);
        check("two", "10.1.7.0/24").unwrap();
    }
}
