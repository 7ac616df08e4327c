//! Memory: in short, and all of it.

use std::fmt::Write;

use selvage_api::os::{MemInfo, Memory};

use super::{sheet::Sheet, tables::From};

/// In MB.
pub(crate) fn brief(answers: &From<'_, Memory>) -> Sheet {
    let mut sheet =
        Sheet::new(&["NODE", "TOTAL", "USED", "FREE", "SHARED", "BUFFERS", "CACHE", "AVAILABLE"]);
    for (node, answer) in answers {
        let empty = MemInfo::default();
        let memory = answer.meminfo.as_ref().unwrap_or(&empty);
        let mega = |kilo: u64| (kilo / 1024).to_string();
        sheet.push([
            (*node).to_owned(),
            mega(memory.memtotal),
            mega(used(memory)),
            mega(memory.memfree),
            mega(memory.shmem),
            mega(memory.buffers),
            mega(memory.cached),
            mega(memory.memavailable),
        ]);
    }
    sheet
}

/// Memory of programs and the kernel, in kB. The parts are not read at one
/// moment: their sum may be more than the whole.
pub(crate) fn used(memory: &MemInfo) -> u64 {
    memory
        .memtotal
        .saturating_sub(memory.memfree)
        .saturating_sub(memory.cached)
        .saturating_sub(memory.buffers)
}

/// Everything, as the kernel lists it, each machine under its name.
pub(crate) fn full(answers: &From<'_, Memory>) -> String {
    let mut text = String::new();
    for (node, answer) in answers {
        let empty = MemInfo::default();
        let memory = answer.meminfo.as_ref().unwrap_or(&empty);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "NODE: {node}");
        for (name, value, unit) in lines(memory) {
            let _ = writeln!(text, "{name}: {value}{unit}");
        }
    }
    text
}

fn lines(memory: &MemInfo) -> [(&'static str, u64, &'static str); 48] {
    const KB: &str = " kB";
    [
        ("MemTotal", memory.memtotal, KB),
        ("MemFree", memory.memfree, KB),
        ("MemAvailable", memory.memavailable, KB),
        ("Buffers", memory.buffers, KB),
        ("Cached", memory.cached, KB),
        ("SwapCached", memory.swapcached, KB),
        ("Active", memory.active, KB),
        ("Inactive", memory.inactive, KB),
        ("ActiveAnon", memory.activeanon, KB),
        ("InactiveAnon", memory.inactiveanon, KB),
        ("ActiveFile", memory.activefile, KB),
        ("InactiveFile", memory.inactivefile, KB),
        ("Unevictable", memory.unevictable, KB),
        ("Mlocked", memory.mlocked, KB),
        ("SwapTotal", memory.swaptotal, KB),
        ("SwapFree", memory.swapfree, KB),
        ("Dirty", memory.dirty, KB),
        ("Writeback", memory.writeback, KB),
        ("AnonPages", memory.anonpages, KB),
        ("Mapped", memory.mapped, KB),
        ("Shmem", memory.shmem, KB),
        ("Slab", memory.slab, KB),
        ("SReclaimable", memory.sreclaimable, KB),
        ("SUnreclaim", memory.sunreclaim, KB),
        ("KernelStack", memory.kernelstack, KB),
        ("PageTables", memory.pagetables, KB),
        ("NFSUnstable", memory.nfsunstable, KB),
        ("Bounce", memory.bounce, KB),
        ("WritebackTmp", memory.writebacktmp, KB),
        ("CommitLimit", memory.commitlimit, KB),
        ("CommittedAS", memory.committedas, KB),
        ("VmallocTotal", memory.vmalloctotal, KB),
        ("VmallocUsed", memory.vmallocused, KB),
        ("VmallocChunk", memory.vmallocchunk, KB),
        ("HardwareCorrupted", memory.hardwarecorrupted, KB),
        ("AnonHugePages", memory.anonhugepages, KB),
        ("ShmemHugePages", memory.shmemhugepages, KB),
        ("ShmemPmdMapped", memory.shmempmdmapped, KB),
        ("CmaTotal", memory.cmatotal, KB),
        ("CmaFree", memory.cmafree, KB),
        ("HugePagesTotal", memory.hugepagestotal, ""),
        ("HugePagesFree", memory.hugepagesfree, ""),
        ("HugePagesRsvd", memory.hugepagesrsvd, ""),
        ("HugePagesSurp", memory.hugepagessurp, ""),
        ("Hugepagesize", memory.hugepagesize, KB),
        ("DirectMap4k", memory.directmap4k, KB),
        ("DirectMap2M", memory.directmap2m, KB),
        ("DirectMap1G", memory.directmap1g, KB),
    ]
}
