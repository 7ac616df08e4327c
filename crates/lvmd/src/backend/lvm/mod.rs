//! Volume groups of LVM.
//!
//! Changes are made by the `lvm` program, which alone knows how. Reading is
//! done here: the metadata lies as text at the head of every physical volume,
//! and the kernel tells which volume has a device. So looking costs no
//! process, and a change from outside is seen by a look at a few sectors.
//! Only to learn which devices belong to LVM, by its own filters, is the
//! program asked: at the start, and when a group appears or changes members.

mod command;
mod fill;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod kernel;
mod label;
mod locate;
mod text;
mod thin;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
};

use command::{Runner, is_no_space};
use fill::Fills;
use group::Metadata;
use locate::Located;
use parking_lot::Mutex;

use super::{Backend, Create, Device, Groups, Ranges, Snapshot};
use crate::{Error, Result, Volume, config::Config};

/// Part of a thick volume that its snapshot gets as room for changes, unless
/// told otherwise.
const CHANGE_ROOM_PART: u64 = 10;

/// The LVM backend.
pub struct Lvm {
    runner: Runner,
    located: Mutex<Located>,
    /// Fill of thin pools when it was last read.
    fills: Mutex<Fills>,
    /// A pool can show one frozen view of its metadata at a time.
    frozen: Mutex<()>,
}

impl Lvm {
    /// Looks for the groups that the configuration names. One that is not
    /// there may come later.
    pub fn open(config: &Config) -> Result<Self> {
        let runner = Runner::new(&config.lvm_command_prefix);
        let located = Mutex::new(Located::new(super::wanted(config)));
        let (fills, frozen) = (Mutex::default(), Mutex::default());
        let this = Self { runner, located, fills, frozen };
        this.uphold();
        this.scan()?;
        Ok(this)
    }

    /// Returns the number of programs that were run so far, but for looks at pools.
    pub fn runs(&self) -> u64 {
        self.runner.runs()
    }

    fn metadata(&self, group: &str) -> Result<Arc<Metadata>> {
        let found = self.located.lock().read(&self.runner)?;
        found.get(group).cloned().ok_or_else(|| Error::GroupNotFound(group.to_owned()))
    }

    fn volume(&self, group: &str, name: &str) -> Result<(Arc<Metadata>, Volume)> {
        let metadata = self.metadata(group)?;
        let volume = metadata.group.volumes.get(name).cloned();
        let volume = volume.ok_or_else(|| Error::VolumeNotFound(name.to_owned()))?;
        Ok((metadata, volume))
    }

    /// Runs a command that takes space; lack of it has an error of its own.
    fn taking_space(&self, group: &str, requested: u64, arguments: &[&str]) -> Result<()> {
        match self.runner.lvm(arguments) {
            Ok(_) => Ok(()),
            Err(error) if is_no_space(&error) => {
                let free = self.metadata(group)?.group.free;
                Err(Error::NoSpace { free, requested })
            }
            Err(error) => Err(error),
        }
    }

    /// A thin volume's pool, and its number in it.
    fn thin_place(&self, group: &str, name: &str) -> Result<Option<(String, u64)>> {
        let (metadata, volume) = self.volume(group, name)?;
        let number = metadata.thin_ids.get(name).copied();
        Ok(volume.pool.zip(number))
    }

    /// Shows LVM's answer about one field of one volume.
    fn ask(&self, field: &str, group: &str, name: &str) -> Result<String> {
        let which = format!("{group}/{name}");
        let options = ["lvs", "--noheadings", "--nosuffix", "--units", "b", "-o", field, &which];
        Ok(self.runner.lvm(&options)?.trim().to_owned())
    }
}

fn with_tags<'a>(arguments: &mut Vec<&'a str>, tags: &'a [String]) {
    for tag in tags {
        arguments.extend(["--addtag", tag.as_str()]);
    }
}

