//! The machine as a whole: processors, memory, disks, interfaces, file
//! systems.

mod filesystems;
mod parse;
mod reader;

pub use filesystems::{Filesystem, Filesystems};
pub use parse::{
    CpuTicks, DiskStat, Interface, Load, MountLine, SystemStat, diskstats, interfaces, keyed,
    loadavg, mounts, pressure, system_stat,
};
pub(crate) use reader::read;
pub use reader::{HostReader, Snapshot};
