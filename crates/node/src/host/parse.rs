//! The kernel's files about the machine as a whole. A line that does not read
//! is left out, never an error: kernels add lines.

/// Time of a processor by state, in hundredths of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    pub idle: u64,
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
    pub guest: u64,
    pub guest_nice: u64,
}

impl CpuTicks {
    fn read(words: &mut dyn Iterator<Item = u64>) -> Self {
        let mut next = || words.next().unwrap_or(0);
        Self {
            user: next(),
            nice: next(),
            system: next(),
            idle: next(),
            iowait: next(),
            irq: next(),
            softirq: next(),
            steal: next(),
            guest: next(),
            guest_nice: next(),
        }
    }

    /// Time in which something ran. Guests are in the user's time already.
    pub fn busy(&self) -> u64 {
        self.user + self.nice + self.system + self.irq + self.softirq + self.steal
    }

    /// All time.
    pub fn all(&self) -> u64 {
        self.busy() + self.idle + self.iowait
    }
}

/// `/proc/stat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemStat {
    pub total: CpuTicks,
    /// Processors by number; those that are off are missing.
    pub cpus: Vec<(u32, CpuTicks)>,
    pub interrupts: u64,
    pub context_switches: u64,
    /// Start of the machine, in seconds since 1970.
    pub started: u64,
    pub forks: u64,
    pub running: u64,
    pub blocked: u64,
}

fn lines(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok())
}

/// Reads `/proc/stat`.
pub fn system_stat(text: &[u8]) -> SystemStat {
    let mut stat = SystemStat::default();
    for line in lines(text) {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next() else { continue };
        let mut numbers = words.map_while(|word| word.parse().ok());
        if let Some(cpu) = name.strip_prefix("cpu") {
            let ticks = CpuTicks::read(&mut numbers);
            match cpu.parse() {
                Ok(number) => stat.cpus.push((number, ticks)),
                Err(_) => stat.total = ticks,
            }
            continue;
        }
        let field = match name {
            "intr" => &mut stat.interrupts,
            "ctxt" => &mut stat.context_switches,
            "btime" => &mut stat.started,
            "processes" => &mut stat.forks,
            "procs_running" => &mut stat.running,
            "procs_blocked" => &mut stat.blocked,
            _ => continue,
        };
        *field = numbers.next().unwrap_or(0);
    }
    stat
}

/// `/proc/loadavg`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    pub one: f64,
    pub five: f64,
    pub fifteen: f64,
}

/// Reads `/proc/loadavg`.
pub fn loadavg(text: &[u8]) -> Load {
    let mut words = lines(text)
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(|word| word.parse().ok().filter(|load: &f64| load.is_finite()).unwrap_or(0.0));
    let mut next = || words.next().unwrap_or(0.0);
    Load { one: next(), five: next(), fifteen: next() }
}

/// A line of `/proc/diskstats`. Sectors have 512 bytes whatever the disk's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStat {
    pub name: String,
    pub reads: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub read_ms: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub write_ms: u64,
    /// Requests under way.
    pub in_flight: u64,
    pub busy_ms: u64,
    pub weighted_ms: u64,
}

/// Reads `/proc/diskstats`. Devices that were never used are left out.
pub fn diskstats(text: &[u8]) -> Vec<DiskStat> {
    lines(text).filter_map(disk).filter(|disk| disk.reads > 0 || disk.writes > 0).collect()
}

fn disk(line: &str) -> Option<DiskStat> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let name = words.next()?.to_owned();
    let mut next = || words.next()?.parse().ok();
    Some(DiskStat {
        name,
        reads: next()?,
        reads_merged: next()?,
        sectors_read: next()?,
        read_ms: next()?,
        writes: next()?,
        writes_merged: next()?,
        sectors_written: next()?,
        write_ms: next()?,
        in_flight: next()?,
        busy_ms: next()?,
        weighted_ms: next()?,
    })
}

/// A line of `/proc/net/dev`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

/// One direction of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub drops: u64,
}

/// Reads `/proc/net/dev`.
pub fn interfaces(text: &[u8]) -> Vec<Interface> {
    // A name may hold a colon: the last one ends it.
    lines(text).filter_map(|line| line.rsplit_once(':')).filter_map(interface).collect()
}

fn interface((name, counts): (&str, &str)) -> Option<Interface> {
    let mut words = counts.split_ascii_whitespace();
    let mut next = || words.next()?.parse().ok();
    let received = Traffic { bytes: next()?, packets: next()?, errors: next()?, drops: next()? };
    for _ in 0..4 {
        next()?;
    }
    let sent = Traffic { bytes: next()?, packets: next()?, errors: next()?, drops: next()? };
    Some(Interface { name: name.trim().to_owned(), received, sent })
}

