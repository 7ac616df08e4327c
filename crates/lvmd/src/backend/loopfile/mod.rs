//! Volume groups of image files, for machines without LVM.
//!
//! A group is a folder with a limit to what its volumes may hold together. A
//! volume is an image file and a record beside it; the record is what makes
//! it exist, and is put in place in one step. A thick volume has its space
//! reserved, a thin one is a sparse file that counts against its pool. Where
//! the system lets us, a loop device makes a block device of the image.
//!
//! Whatever instant the process is killed at: an image that is not finished is
//! removed at the next start, one longer than its record says is cut, and
//! loop devices are found again or let go.

mod attach;
mod copy;
mod freeze;
mod image;
mod record;
mod shared;
mod trace;
mod writes;

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File, TryLockError},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use attach::Attachments;
use copy::{Copied, Original};
use parking_lot::Mutex;
use record::{Record, Store};
use writes::Watches;

use super::{Backend, CopyProgress, Create, Device, Groups, Guarded, Ranges, Snapshot};
use crate::{
    Error, Group, Pool, Result, Volume,
    config::{Config, LoopGroup},
    model::is_temporary,
    private,
};

/// Sizes of volumes are multiples of it, as with LVM.
const EXTENT: u64 = 4 << 20;
const GIB: u64 = 1 << 30;
const LOCK: &str = "lock";
/// Watchers are told of the disk that it is fuller in steps of this.
const DISK_STEP: u64 = 256 << 20;

/// The loop backend.
pub struct LoopFiles {
    groups: Mutex<BTreeMap<String, Arc<Store>>>,
    directory: PathBuf,
    attachments: Attachments,
    /// Seconds for which an image is copied again that is written to.
    copy_timeout: AtomicU64,
    watches: Watches,
    /// Held as long as the process lives: two must not work in one folder.
    _lock: File,
}

impl LoopFiles {
    /// Opens the folder, and puts right what a sudden end left behind.
    pub fn open(config: &Config) -> Result<Self> {
        let directory = config.loop_files.directory.clone();
        private::make_folder(&directory)?;
        let directory = directory.canonicalize().map_err(Error::file(&directory))?;
        let lock = lock(&directory)?;
        let this = Self {
            groups: Mutex::default(),
            attachments: Attachments::new(&directory),
            directory,
            copy_timeout: AtomicU64::default(),
            watches: Watches::default(),
            _lock: lock,
        };
        trace::remove_left_behind();
        this.configure(config)?;
        Ok(this)
    }

    /// The image of a volume, to be copied or watched.
    fn original(&self, store: &Store, name: &str) -> Original {
        let path = store.image(name);
        Original {
            device: self.attachments.of(&path),
            path,
            folder: store.folder().to_owned(),
            watches: self.watches.clone(),
            progress: CopyProgress::default(),
        }
    }

    fn store(&self, group: &str) -> Result<Arc<Store>> {
        let groups = self.groups.lock();
        groups.get(group).cloned().ok_or_else(|| Error::GroupNotFound(group.to_owned()))
    }

    fn volume(&self, group: &str, name: &str) -> Result<(Arc<Store>, Record)> {
        let store = self.store(group)?;
        let record = store.read(name)?.ok_or_else(|| Error::VolumeNotFound(name.to_owned()))?;
        Ok((store, record))
    }

    /// Attaches what belongs to a group and lets go what does not.
    fn put_right(&self, store: &Store) -> Result<()> {
        freeze::thaw_left_behind(store.folder());
        private::repair(store.folder())?;
        store.clean()?;
        let records = store.all()?;
        let images: Vec<PathBuf> = records.iter().map(|record| store.image(&record.name)).collect();
        self.attachments.detach_others(store.folder(), &images);
        for (record, image) in records.iter().zip(&images) {
            let reserved = store.reserves(record);
            self.attachments.attach(image, record.read_only, reserved);
            if reserved {
                image::reserve_again(image, record.size);
            }
        }
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let file = private::create(&path).map_err(Error::file(&path))?;
    let source = match selvage_lock::take(&file) {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            io::Error::new(io::ErrorKind::WouldBlock, "another process has these volumes")
        }
        Err(TryLockError::Error(error)) => error,
    };
    Err(Error::File { path, source })
}

