//! The calls themselves.
#![allow(unsafe_code, reason = "there is no safe way to these calls")]

use std::io;

use crate::maps::Mapping;

/// From this size on, what is allocated is mapped by itself and given back
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
