//! The calls themselves.
#![allow(unsafe_code, reason = "there is no safe way to these calls")]

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::maps::Mapping;

/// Size from which an allocation has a mapping of its own, which is returned
/// when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BY_ITSELF: i32 = 128 << 10;

/// One heap for all threads instead of eight for each processor, and
/// thresholds that do not grow with use.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn few_arenas() {
    // SAFETY: these set numbers of the allocator, which takes its own locks.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BY_ITSELF);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED_BY_ITSELF);
    }
}

/// Gives back what is free in the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim() {
    // SAFETY: touches only what is free, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn few_arenas() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim() {}

/// Lets the kernel forget pages of a file that nothing here has changed.
pub(crate) fn forget(mapping: &Mapping) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(mapping.range.start);
    // SAFETY: the range is a private mapping of the program or of a library
    // that it was linked with, so that it stays mapped; it cannot be written,
    // and no page of it differs from the file. Whoever reads it next reads the
    // same bytes from the file, as after the kernel itself dropped the page
    // for want of memory, which it may do at any time.
    let done = unsafe { libc::madvise(start, mapping.range.len(), libc::MADV_DONTNEED) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks for the clock's state and changes nothing.
#[cfg(target_os = "linux")]
pub(crate) fn kernel_clock() -> Option<crate::KernelClock> {
    /// Return value for a clock that nobody keeps.
    const UNSYNCHRONISED: libc::c_int = 5;
    // SAFETY: all bytes of the struct may be zero, and no mode is set, so that
    // the kernel only fills it.
    let (state, filled) = unsafe {
        let mut filled: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut filled), filled)
    };
    if state < 0 {
        return None;
    }
    let nanos = filled.status & libc::STA_NANO != 0;
    Some(crate::KernelClock {
        synchronised: state != UNSYNCHRONISED,
        offset_seconds: filled.offset as f64 / if nanos { 1e9 } else { 1e6 },
        max_error_seconds: filled.maxerror as f64 / 1e6,
        estimated_error_seconds: filled.esterror as f64 / 1e6,
        // Parts per million, with 16 bits behind the point.
        frequency_ratio: 1.0 + filled.freq as f64 / 65536.0 / 1e6,
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn kernel_clock() -> Option<crate::KernelClock> {
    None
}

/// The kernel's clock of the CPU time of a process: its number inverted above
/// three bits, of which these say "of all threads, as the scheduler counts".
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time(process: i32) -> Option<u64> {
    const AS_SCHEDULED: libc::clockid_t = 2;
    if process <= 0 {
        return None;
    }
    let clock = (!process).wrapping_shl(3) | AS_SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes nothing but the time, which is ours.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time(_: i32) -> Option<u64> {
    None
}

/// Removes a loop device that nobody uses, with the limits it was given. The
/// kernel makes a new one by that number when it is next asked for.
#[cfg(target_os = "linux")]
pub(crate) fn remove_loop_device(number: u32) -> io::Result<()> {
    const REMOVE: u32 = 0x4c81;
    let control = std::fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: takes a number, touches no memory.
    let done =
        unsafe { libc::ioctl(control.as_raw_fd(), REMOVE as _, libc::c_ulong::from(number)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn remove_loop_device(_: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Asks a loop device for its image: numbers of the file system and the inode.
#[cfg(target_os = "linux")]
pub(crate) fn loop_image(device: &std::fs::File) -> io::Result<(u64, u64)> {
    const GET_STATUS: u32 = 0x4c05;
    // The first two of 232 bytes that the kernel writes are what is asked for.
    let mut status = [0_u64; 29];
    // SAFETY: the kernel writes 232 bytes, as many as there are.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS as _, status.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok((status[0], status[1])) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn loop_image(_: &std::fs::File) -> io::Result<(u64, u64)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sets one attribute of a mount that nobody else can reach yet.
#[cfg(target_os = "linux")]
pub(crate) fn map_users(mount: &OwnedFd, users: &std::fs::File) -> io::Result<()> {
    const MAP_USERS: u64 = 0x0010_0000;
    let users = u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?;
    // To set, to clear, propagation, user namespace.
    let attributes = [MAP_USERS, 0, 0, users];
    // SAFETY: the kernel reads the four numbers, of which there are as many
    // bytes as it is told, and an empty path.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn map_users(_: &OwnedFd, _: &std::fs::File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Takes the image from a loop device; where somebody uses it, the kernel does
/// so when the last one is done.
#[cfg(target_os = "linux")]
pub(crate) fn clear_loop_device(device: &std::fs::File) -> io::Result<()> {
    const CLEAR: u32 = 0x4c01;
    // SAFETY: takes nothing, touches no memory.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), CLEAR as _, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn clear_loop_device(_: &std::fs::File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Freezes or thaws the file system that a file is on.
#[cfg(target_os = "linux")]
pub(crate) fn set_frozen(file: &std::fs::File, frozen: bool) -> io::Result<()> {
    const FREEZE: u32 = 0xc004_5877;
    const THAW: u32 = 0xc004_5878;
    let request = if frozen { FREEZE } else { THAW };
    // SAFETY: takes nothing, touches no memory.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_frozen(_: &std::fs::File, _: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Extent as the kernel tells of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawExtent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    reserved: [u64; 2],
    pub(crate) flags: u32,
    reserved_too: [u32; 3],
}

/// Number of extents that are asked for at a time.
#[cfg(target_os = "linux")]
const EXTENTS: usize = 512;

#[cfg(target_os = "linux")]
#[repr(C)]
struct ExtentRequest {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

/// Asks for extents of a file that end behind an offset, after what was written
/// to it is on disk.
#[cfg(target_os = "linux")]
pub(crate) fn extents_from(file: &std::fs::File, start: u64) -> io::Result<Vec<RawExtent>> {
    const FIEMAP: u32 = 0xc020_660b;
    const SYNC: u32 = 1;
    let none = RawExtent {
        logical: 0,
        physical: 0,
        length: 0,
        reserved: [0; 2],
        flags: 0,
        reserved_too: [0; 3],
    };
    let mut request = Box::new(ExtentRequest {
        start,
        length: u64::MAX - start,
        flags: SYNC,
        mapped: 0,
        count: EXTENTS as u32,
        reserved: 0,
        extents: [none; EXTENTS],
    });
    // SAFETY: the kernel writes the head and as many extents as `count` says, which is
    // as many as there are.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, &raw mut *request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let mapped = usize::try_from(request.mapped).unwrap_or(0).min(EXTENTS);
    Ok(request.extents[..mapped].to_vec())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn extents_from(_: &std::fs::File, _: u64) -> io::Result<Vec<RawExtent>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens the device of network cards and names one.
#[cfg(target_os = "linux")]
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    const SET_INTERFACE: u32 = 0x4004_54ca;
    // Name, flags and padding of the kernel's `struct ifreq`.
    let mut request = [0_u8; 40];
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '%']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request[..name.len()].copy_from_slice(name.as_bytes());
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: the kernel reads and writes 40 bytes, as many as there are.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), SET_INTERFACE as _, request.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(device.into()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn tap(_: &str) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes the kernel map the pages of these mappings one by one. It does so if a
/// program asks it to record which pages are written. Nobody can write these,
/// so that there is nothing to record or report.
#[cfg(target_os = "linux")]
pub(crate) fn page_by_page<'a>(mappings: impl Iterator<Item = &'a Mapping>) -> io::Result<OwnedFd> {
    const FOR_PROGRAMS_ONLY: i32 = 1;
    const VERSION: u64 = 0xaa;
    const NOTE_WITHOUT_TELLING: u64 = 1 << 15;
    const WRITES: u64 = 1 << 1;
    const AGREE: u32 = 0xc018_aa3f;
    const REGISTER: u32 = 0xc020_aa00;
    let flags = libc::O_CLOEXEC | FOR_PROGRAMS_ONLY;
    // SAFETY: makes a descriptor, touches no memory.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    let made = i32::try_from(made).ok().filter(|made| *made >= 0);
    let made = made.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: it was made just now and is nobody else's.
    let descriptor = unsafe { OwnedFd::from_raw_fd(made) };
    let ask = |what: u32, about: &mut [u64]| {
        // SAFETY: the kernel reads and writes as many numbers as the request
        // has, three to agree and four to register: all that callers give.
        let done = unsafe { libc::ioctl(descriptor.as_raw_fd(), what as _, about.as_mut_ptr()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    ask(AGREE, &mut [VERSION, NOTE_WITHOUT_TELLING, 0])?;
    for mapping in mappings {
        let (start, length) = (mapping.range.start as u64, mapping.range.len() as u64);
        ask(REGISTER, &mut [start, length, WRITES, 0])?;
    }
    Ok(descriptor)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn page_by_page<'a>(_: impl Iterator<Item = &'a Mapping>) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