impl Backend for LoopFiles {
    fn kind(&self) -> &'static str {
        "loop"
    }

    fn configure(&self, config: &Config) -> Result<()> {
        self.copy_timeout.store(config.loop_files.copy_timeout, Ordering::Relaxed);
        let mut groups = BTreeMap::new();
        let mut declared = config.loop_files.groups.clone();
        if declared.is_empty() {
            let group = |name| LoopGroup { name, ..LoopGroup::default() };
            declared = super::wanted(config).into_iter().map(group).collect();
        }
        let known = self.groups.lock().clone();
        if known.is_empty() {
            let ours: Vec<&str> =
                declared.iter().map(|group| group.name.as_str()).chain([LOCK]).collect();
            private::repair_directory(&self.directory, &ours)?;
        }
        for group in &declared {
            let store = Store::open(&self.directory.join(&group.name), group)?;
            if !known.contains_key(&group.name) {
                self.put_right(&store)?;
            }
            groups.insert(group.name.clone(), Arc::new(store));
        }
        *self.groups.lock() = groups;
        Ok(())
    }

    fn scan(&self) -> Result<Groups> {
        let stores: Vec<Arc<Store>> = self.groups.lock().values().cloned().collect();
        let devices = self.attachments.all();
        let mut groups = Groups::new();
        for store in stores {
            // A folder that is gone is a group that is gone.
            if !store.folder().is_dir() {
                continue;
            }
            let group = describe(&store, &devices)?;
            groups.insert(group.name.clone(), Arc::new(group));
        }
        Ok(groups)
    }

    fn strays(&self) -> Vec<(String, String)> {
        let stores: Vec<Arc<Store>> = self.groups.lock().values().cloned().collect();
        let strays = stores.iter().flat_map(|store| {
            let names = store.strays().unwrap_or_default().into_iter();
            names.map(|name| (store.name().to_owned(), name))
        });
        strays.collect()
    }

    fn uphold(&self) {
        let stores: Vec<Arc<Store>> = self.groups.lock().values().cloned().collect();
        for store in stores {
            let records = store.all().unwrap_or_default().into_iter();
            for record in records.filter(|record| store.reserves(record)) {
                image::reserve_again(&store.image(&record.name), record.size);
            }
        }
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for store in self.groups.lock().values() {
            // What is left on the disk counts where it is less than promised.
            let free = image::free_on_disk(store.folder());
            (free < store.size()).then_some(free / DISK_STEP).hash(&mut hasher);
            let seen = fs::metadata(store.folder());
            let seen = seen.map(|seen| (seen.mtime(), seen.mtime_nsec(), seen.ino()));
            seen.ok().hash(&mut hasher);
        }
        hasher.finish()
    }

    fn create(&self, create: &Create) -> Result<()> {
        let store = self.store(&create.group)?;
        let mut record = Record {
            name: create.name.clone(),
            size: create.size.div_ceil(EXTENT).saturating_mul(EXTENT),
            tags: create.tags.clone(),
            pool: create.pool.clone(),
            created: record::now(),
            ..Record::default()
        };
        store.add(&mut record, |record, image| {
            image::make(image, record.size, store.reserves(record))
        })?;
        self.attachments.attach(&store.image(&record.name), false, store.reserves(&record));
        Ok(())
    }

    fn remove(&self, group: &str, name: &str) -> Result<()> {
        let (store, _) = self.volume(group, name)?;
        let image = store.image(name);
        self.attachments.check_unused(&image, &format!("{group}/{name}"))?;
        self.attachments.detach(&image)?;
        store.remove(name)
    }

    fn resize(&self, group: &str, name: &str, size: u64) -> Result<()> {
        let (store, mut record) = self.volume(group, name)?;
        record.size = size.div_ceil(EXTENT).saturating_mul(EXTENT);
        let image = store.image(name);
        image::grow(&image, record.size, store.reserves(&record))?;
        store.write(&record)?;
        self.attachments.grown(&image)
    }

    fn snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        let (store, source) = self.volume(&snapshot.group, &snapshot.source)?;
        let mut record = Record {
            name: snapshot.name.clone(),
            size: source.size,
            tags: snapshot.tags.clone(),
            pool: source.pool.clone(),
            origin: Some(source.name.clone()),
            read_only: snapshot.read_only,
            created: record::now(),
            ..Record::default()
        };
        let mut from = self.original(&store, &source.name);
        from.progress = snapshot.progress.clone();
        let timeout = Duration::from_secs(self.copy_timeout.load(Ordering::Relaxed));
        store.add(&mut record, |record, to| {
            record.shares_blocks = from.copy_to(to, timeout)? == Copied::Shared;
            if store.reserves(record) { image::reserve(to, record.size) } else { Ok(()) }
        })?;
        let image = store.image(&record.name);
        self.attachments.attach(&image, record.read_only, store.reserves(&record));
        Ok(())
    }

    fn room_in_pool(&self, group: &str, _: &str) -> Result<u64> {
        Ok(image::free_on_disk(self.store(group)?.folder()))
    }

    fn guard(&self, group: &str, name: &str) -> Result<Option<Guarded>> {
        let (store, record) = self.volume(group, name)?;
        self.original(&store, name).guard(record.size).map(Some)
    }

    fn snapshots_are_volumes(&self, _: &str, _: &str) -> Result<bool> {
        Ok(true)
    }

    fn change_room_used(&self, _: &str, _: &str) -> Result<Option<f64>> {
        Ok(None)
    }

    fn extend_change_room(&self, _: &str, _: &str, _: u64) -> Result<()> {
        Ok(())
    }

    fn tag(&self, group: &str, name: &str, add: &[String], remove: &[String]) -> Result<()> {
        let (store, mut record) = self.volume(group, name)?;
        record.tags.retain(|tag| !remove.contains(tag));
        record.tags.extend(add.iter().cloned());
        store.write(&record)
    }

    fn open(&self, group: &str, name: &str, write: bool) -> Result<Device> {
        let (store, record) = self.volume(group, name)?;
        let image = store.image(name);
        // Two caches of one content would differ: where there is a device,
        // everybody goes through it.
        let path = self.attachments.of(&image).map_or(image, |device| device.path);
        let device = Device::open(&path, record.size, write, record.read_only)?;
        Ok(if store.reserves(&record) { device.reserved() } else { device })
    }

    fn allocated(&self, group: &str, name: &str) -> Result<Option<Ranges>> {
        let (store, record) = self.volume(group, name)?;
        let image = store.image(name);
        if let Some(device) = self.attachments.of(&image) {
            attach::flush(&device)?;
        }
        image::data(&image, record.size).map(Some)
    }

    fn changed(&self, group: &str, older: &str, newer: &str) -> Result<Option<Ranges>> {
        let (store, old) = self.volume(group, older)?;
        let (_, new) = self.volume(group, newer)?;
        let is_still = |record: &Record| record.read_only && record.shares_blocks;
        if !is_still(&old) || !is_still(&new) || old.size != new.size {
            return Ok(None);
        }
        shared::changed(&store.image(older), &store.image(newer), new.size)
    }
}

