//! Which devices the groups are on, and the metadata read from them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    command::Runner,
    group::{self, Metadata},
    kernel,
    label::{self, TextLocation},
};
use crate::{Error, Result};

/// A text that is being written while it is read is read again.
const ATTEMPTS: u32 = 5;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

type GroupMetadata = BTreeMap<String, Arc<Metadata>>;

/// Known positions of groups and devices.
pub(super) struct Located {
    wanted: Vec<String>,
    devices: Vec<PathBuf>,
    /// Ids of the physical volumes among them.
    members: HashSet<String>,
    /// Digest of all candidates when LVM was last asked.
    asked_at: Option<u64>,
    /// Texts that were read before.
    parsed: HashMap<TextLocation, Arc<Metadata>>,
}

impl Located {
    pub(super) fn new(wanted: Vec<String>) -> Self {
        Self {
            wanted,
            devices: Vec::new(),
            members: HashSet::new(),
            asked_at: None,
            parsed: HashMap::new(),
        }
    }

    pub(super) fn want(&mut self, wanted: Vec<String>) {
        self.wanted = wanted;
    }

    /// The groups as they are now. LVM is asked where they are only if one is
    /// missing or not whole, and only if devices changed since it was asked.
    pub(super) fn read(&mut self, runner: &Runner) -> Result<GroupMetadata> {
        let found = self.read_known()?;
        if self.is_whole(&found) {
            return Ok(found);
        }
        if self.asked_at == Some(self.look_of_others()) {
            return Ok(found);
        }
        self.devices = ask(runner)?;
        self.asked_at = Some(self.look_of_others());
        self.read_known()
    }

    /// Makes sure that the disks themselves are read next: what is in memory
    /// says nothing of a disk that has failed.
    pub(super) fn forget_cached(&self) {
        for device in self.devices.iter().filter_map(|path| File::open(path).ok()) {
            // Without it, failures are seen later, and nothing else is lost.
            let _ = rustix::fs::fadvise(&device, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Returns the number of devices of a group that were not there when it was read.
    pub(super) fn missing(&self, metadata: &Metadata) -> usize {
        metadata.members.iter().filter(|id| !self.members.contains(*id)).count()
    }

    fn is_whole(&self, found: &GroupMetadata) -> bool {
        let complete =
            |name: &String| found.get(name).is_some_and(|metadata| self.missing(metadata) == 0);
        self.asked_at.is_some() && self.wanted.iter().all(complete)
    }

    fn read_known(&mut self) -> Result<GroupMetadata> {
        let mut attempt = 0;
        loop {
            match self.try_read() {
                Err(_) if attempt + 1 < ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(BETWEEN_ATTEMPTS);
                }
                result => return result,
            }
        }
    }

    fn try_read(&mut self) -> Result<GroupMetadata> {
        let mut found = GroupMetadata::new();
        let mut parsed = HashMap::new();
        self.members.clear();
        for path in &self.devices {
            // A device that is gone is a member that is missing.
            let Ok(device) = File::open(path) else { continue };
            let Ok(Some(head)) = label::head(&device) else { continue };
            self.members.insert(head.id);
            for area in head.areas {
                let known = |location: &TextLocation| {
                    self.parsed.get(location).or_else(|| parsed.get(location))
                };
                let Some((location, metadata)) = read_area(path, &device, area, known)? else {
                    continue;
                };
                parsed.insert(location, Arc::clone(&metadata));
                let newest = found.entry(metadata.group.name.clone());
                let newest = newest.or_insert_with(|| Arc::clone(&metadata));
                if newest.sequence < metadata.sequence {
                    *newest = metadata;
                }
            }
        }
        self.parsed = parsed;
        found.retain(|name, _| self.wanted.contains(name));
        Ok(found)
    }

    /// Returns a digest of the devices that LVM did not name. On those that it did,
    /// groups are found without asking.
    fn look_of_others(&self) -> u64 {
        let known: HashSet<PathBuf> =
            self.devices.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let mut hasher = DefaultHasher::new();
        for path in kernel::candidates().into_iter().filter(|path| !known.contains(path)) {
            if let Some(look) = look_of(&path) {
                (path, look).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Changes when a text, a device or, if one is missed, any candidate does.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut groups = HashSet::new();
        for path in &self.devices {
            look_of(path).hash(&mut hasher);
        }
        for metadata in self.parsed.values() {
            groups.insert(&metadata.group.name);
        }
        kernel::mapped().hash(&mut hasher);
        let incomplete = self.parsed.values().any(|metadata| self.missing(metadata) > 0);
        if incomplete || self.wanted.iter().any(|name| !groups.contains(name)) {
            self.look_of_others().hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// The text of one area. None if it holds none, or if the disk has failed:
/// others may have the same.
fn read_area<'a>(
    path: &Path,
    device: &File,
    area: (u64, u64),
    known: impl FnOnce(&TextLocation) -> Option<&'a Arc<Metadata>>,
) -> Result<Option<(TextLocation, Arc<Metadata>)>> {
    let read = || {
        let Some(location) = label::locate_text(device, area).map_err(Error::file(path))? else {
            return Ok(None);
        };
        let metadata = match known(&location) {
            Some(known) => Arc::clone(known),
            None => read_at(path, device, &location)?,
        };
        Ok(Some((location, metadata)))
    };
    match read() {
        Err(Error::File { source, .. }) if source.kind() != io::ErrorKind::InvalidData => Ok(None),
        read => read,
    }
}

fn read_at(path: &Path, device: &File, location: &TextLocation) -> Result<Arc<Metadata>> {
    let text = label::text(device, location).map_err(Error::file(path))?;
    let malformed = |what| Error::Malformed { path: path.to_owned(), what };
    group::read(&text).map(Arc::new).map_err(malformed)
}

/// Returns a digest of the head of a device and those of its areas.
fn look_of(path: &Path) -> Option<u64> {
    let look = || -> io::Result<Option<u64>> {
        let device = File::open(path)?;
        let Some(head) = label::head(&device)? else { return Ok(None) };
        let mut hasher = DefaultHasher::new();
        head.id.hash(&mut hasher);
        for area in head.areas {
            label::locate_text(&device, area).ok().hash(&mut hasher);
        }
        Ok(Some(hasher.finish()))
    };
    look().ok().flatten()
}

/// Asks LVM which devices are its physical volumes, by its own filters.
fn ask(runner: &Runner) -> Result<Vec<PathBuf>> {
    let text = runner.lvm(&["pvs", "--reportformat", "json", "-o", "pv_name"])?;
    let report: Value = serde_json::from_str(&text)
        .map_err(|error| Error::Refused(format!("pvs does not answer in JSON: {error}")))?;
    let reports = report["report"].as_array().into_iter().flatten();
    let rows = reports.flat_map(|report| report["pv"].as_array().into_iter().flatten());
    let names = rows.filter_map(|row| row["pv_name"].as_str());
    Ok(names.filter(|name| name.starts_with('/')).map(PathBuf::from).collect())
}