impl Backend for Lvm {
    fn kind(&self) -> &'static str {
        "lvm"
    }

    fn configure(&self, config: &Config) -> Result<()> {
        self.located.lock().want(super::wanted(config));
        Ok(())
    }

    fn scan(&self) -> Result<Groups> {
        let mut located = self.located.lock();
        let found = located.read(&self.runner)?;
        let devices = kernel::devices();
        let fills = self.fills.lock();
        let live = |metadata: &Metadata| {
            let missing = located.missing(metadata);
            Arc::new(crate::Group { missing, ..live(metadata, &devices, &fills) })
        };
        Ok(found.iter().map(|(name, metadata)| (name.clone(), live(metadata))).collect())
    }

    fn doubt(&self) {
        self.located.lock().forget_cached();
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.located.lock().fingerprint().hash(&mut hasher);
        self.fills.lock().percentages().hash(&mut hasher);
        hasher.finish()
    }

    /// Asks how full pools are. The metadata of a group does not tell, and nobody else does
    /// when one fills; where there are none, no program is run.
    fn uphold(&self) {
        let found = self.located.lock().read(&self.runner);
        let fills = match found {
            Ok(found) if found.values().any(|it| !it.group.pools.is_empty()) => {
                Fills::read(&self.runner)
            }
            Ok(_) => Ok(Fills::default()),
            // Whoever looks at the volumes is told.
            Err(_) => return,
        };
        match fills {
            Ok(fills) => *self.fills.lock() = fills,
            Err(error) => tracing::warn!(%error, "how full thin pools are is not known"),
        }
    }

    fn create(&self, create: &Create) -> Result<()> {
        let size = format!("{}b", create.size);
        let pool = create.pool.as_ref().map(|pool| format!("{}/{pool}", create.group));
        let mut arguments = vec!["lvcreate", "-n", &create.name, "-W", "y", "-y"];
        with_tags(&mut arguments, &create.tags);
        match &pool {
            Some(pool) => arguments.extend(["-V", &size, "-T", pool]),
            None => arguments.extend(["-L", &size]),
        }
        arguments.extend(create.options.iter().map(String::as_str));
        if pool.is_none() {
            arguments.push(&create.group);
        }
        self.taking_space(&create.group, create.size, &arguments)
    }

    fn remove(&self, group: &str, name: &str) -> Result<()> {
        self.runner.lvm(&["lvremove", "-f", &format!("{group}/{name}")]).map(|_| ())
    }

    fn resize(&self, group: &str, name: &str, size: u64) -> Result<()> {
        let (size_text, which) = (format!("{size}b"), format!("{group}/{name}"));
        self.taking_space(group, size, &["lvresize", "-L", &size_text, &which])
    }

    fn snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        let (metadata, source) = self.volume(&snapshot.group, &snapshot.source)?;
        let which = format!("{}/{}", snapshot.group, snapshot.source);
        let part = metadata.group.round_up(source.size / CHANGE_ROOM_PART);
        let room = format!("{}b", snapshot.change_room.unwrap_or(part).max(1));
        let mut arguments = vec!["lvcreate", "-s", "-n", &snapshot.name, "-y"];
        with_tags(&mut arguments, &snapshot.tags);
        if snapshot.read_only {
            arguments.extend(["-p", "r"]);
        }
        match source.pool {
            Some(_) => arguments.extend(["-k", "n"]),
            None => arguments.extend(["-L", &room]),
        }
        arguments.push(&which);
        self.taking_space(&snapshot.group, snapshot.change_room.unwrap_or(part), &arguments)
    }

    fn snapshots_are_volumes(&self, group: &str, name: &str) -> Result<bool> {
        Ok(self.volume(group, name)?.1.pool.is_some())
    }

    fn room_in_pool(&self, group: &str, pool: &str) -> Result<u64> {
        let metadata = self.metadata(group)?;
        let size = metadata.group.pools.get(pool).map_or(0, |pool| pool.size);
        let said = self.ask("data_percent", group, pool)?;
        let wrong = || Error::Refused(format!("lvs tells no percentage of {group}/{pool}"));
        let used: f64 = said.trim().parse().map_err(|_| wrong())?;
        Ok((size as f64 * (100.0 - used).clamp(0.0, 100.0) / 100.0) as u64)
    }

    fn counts_changes(&self) -> bool {
        true
    }

    fn change_room_used(&self, group: &str, name: &str) -> Result<Option<f64>> {
        let (_, volume) = self.volume(group, name)?;
        if volume.change_room.is_none() {
            return Ok(None);
        }
        let said = self.ask("lv_attr,data_percent", group, name)?;
        let mut fields = said.split_whitespace();
        let lost = fields.next().and_then(|attributes| attributes.chars().nth(4)) == Some('I');
        if lost {
            return Ok(Some(100.0));
        }
        let wrong = || Error::Refused(format!("lvs tells no percentage of {group}/{name}"));
        fields.next().and_then(|used| used.parse().ok()).map(Some).ok_or_else(wrong)
    }

    fn extend_change_room(&self, group: &str, name: &str, size: u64) -> Result<()> {
        let (size_text, which) = (format!("{size}b"), format!("{group}/{name}"));
        self.taking_space(group, size, &["lvextend", "-L", &size_text, &which])
    }

    fn tag(&self, group: &str, name: &str, add: &[String], remove: &[String]) -> Result<()> {
        let which = format!("{group}/{name}");
        let mut arguments = vec!["lvchange"];
        with_tags(&mut arguments, add);
        for tag in remove {
            arguments.extend(["--deltag", tag.as_str()]);
        }
        arguments.push(&which);
        self.runner.lvm(&arguments).map(|_| ())
    }

    fn open(&self, group: &str, name: &str, write: bool) -> Result<Device> {
        let (_, volume) = self.volume(group, name)?;
        Device::open(&volume.path, volume.size, write, volume.read_only)
    }

    fn allocated(&self, group: &str, name: &str) -> Result<Option<Ranges>> {
        let Some((pool, number)) = self.thin_place(group, name)? else { return Ok(None) };
        let size = flush(&self.open(group, name, false)?)?;
        let _one = self.frozen.lock();
        thin::View::open(&self.runner, group, &pool)?.mapped(number, size).map(Some)
    }

    fn changed(&self, group: &str, older: &str, newer: &str) -> Result<Option<Ranges>> {
        let places = (self.thin_place(group, older)?, self.thin_place(group, newer)?);
        let (Some((pool, before)), Some((other, after))) = places else { return Ok(None) };
        if pool != other {
            return Ok(None);
        }
        let size = flush(&self.open(group, newer, false)?)?;
        let _one = self.frozen.lock();
        thin::View::open(&self.runner, group, &pool)?.changed(before, after, size).map(Some)
    }
}

/// Writes what is cached to the pool's map; returns the size of the volume.
fn flush(device: &Device) -> Result<u64> {
    device.sync().map_err(Error::file(Path::new("flush")))?;
    Ok(device.size())
}

/// A group with the devices that its volumes have now, and how full its pools are.
fn live(metadata: &Metadata, devices: &HashMap<String, (u32, u32)>, fills: &Fills) -> crate::Group {
    let mut group = metadata.group.clone();
    for (name, pool) in &mut group.pools {
        let fill = fills.of(&group.name, name);
        pool.used = fill.map(|fill| fill.used(pool.size));
        pool.metadata_used = fill.map(|fill| fill.metadata());
    }
    for volume in group.volumes.values_mut() {
        let id = metadata.kernel_ids.get(&volume.name);
        if let Some((major, minor)) = id.and_then(|id| devices.get(id)) {
            (volume.major, volume.minor) = (*major, *minor);
        }
    }
    group
}
