//! The machine, under node_exporter's names.

use selvage_api::os::MemInfo;

use super::text::{Helped, Kind, Named, Page, label, labelled};
use crate::{
    host::{CpuTicks, DiskStat, Filesystem, Interface, Snapshot, keyed},
    sampler::Sampler,
};

/// Counters of `/proc/vmstat` that are exported.
const VIRTUAL_MEMORY: &[&str] =
    &["oom_kill", "pgfault", "pgmajfault", "pgpgin", "pgpgout", "pswpin", "pswpout"];

pub(super) fn write(page: &mut Page, sampler: &Sampler, filesystems: &[Filesystem]) {
    // Reads anew: the last measurement may have left out disks and network.
    let snapshot = sampler.with_host_reader(|reader| reader.snapshot());
    let snapshot = snapshot.unwrap_or_else(|_| sampler.host().0);
    processors(page, &snapshot);
    whole(page, &snapshot);
    memory(page, &snapshot.memory);
    let disks_of_machine: Vec<DiskStat> =
        snapshot.disks.into_iter().filter(|disk| is_disk(&disk.name)).collect();
    disks(page, &disks_of_machine);
    network(page, &snapshot.interfaces);
    rooms(page, filesystems);
    sampler.with_host_reader(|reader| {
        for (name, number) in keyed(reader.virtual_memory()) {
            if VIRTUAL_MEMORY.contains(&name) {
                let metric = format!("node_vmstat_{name}");
                page.single(&metric, Kind::Untyped, "As /proc/vmstat has it.", number);
            }
        }
        sockets(page, reader.sockets());
        if let Some((open, most)) = reader.open_files() {
            page.single("node_filefd_allocated", Kind::Gauge, "Open files.", open);
            page.single("node_filefd_maximum", Kind::Gauge, "Files that may be open.", most);
        }
        pressure(page, reader.pressure());
    });
}