/// A line of `/proc/mounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountLine {
    pub device: String,
    pub mounted_on: String,
    pub kind: String,
    pub read_only: bool,
}

/// Reads `/proc/mounts`.
pub fn mounts(text: &[u8]) -> Vec<MountLine> {
    lines(text)
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            Some(MountLine {
                device: unescape(words.next()?),
                mounted_on: unescape(words.next()?),
                kind: words.next()?.to_owned(),
                read_only: words.next()?.split(',').any(|option| option == "ro"),
            })
        })
        .collect()
}

/// Takes back `\040` and its like.
fn unescape(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'\\').then_some(after).and_then(|after| after.first_chunk::<3>());
        let value = escaped.and_then(|digits| {
            digits.iter().try_fold(0_u32, |value, digit| {
                char::from(*digit).to_digit(8).map(|digit| value * 8 + digit)
            })
        });
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(value) => {
                bytes.push(value);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lines of `name number`, as in `/proc/vmstat`.
pub fn keyed(text: &[u8]) -> impl Iterator<Item = (&str, u64)> {
    lines(text).filter_map(|line| {
        let (name, number) = line.split_once(' ')?;
        Some((name, number.trim().parse().ok()?))
    })
}

/// `/proc/pressure/…`: microseconds in which some, and in which all, waited.
pub fn pressure(text: &[u8]) -> (u64, u64) {
    let total = |kind: &str| {
        lines(text)
            .find(|line| line.starts_with(kind))
            .and_then(|line| line.rsplit_once("total=")?.1.parse().ok())
            .unwrap_or(0)
    };
    (total("some "), total("full "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_time_of_processors() {
        let read = system_stat(
            b"cpu  100 1 50 900 7 2 3 4 5 6\ncpu0 60 1 30 400 3 1 2 2 0 0\ncpu12 40 0 20 500\n\
              intr 12345 0 9\nctxt 99\nbtime 1794773095\nprocesses 321\nprocs_running 2\n\
              procs_blocked 1\nsoftirq 5 1 2\n",
        );
        assert_eq!((read.total.busy(), read.total.all()), (160, 1067));
        assert_eq!(
            read.cpus[1],
            (12, CpuTicks { user: 40, system: 20, idle: 500, ..CpuTicks::default() })
        );
        assert_eq!(
            (read.interrupts, read.context_switches, read.started),
            (12345, 99, 1_794_773_095)
        );
        assert_eq!((read.forks, read.running, read.blocked), (321, 2, 1));
    }

    #[test]
    fn load_disks_and_interfaces() {
        let load = loadavg(b"0.50 1.25 2.00 3/456 7890\n");
        assert_eq!((load.one, load.five, load.fifteen), (0.5, 1.25, 2.0));
        let disks = diskstats(
            b" 254       0 vda 10 1 80 5 20 2 160 6 0 9 11 0 0 0 0 3 4\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\nnonsense\n",
        );
        assert_eq!(disks.len(), 1);
        assert_eq!(
            (disks[0].name.as_str(), disks[0].sectors_written, disks[0].weighted_ms),
            ("vda", 160, 11)
        );
        let read = interfaces(
            b"Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
        );
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].received, Traffic { bytes: 1, packets: 2, errors: 3, drops: 4 });
        assert_eq!(read[0].sent, Traffic { bytes: 9, packets: 10, errors: 11, drops: 12 });
    }

    #[test]
    fn mounts_with_blanks_and_pressure() {
        let read = mounts(
            b"/dev/a\\040b /mnt/x\\011y ext4 rw,relatime 0 0\ntmpfs /run tmpfs ro,size=1k 0 0\n",
        );
        assert_eq!(
            (read[0].device.as_str(), read[0].mounted_on.as_str()),
            ("/dev/a b", "/mnt/x\ty")
        );
        assert!(!read[0].read_only && read[1].read_only);
        assert_eq!(unescape("a\\9z\\1"), "a\\9z\\1");
        let text = b"some avg10=0.00 avg60=0.12 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=56\n";
        assert_eq!(pressure(text), (1234, 56));
        assert_eq!(keyed(b"pgfault 5\noom_kill x\n").collect::<Vec<_>>(), [("pgfault", 5)]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_them_stumble(text in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = (system_stat(&text), loadavg(&text), diskstats(&text), interfaces(&text));
            let _ = (mounts(&text), pressure(&text), keyed(&text).count());
        }
    }
}
