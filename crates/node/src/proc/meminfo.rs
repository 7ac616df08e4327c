//! `/proc/meminfo`.

use selvage_api::os::MemInfo;

/// Reads `/proc/meminfo`. Numbers stay in the file's unit; what is not there
/// is 0, and a line that is no line of it says nothing.
pub fn meminfo(text: &[u8]) -> MemInfo {
    let mut read = MemInfo::default();
    for line in text.split(|&byte| byte == b'\n') {
        let Some((key, value)) = entry(line) else { continue };
        match field(&mut read, key) {
            Some(field) => *field = value,
            None => {
                read.others.insert(key.to_owned(), value);
            }
        }
    }
    read
}

fn entry(line: &[u8]) -> Option<(&str, u64)> {
    let (key, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    let number = value.split_ascii_whitespace().next()?;
    let key = key.trim();
    (!key.is_empty()).then_some((key, number.parse().ok()?))
}

fn field<'a>(of: &'a mut MemInfo, key: &str) -> Option<&'a mut u64> {
    Some(match key {
        "MemTotal" => &mut of.memtotal,
        "MemFree" => &mut of.memfree,
        "MemAvailable" => &mut of.memavailable,
        "Buffers" => &mut of.buffers,
        "Cached" => &mut of.cached,
        "SwapCached" => &mut of.swapcached,
        "Active" => &mut of.active,
        "Inactive" => &mut of.inactive,
        "Active(anon)" => &mut of.activeanon,
        "Inactive(anon)" => &mut of.inactiveanon,
        "Active(file)" => &mut of.activefile,
        "Inactive(file)" => &mut of.inactivefile,
        "Unevictable" => &mut of.unevictable,
        "Mlocked" => &mut of.mlocked,
        "SwapTotal" => &mut of.swaptotal,
        "SwapFree" => &mut of.swapfree,
        "Dirty" => &mut of.dirty,
        "Writeback" => &mut of.writeback,
        "AnonPages" => &mut of.anonpages,
        "Mapped" => &mut of.mapped,
        "Shmem" => &mut of.shmem,
        "Slab" => &mut of.slab,
        "SReclaimable" => &mut of.sreclaimable,
        "SUnreclaim" => &mut of.sunreclaim,
        "KernelStack" => &mut of.kernelstack,
        "PageTables" => &mut of.pagetables,
        "NFS_Unstable" => &mut of.nfsunstable,
        "Bounce" => &mut of.bounce,
        "WritebackTmp" => &mut of.writebacktmp,
        "CommitLimit" => &mut of.commitlimit,
        "Committed_AS" => &mut of.committedas,
        _ => return rare_field(of, key),
    })
}

fn rare_field<'a>(of: &'a mut MemInfo, key: &str) -> Option<&'a mut u64> {
    Some(match key {
        "VmallocTotal" => &mut of.vmalloctotal,
        "VmallocUsed" => &mut of.vmallocused,
        "VmallocChunk" => &mut of.vmallocchunk,
        "HardwareCorrupted" => &mut of.hardwarecorrupted,
        "AnonHugePages" => &mut of.anonhugepages,
        "ShmemHugePages" => &mut of.shmemhugepages,
        "ShmemPmdMapped" => &mut of.shmempmdmapped,
        "CmaTotal" => &mut of.cmatotal,
        "CmaFree" => &mut of.cmafree,
        "HugePages_Total" => &mut of.hugepagestotal,
        "HugePages_Free" => &mut of.hugepagesfree,
        "HugePages_Rsvd" => &mut of.hugepagesrsvd,
        "HugePages_Surp" => &mut of.hugepagessurp,
        "Hugepagesize" => &mut of.hugepagesize,
        "DirectMap4k" => &mut of.directmap4k,
        "DirectMap2M" => &mut of.directmap2m,
        "DirectMap1G" => &mut of.directmap1g,
        "KReclaimable" => &mut of.kreclaimable,
        "SecPageTables" => &mut of.secpagetables,
        "Zswap" => &mut of.zswap,
        "Zswapped" => &mut of.zswapped,
        "Percpu" => &mut of.percpu,
        "FileHugePages" => &mut of.filehugepages,
        "FilePmdMapped" => &mut of.filepmdmapped,
        "Balloon" => &mut of.balloon,
        "Hugetlb" => &mut of.hugetlb,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_line_finds_its_field_in_the_unit_of_the_file() {
        let read = meminfo(
            b"MemTotal:       24690004 kB\nActive(anon):    1234 kB\nCommitted_AS:   5678 kB\n\
              NFS_Unstable:        9 kB\nHugePages_Total:       4\nHugepagesize:       2048 kB\n\
              DirectMap4k:       28672 kB\nDirectMap1G:    25165824 kB\nKReclaimable:      77 kB\n\
              Unaccepted:           6 kB\n",
        );
        assert_eq!((read.memtotal, read.activeanon, read.committedas), (24_690_004, 1234, 5678));
        assert_eq!((read.nfsunstable, read.hugepagestotal, read.hugepagesize), (9, 4, 2048));
        assert_eq!((read.directmap4k, read.directmap1g), (28672, 25_165_824));
        assert_eq!((read.kreclaimable, read.others["Unaccepted"]), (77, 6));
        assert_eq!((read.cmatotal, read.memfree), (0, 0), "what is not there is 0");
    }

    #[test]
    fn an_odd_line_costs_only_itself() {
        let read =
            meminfo(b"MemTotal: 1 kB\nno colon\n: 5\nMemFree: x kB\nCached:\n\xff: 3\nSlab: 2");
        assert_eq!((read.memtotal, read.memfree, read.cached, read.slab), (1, 0, 0, 2));
        assert!(read.others.is_empty(), "{:?}", read.others);
    }

    #[test]
    fn this_kernels_own_file_has_no_line_without_a_name_of_ours() {
        let read = meminfo(&std::fs::read("/proc/meminfo").unwrap());
        assert!(read.memtotal > 0 && read.memavailable > 0);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_stumble(text in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = meminfo(&text);
        }
    }
}