/// Returns whether a block device holds data of its own: loop devices and disks
/// in memory show what other devices count.
fn is_disk(name: &str) -> bool {
    !["loop", "ram", "zram", "fd"].iter().any(|kind| {
        let number = name.strip_prefix(kind);
        number
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// A number of ticks as seconds.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / 100.0
}

fn processors(page: &mut Page, snapshot: &Snapshot) {
    let modes: [Named<CpuTicks>; 8] = [
        ("idle", |of| of.idle),
        ("iowait", |of| of.iowait),
        ("irq", |of| of.irq),
        ("nice", |of| of.nice),
        ("softirq", |of| of.softirq),
        ("steal", |of| of.steal),
        ("system", |of| of.system),
        ("user", |of| of.user),
    ];
    let help = "Where the time of processors went.";
    page.metric("node_cpu_seconds_total", Kind::Counter, help);
    for (number, ticks) in &snapshot.stat.cpus {
        for (mode, of) in modes {
            let labels = format!("cpu=\"{number}\",mode=\"{mode}\"");
            page.line("node_cpu_seconds_total", &labels, seconds(of(ticks)));
        }
    }
    let cores = snapshot.stat.cpus.len() as u64;
    page.single("machine_cpu_cores", Kind::Gauge, "Processors.", cores);
}

fn whole(page: &mut Page, snapshot: &Snapshot) {
    use Kind::{Counter, Gauge};
    let stat = &snapshot.stat;
    page.single("node_boot_time_seconds", Gauge, "When the machine started.", stat.started);
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
    page.single("node_time_seconds", Gauge, "The machine's clock.", now);
    let switches = stat.context_switches;
    page.single("node_context_switches_total", Counter, "Context switches.", switches);
    page.single("node_intr_total", Counter, "Interrupts.", stat.interrupts);
    page.single("node_forks_total", Counter, "Processes made.", stat.forks);
    page.single("node_procs_running", Gauge, "Processes that run or could.", stat.running);
    page.single("node_procs_blocked", Gauge, "Processes that wait for disks.", stat.blocked);
    page.single("node_load1", Gauge, "Load over a minute.", snapshot.load.one);
    page.single("node_load5", Gauge, "Load over 5 minutes.", snapshot.load.five);
    page.single("node_load15", Gauge, "Load over 15 minutes.", snapshot.load.fifteen);
    let system = rustix::system::uname();
    let mut labels = String::new();
    for (name, value) in [
        ("domainname", system.domainname()),
        ("machine", system.machine()),
        ("nodename", system.nodename()),
        ("release", system.release()),
        ("sysname", system.sysname()),
        ("version", system.version()),
    ] {
        label(&mut labels, name, &value.to_string_lossy());
    }
    page.metric("node_uname_info", Gauge, "What system it is.");
    page.line("node_uname_info", &labels, 1_u64);
}

fn memory(page: &mut Page, memory: &MemInfo) {
    let numbers = [
        ("Active", memory.active),
        ("Active_anon", memory.activeanon),
        ("Active_file", memory.activefile),
        ("AnonHugePages", memory.anonhugepages),
        ("AnonPages", memory.anonpages),
        ("Buffers", memory.buffers),
        ("Cached", memory.cached),
        ("CommitLimit", memory.commitlimit),
        ("Committed_AS", memory.committedas),
        ("Dirty", memory.dirty),
        ("HardwareCorrupted", memory.hardwarecorrupted),
        ("Inactive", memory.inactive),
        ("Inactive_anon", memory.inactiveanon),
        ("Inactive_file", memory.inactivefile),
        ("KernelStack", memory.kernelstack),
        ("KReclaimable", memory.kreclaimable),
        ("Mapped", memory.mapped),
        ("MemAvailable", memory.memavailable),
        ("MemFree", memory.memfree),
        ("MemTotal", memory.memtotal),
        ("Mlocked", memory.mlocked),
        ("PageTables", memory.pagetables),
        ("Percpu", memory.percpu),
        ("Shmem", memory.shmem),
        ("Slab", memory.slab),
        ("SReclaimable", memory.sreclaimable),
        ("SUnreclaim", memory.sunreclaim),
        ("SwapCached", memory.swapcached),
        ("SwapFree", memory.swapfree),
        ("SwapTotal", memory.swaptotal),
        ("Unevictable", memory.unevictable),
        ("VmallocTotal", memory.vmalloctotal),
        ("VmallocUsed", memory.vmallocused),
        ("Writeback", memory.writeback),
    ];
    for (name, kilobytes) in numbers {
        let metric = format!("node_memory_{name}_bytes");
        page.single(&metric, Kind::Gauge, "As /proc/meminfo has it.", kilobytes * 1024);
    }
    for (name, pages) in [
        ("node_memory_HugePages_Total", memory.hugepagestotal),
        ("node_memory_HugePages_Free", memory.hugepagesfree),
    ] {
        page.single(name, Kind::Gauge, "As /proc/meminfo has it.", pages);
    }
    page.single("machine_memory_bytes", Kind::Gauge, "Memory.", memory.memtotal * 1024);
}

fn disks(page: &mut Page, disks: &[DiskStat]) {
    use Kind::{Counter, Gauge};
    let labels: Vec<String> = disks.iter().map(|disk| labelled("device", &disk.name)).collect();
    let counts: [Helped<DiskStat>; 6] = [
        ("node_disk_reads_completed_total", "Reads.", |of| of.reads),
        ("node_disk_reads_merged_total", "Reads that were joined.", |of| of.reads_merged),
        ("node_disk_read_bytes_total", "Bytes read.", |of| of.sectors_read * 512),
        ("node_disk_writes_completed_total", "Writes.", |of| of.writes),
        ("node_disk_writes_merged_total", "Writes that were joined.", |of| of.writes_merged),
        ("node_disk_written_bytes_total", "Bytes written.", |of| of.sectors_written * 512),
    ];
    for (name, help, of) in counts {
        page.metric(name, Counter, help);
        for (disk, labels) in disks.iter().zip(&labels) {
            page.line(name, labels, of(disk));
        }
    }
    let times: [Helped<DiskStat>; 4] = [
        ("node_disk_read_time_seconds_total", "Time of reads.", |of| of.read_ms),
        ("node_disk_write_time_seconds_total", "Time of writes.", |of| of.write_ms),
        ("node_disk_io_time_seconds_total", "Time with requests under way.", |of| of.busy_ms),
        ("node_disk_io_time_weighted_seconds_total", "The same, times the requests.", |of| {
            of.weighted_ms
        }),
    ];
    for (name, help, of) in times {
        page.metric(name, Counter, help);
        for (disk, labels) in disks.iter().zip(&labels) {
            page.line(name, labels, of(disk) as f64 / 1000.0);
        }
    }
    page.metric("node_disk_io_now", Gauge, "Requests under way.");
    for (disk, labels) in disks.iter().zip(&labels) {
        page.line("node_disk_io_now", labels, disk.in_flight);
    }
}

fn network(page: &mut Page, interfaces: &[Interface]) {
    let labels: Vec<String> =
        interfaces.iter().map(|interface| labelled("device", &interface.name)).collect();
    let counts: [Named<Interface>; 8] = [
        ("node_network_receive_bytes_total", |of| of.received.bytes),
        ("node_network_receive_packets_total", |of| of.received.packets),
        ("node_network_receive_errs_total", |of| of.received.errors),
        ("node_network_receive_drop_total", |of| of.received.drops),
        ("node_network_transmit_bytes_total", |of| of.sent.bytes),
        ("node_network_transmit_packets_total", |of| of.sent.packets),
        ("node_network_transmit_errs_total", |of| of.sent.errors),
        ("node_network_transmit_drop_total", |of| of.sent.drops),
    ];
    for (name, of) in counts {
        page.metric(name, Kind::Counter, "As /proc/net/dev has it.");
        for (interface, labels) in interfaces.iter().zip(&labels) {
            page.line(name, labels, of(interface));
        }
    }
}

fn rooms(page: &mut Page, filesystems: &[Filesystem]) {
    let labels: Vec<String> = filesystems
        .iter()
        .map(|of| {
            let mut labels = labelled("device", &of.mount.device);
            label(&mut labels, "fstype", &of.mount.kind);
            label(&mut labels, "mountpoint", &of.mount.mounted_on);
            labels
        })
        .collect();
    let numbers: [Helped<Filesystem>; 6] = [
        ("node_filesystem_size_bytes", "Size.", |of| of.size),
        ("node_filesystem_free_bytes", "Free.", |of| of.free),
        ("node_filesystem_avail_bytes", "Free for everybody.", |of| of.available),
        ("node_filesystem_files", "Files that there may be.", |of| of.files),
        ("node_filesystem_files_free", "Files that there may yet be.", |of| of.files_free),
        ("node_filesystem_readonly", "1 when it cannot be written.", |of| {
            u64::from(of.mount.read_only)
        }),
    ];
    for (name, help, of) in numbers {
        page.metric(name, Kind::Gauge, help);
        for (filesystem, labels) in filesystems.iter().zip(&labels) {
            page.line(name, labels, of(filesystem));
        }
    }
}

/// Lines of `TCP: inuse 5 orphan 0 …`.
fn sockets(page: &mut Page, text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    for (protocol, rest) in text.lines().filter_map(|line| line.split_once(": ")) {
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        for pair in words.chunks_exact(2) {
            if let Ok(number) = pair[1].parse::<u64>() {
                let metric = format!("node_sockstat_{protocol}_{}", pair[0]);
                page.single(&metric, Kind::Gauge, "As /proc/net/sockstat has it.", number);
            }
        }
    }
}

fn pressure(page: &mut Page, pressure: [Option<(u64, u64)>; 3]) {
    let [cpu, memory, io] = pressure;
    let help = "Time in which tasks waited.";
    let mut write = |name: &str, micros: u64| {
        page.single(name, Kind::Counter, help, micros as f64 / 1e6);
    };
    if let Some((some, _)) = cpu {
        write("node_pressure_cpu_waiting_seconds_total", some);
    }
    if let Some((some, all)) = memory {
        write("node_pressure_memory_waiting_seconds_total", some);
        write("node_pressure_memory_stalled_seconds_total", all);
    }
    if let Some((some, all)) = io {
        write("node_pressure_io_waiting_seconds_total", some);
        write("node_pressure_io_stalled_seconds_total", all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_devices_are_no_disks() {
        for disk in ["sda", "sda1", "nvme0n1", "vda", "dm-0", "md0", "mmcblk0", "loop"] {
            assert!(is_disk(disk), "{disk}");
        }
        for none in ["loop0", "loop12", "ram3", "zram0", "fd0"] {
            assert!(!is_disk(none), "{none}");
        }
    }
}
