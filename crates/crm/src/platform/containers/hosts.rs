//! Names that containers know without a name server: their own, and those of
//! the others in their cluster. All containers of a cluster read one file.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Write},
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use crate::{Result, error::During};

/// Names of every machine.
const LOCAL: &str = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";

/// A container that others find.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    address: Ipv4Addr,
    /// Name of its app, once it serves.
    app: String,
}

/// Containers of a cluster by name, which is also the name of the host.
type Members = BTreeMap<String, Member>;

/// Files with the names of each cluster.
pub(super) struct Hosts {
    folder: PathBuf,
    clusters: Mutex<HashMap<String, Members>>,
}

impl Hosts {
    pub(super) fn new(data: &Path) -> Self {
        Self { folder: data.join("hosts.d"), clusters: Mutex::default() }
    }

    /// Enters a container; the file that it is to read. Those who ask for its
    /// app find it when it [`serves`](Self::serves).
    pub(super) fn enter(&self, cluster: &str, container: &str, at: Ipv4Addr) -> Result<PathBuf> {
        self.change(cluster, |members| {
            let app = String::new();
            let known = members.get(container).filter(|known| known.address == at);
            if known.is_none() {
                members.insert(container.to_owned(), Member { address: at, app });
            }
        })?;
        Ok(self.file(cluster))
    }

    /// Lets the others of its cluster find a container by its app.
    pub(super) fn serves(&self, container: &str, app: &str) -> Result<()> {
        let Some(cluster) = self.cluster_of(container) else { return Ok(()) };
        self.change(&cluster, |members| {
            if let Some(member) = members.get_mut(container) {
                app.clone_into(&mut member.app);
            }
        })
    }

    /// Takes a container out, whichever cluster it was in.
    pub(super) fn leave(&self, container: &str) -> Result<()> {
        let Some(cluster) = self.cluster_of(container) else { return Ok(()) };
        self.change(&cluster, |members| {
            members.remove(container);
        })
    }

    fn cluster_of(&self, container: &str) -> Option<String> {
        let clusters = self.clusters.lock();
        let mut known = clusters.iter();
        let found = known.find(|(_, members)| members.contains_key(container));
        found.map(|(cluster, _)| cluster.clone())
    }

    /// Removes the file of a cluster.
    pub(super) fn remove(&self, cluster: &str) -> Result<()> {
        self.clusters.lock().remove(cluster);
        match fs::remove_file(self.file(cluster)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .during("removing the names of a cluster")
    }

    fn file(&self, cluster: &str) -> PathBuf {
        self.folder.join(cluster)
    }

    /// Changes the members of a cluster. What a former process wrote counts
    /// until it is corrected: the containers run on.
    fn change(&self, cluster: &str, apply: impl FnOnce(&mut Members)) -> Result<()> {
        let mut clusters = self.clusters.lock();
        let file = self.file(cluster);
        let (members, before) = match clusters.remove(cluster) {
            Some(members) => (members.clone(), Some(members)),
            None => (read(&fs::read_to_string(&file).unwrap_or_default()), None),
        };
        let mut changed = members;
        apply(&mut changed);
        let written = match before.as_ref() == Some(&changed) {
            true => Ok(()),
            false => self.write(&file, &text(&changed)),
        };
        // If it could not be written, the next look tries again.
        match (&written, before) {
            (Ok(()), _) => drop(clusters.insert(cluster.to_owned(), changed)),
            (Err(_), Some(before)) => drop(clusters.insert(cluster.to_owned(), before)),
            (Err(_), None) => {}
        }
        written.during("writing the names that instances know")
    }

    /// Writes the file that is there: containers have it by its inode.
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)
    }
}

fn text(members: &Members) -> String {
    let mut text = LOCAL.to_owned();
    for (container, Member { address, app }) in members {
        let separator = if app.is_empty() { "" } else { " " };
        text += &format!("{address} {container}{separator}{app}\n");
    }
    text
}

fn read(text: &str) -> Members {
    let member = |line: &str| {
        let mut words = line.split(' ');
        let address: Ipv4Addr =
            words.next()?.parse().ok().filter(|it: &Ipv4Addr| !it.is_loopback())?;
        let container = words.next()?.to_owned();
        Some((container, Member { address, app: words.next().unwrap_or_default().to_owned() }))
    };
    text.lines().filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const WEB: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 2);
    const DATABASE: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 3);

    #[test]
    fn those_of_a_cluster_know_each_other_by_name() {
        let data = tempfile::tempdir().unwrap();
        let hosts = Hosts::new(data.path());
        let file = hosts.enter("one", "web-1-abc", WEB).unwrap();
        let inode = file.metadata().unwrap().ino();
        let seen = || fs::read_to_string(&file).unwrap().replace(LOCAL, "");
        assert_eq!(seen(), "10.8.1.2 web-1-abc\n");
        hosts.serves("web-1-abc", "web").unwrap();
        hosts.enter("one", "database-1-def", DATABASE).unwrap();
        assert_eq!(seen(), "10.8.1.3 database-1-def\n10.8.1.2 web-1-abc web\n");
        hosts.enter("one", "web-1-abc", WEB).unwrap();
        assert!(seen().contains("web-1-abc web\n"), "it goes on to serve");
        hosts.leave("database-1-def").unwrap();
        hosts.leave("nobody").unwrap();
        assert_eq!(seen(), "10.8.1.2 web-1-abc web\n");
        assert_eq!(file.metadata().unwrap().ino(), inode, "containers have this one");
        hosts.enter("two", "other-1-ghi", WEB).unwrap();
        assert!(!seen().contains("other"), "another cluster");
        hosts.remove("one").unwrap();
        hosts.remove("one").unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn what_a_former_process_wrote_counts() {
        let data = tempfile::tempdir().unwrap();
        let before = Hosts::new(data.path());
        before.enter("one", "web-1-abc", WEB).unwrap();
        before.serves("web-1-abc", "web").unwrap();
        let hosts = Hosts::new(data.path());
        let file = hosts.enter("one", "database-1-def", DATABASE).unwrap();
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with(LOCAL) && text.contains("10.8.1.2 web-1-abc web\n"), "{text}");
        assert_eq!(text.matches("localhost").count(), 3, "{text}");
    }
}
