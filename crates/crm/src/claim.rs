//! Claim of a cloudlet's name on a machine. Names of networks and containers
//! follow from the name of the cloudlet: two agents of one name would take each
//! other's.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context, bail};
use selvage_api::edgeproto::CloudletKey;

/// Folder of the claims of this machine.
const FOLDER: &str = "/run/selvage/cloudlets";
/// Network namespace of this process; another one has other networks.
const NAMESPACE: &str = "/proc/self/ns/net";

/// Takes the name of a cloudlet for as long as the file is open. Fails where
/// another process has it, naming that one.
pub(crate) fn take(cloudlet: &CloudletKey, data: &Path) -> anyhow::Result<File> {
    let namespace = fs::metadata(NAMESPACE).context("network namespace")?.ino();
    take_in(Path::new(FOLDER), namespace, cloudlet, data)
}

fn take_in(
    folder: &Path,
    namespace: u64,
    cloudlet: &CloudletKey,
    data: &Path,
) -> anyhow::Result<File> {
    let operator = cloudlet.operator_key.as_ref().map_or("", |operator| &operator.name);
    let name = format!("{operator}/{}", cloudlet.name);
    let path = folder.join(format!("{}-{namespace}", hex::encode(&name)));
    let open = || -> io::Result<File> {
        fs::create_dir_all(folder)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
    };
    let mut file =
        open().with_context(|| format!("claim of cloudlet {name}: {}", path.display()))?;
    match selvage_lock::take(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            bail!(
                "cloudlet {name} runs on this machine already, by {}: stop that one, or give this \
                 one another name (crm.cloudlet)",
                holder.trim()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).context(format!("cloudlet {name}")),
    }
    let holder = format!("process {} with data in {}", std::process::id(), data.display());
    let write = |file: &mut File| -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(holder.as_bytes())
    };
    write(&mut file).with_context(|| path.display().to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::OperatorKey;

    use super::*;

    fn cloudlet(name: &str) -> CloudletKey {
        let operator_key = Some(OperatorKey { name: "op".into() });
        CloudletKey { operator_key, name: name.into() }
    }

    #[test]
    fn a_name_is_for_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let take = |namespace, name: &str, data: &str| {
            take_in(folder.path(), namespace, &cloudlet(name), Path::new(data))
        };
        let held = take(1, "site", "/data/one").unwrap();
        let refused = take(1, "site", "/data/two").unwrap_err().to_string();
        assert!(refused.contains("cloudlet op/site"), "{refused}");
        let holder = format!("process {} with data in /data/one", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        // Another name, and another network, are nobody's concern.
        let _other = take(1, "site2", "/data/two").unwrap();
        let _elsewhere = take(2, "site", "/data/two").unwrap();
        drop(held);
        take(1, "site", "/data/two").unwrap();
    }
}