fn describe(
    store: &Store,
    devices: &BTreeMap<PathBuf, selvage_memory::LoopDevice>,
) -> Result<Group> {
    let mut pools: BTreeMap<String, Pool> = BTreeMap::new();
    for (name, size) in store.pools() {
        pools.insert(name, Pool { size, used: Some(0), ..Pool::default() });
    }
    let mut used: u64 = pools.values().map(|pool| pool.size).sum();
    // Promised, and not taken from the disk yet.
    let mut outstanding = 0;
    let mut volumes = BTreeMap::new();
    let records = store.all()?;
    let sharing = sharing(&records);
    for record in records {
        let image = store.image(&record.name);
        // A snapshot that a job reads promises nothing to anybody, and takes what no
        // other has.
        let is_temporary = is_temporary(&record.tags, record.read_only);
        // Blocks that another has too are written to a new place, and are no reserve.
        let is_owed = record.pool.is_none() && !record.read_only && sharing.contains(&record.name);
        let alone = (is_temporary || is_owed).then(|| shared::alone(&image)).flatten();
        let held = alone.unwrap_or_else(|| image::held(&image));
        let promised = if is_temporary { 0 } else { record.size };
        match record.pool.as_ref().and_then(|pool| pools.get_mut(pool)) {
            Some(pool) => {
                pool.promised += promised;
                pool.used = pool.used.map(|used| used + held);
            }
            None => {
                used += promised;
                outstanding += promised.saturating_sub(held);
            }
        }
        let device = devices.get(&image);
        volumes.insert(record.name.clone(), as_volume(record, image, device));
    }
    let size = store.size();
    let name = store.name().to_owned();
    let in_pools = pools.values().map(|pool| pool.size.saturating_sub(pool.used.unwrap_or(0)));
    outstanding += in_pools.sum::<u64>();
    let on_disk = image::free_on_disk(store.folder()).saturating_sub(outstanding);
    let free = size.saturating_sub(used).min(on_disk / EXTENT * EXTENT);
    Ok(Group { name, size, free, extent: EXTENT, missing: 0, volumes, pools })
}

/// Names of volumes that may have blocks in common with others.
fn sharing(records: &[Record]) -> HashSet<String> {
    let copies = records.iter().filter(|record| record.shares_blocks);
    copies.flat_map(|copy| [Some(copy.name.clone()), copy.origin.clone()]).flatten().collect()
}

fn as_volume(
    record: Record,
    image: PathBuf,
    device: Option<&selvage_memory::LoopDevice>,
) -> Volume {
    let mut tags = record.tags;
    tags.sort();
    tags.dedup();
    Volume {
        name: record.name,
        id: if record.created == 0 { String::new() } else { format!("{:x}", record.created) },
        size: record.size,
        tags,
        major: device.map_or(0, |device| device.major),
        minor: device.map_or(0, |device| device.minor),
        path: device.map_or(image, |device| device.path.clone()),
        pool: record.pool,
        origin: record.origin,
        change_room: None,
        read_only: record.read_only,
        created: record.created / 1_000_000_000,
    }
}
