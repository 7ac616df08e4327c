//! Notices writes to images that are read meanwhile.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::fs::{Timespec, Timestamps};
use selvage_memory::LoopDevice;

use super::attach;
use crate::{Error, Result};

/// The time of modification of an image that was not written to.
const LONG_GONE: i64 = 1;

type Inode = (u64, u64);

/// All watches of images. Clones are the same ones.
#[derive(Default, Clone)]
pub(super) struct Watches(Arc<Mutex<HashMap<Inode, Vec<Weak<AtomicBool>>>>>);

/// A watch of one image, from its beginning until it is dropped.
pub(super) struct Watch {
    all: Watches,
    written: Arc<AtomicBool>,
}

impl Watches {
    /// Begins to watch an image, by whomever and through whatever it is written to:
    /// each write sets its time of modification, which is set to a time that is long
    /// gone before. So it does not matter how coarse the clock of the file system is.
    ///
    /// An image has one such time and may have several watches: before it is set anew,
    /// those that would have noticed by it are told.
    pub(super) fn begin(
        &self,
        path: &Path,
        image: &File,
        device: Option<&LoopDevice>,
    ) -> Result<Watch> {
        flush(device)?;
        let mut all = self.0.lock();
        all.retain(|_, watches| {
            watches.retain(|watch| watch.strong_count() > 0);
            !watches.is_empty()
        });
        let about = image.metadata().map_err(Error::file(path))?;
        let others = all.entry((about.dev(), about.ino())).or_default();
        if others.is_empty() || is_written(&about) {
            for other in others.iter().filter_map(Weak::upgrade) {
                other.store(true, Ordering::SeqCst);
            }
            let unchanged = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let long_gone = Timespec { tv_sec: LONG_GONE, tv_nsec: 0 };
            let times = Timestamps { last_access: unchanged, last_modification: long_gone };
            rustix::fs::futimens(image, &times).map_err(|error| Error::file(path)(error.into()))?;
        }
        let written = Arc::<AtomicBool>::default();
        others.push(Arc::downgrade(&written));
        Ok(Watch { all: self.clone(), written })
    }
}

impl Watch {
    /// Returns whether the image was written to since the beginning.
    pub(super) fn saw_writes(
        &self,
        path: &Path,
        image: &File,
        device: Option<&LoopDevice>,
    ) -> Result<bool> {
        // What was written is in the image only after this.
        flush(device)?;
        // Nobody sets the time anew between the two looks.
        let _all = self.all.0.lock();
        let about = image.metadata().map_err(Error::file(path))?;
        Ok(self.written.load(Ordering::SeqCst) || is_written(&about))
    }
}

fn is_written(about: &Metadata) -> bool {
    (about.mtime(), about.mtime_nsec()) != (LONG_GONE, 0)
}

/// Writes what is in the device's cache to the image.
pub(super) fn flush(device: Option<&LoopDevice>) -> Result<()> {
    device.map_or(Ok(()), attach::flush)
}
