//! The texts of control groups. Pure: bytes in, numbers out. A line that is
//! not there counts as 0, a line nobody knows is passed over.

use std::io;

use super::Io;

/// `cpu.stat` of either layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStat {
    pub usage_ns: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_ns: u64,
}

/// Fields that we take from `memory.stat` of either layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStat {
    pub inactive_file: u64,
    pub anonymous: u64,
    pub file: u64,
    pub limit: Option<u64>,
}

/// Time that some, or all, tasks of a group lost waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    pub some_us: u64,
    pub full_us: u64,
}

/// Limits this high mean none: the old layout writes the largest number of
/// pages a machine could ever have.
const NO_LIMIT: u64 = 0x7fff_ffff_ffff_0000;

pub(super) fn number(text: &[u8]) -> io::Result<u64> {
    digits(text.trim_ascii()).ok_or_else(|| {
        let text = String::from_utf8_lossy(text).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("not a number: {text:?}"))
    })
}

/// A number, or `max` for none.
pub(super) fn limit(text: &[u8]) -> Option<u64> {
    digits(text.trim_ascii()).filter(|limit| *limit < NO_LIMIT)
}

/// The number behind a name at the start of a line.
pub(super) fn field(text: &[u8], name: &[u8]) -> u64 {
    pairs(text).find(|(key, _)| *key == name).map_or(0, |(_, value)| value)
}

pub(super) fn cpu_split(text: &[u8]) -> CpuStat {
    let mut stat = CpuStat::default();
    for (key, value) in pairs(text) {
        match key {
            b"nr_periods" => stat.periods = value,
            b"nr_throttled" => stat.throttled_periods = value,
            b"throttled_time" => stat.throttled_ns = value,
            _ => {}
        }
    }
    stat
}

pub(super) fn cpu_unified(text: &[u8]) -> CpuStat {
    let mut stat = CpuStat::default();
    for (key, value) in pairs(text) {
        match key {
            b"usage_usec" => stat.usage_ns = value.saturating_mul(1000),
            b"nr_periods" => stat.periods = value,
            b"nr_throttled" => stat.throttled_periods = value,
            b"throttled_usec" => stat.throttled_ns = value.saturating_mul(1000),
            _ => {}
        }
    }
    stat
}

/// The old layout: the `total_` lines count groups below as well.
pub(super) fn memory_split(text: &[u8]) -> MemoryStat {
    let mut stat = MemoryStat::default();
    for (key, value) in pairs(text) {
        match key {
            b"total_inactive_file" => stat.inactive_file = value,
            b"total_rss" => stat.anonymous = value,
            b"total_cache" => stat.file = value,
            b"hierarchical_memory_limit" => stat.limit = Some(value).filter(|v| *v < NO_LIMIT),
            _ => {}
        }
    }
    stat
}

pub(super) fn memory_unified(text: &[u8]) -> MemoryStat {
    let mut stat = MemoryStat::default();
    for (key, value) in pairs(text) {
        match key {
            b"inactive_file" => stat.inactive_file = value,
            b"anon" => stat.anonymous = value,
            b"file" => stat.file = value,
            _ => {}
        }
    }
    stat
}

/// Lines `major:minor Read|Write|… number` and a total: (read, written).
pub(super) fn io_split(text: &[u8]) -> (u64, u64) {
    let (mut read, mut written) = (0u64, 0u64);
    for line in lines(text) {
        let mut words = words(line).skip(1);
        let (Some(what), Some(count)) = (words.next(), words.next().and_then(digits)) else {
            continue;
        };
        match what {
            b"Read" => read = read.saturating_add(count),
            b"Write" => written = written.saturating_add(count),
            _ => {}
        }
    }
    (read, written)
}

/// Lines `major:minor rbytes=… wbytes=… rios=… wios=… …`.
pub(super) fn io_unified(text: &[u8]) -> Io {
    let mut io = Io::default();
    for word in lines(text).flat_map(|line| words(line).skip(1)) {
        let Some(at) = word.iter().position(|byte| *byte == b'=') else { continue };
        let Some(count) = digits(&word[at + 1..]) else { continue };
        let total = match &word[..at] {
            b"rbytes" => &mut io.read_bytes,
            b"wbytes" => &mut io.write_bytes,
            b"rios" => &mut io.reads,
            b"wios" => &mut io.writes,
            _ => continue,
        };
        *total = total.saturating_add(count);
    }
    io
}

/// Lines `some avg10=… avg60=… avg300=… total=…`.
pub(super) fn pressure(text: &[u8]) -> Pressure {
    let mut pressure = Pressure::default();
    for line in lines(text) {
        let total = words(line).find_map(|word| word.strip_prefix(b"total=")).and_then(digits);
        match words(line).next() {
            Some(b"some") => pressure.some_us = total.unwrap_or(0),
            Some(b"full") => pressure.full_us = total.unwrap_or(0),
            _ => {}
        }
    }
    pressure
}

fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    lines(text).filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b' ')?;
        Some((&line[..at], digits(line[at + 1..].trim_ascii())?))
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Faster than by way of `str`, and these run a thousand times a second.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn numbers_and_limits() {
        assert_eq!(number(b"675840\n").unwrap(), 675_840);
        assert_eq!(number(b"18446744073709551615").unwrap(), u64::MAX);
        for bad in [&b""[..], b"\n", b"12x", b"-1", b"18446744073709551616"] {
            assert!(number(bad).is_err(), "{bad:?}");
        }
        assert_eq!(limit(b"max\n"), None);
        assert_eq!(limit(b"9223372036854771712\n"), None);
        assert_eq!(limit(b"67108864\n"), Some(64 << 20));
    }

    #[test]
    fn memory_of_the_old_layout_counts_the_groups_below() {
        let text = b"cache 4096\nrss 1\ninactive_file 7\nhierarchical_memory_limit 67108864\n\
                     hierarchical_memsw_limit 9223372036854771712\ntotal_cache 8192\n\
                     total_rss 20480\ntotal_inactive_file 4096\n";
        let expected = MemoryStat {
            inactive_file: 4096,
            anonymous: 20480,
            file: 8192,
            limit: Some(67_108_864),
        };
        assert_eq!(memory_split(text), expected);
        let unlimited = b"hierarchical_memory_limit 9223372036854771712\n";
        assert_eq!(memory_split(unlimited).limit, None);
    }

    #[test]
    fn memory_of_the_unified_layout() {
        let text = b"anon 102400\nfile 40960\nkernel 8192\ninactive_anon 1\ninactive_file 20480\n\
                     active_file 20480\nworkingset_refault_file 0\n";
        let expected =
            MemoryStat { inactive_file: 20480, anonymous: 102_400, file: 40960, limit: None };
        assert_eq!(memory_unified(text), expected);
    }

    #[test]
    fn cpu_of_both_layouts() {
        let split = cpu_split(b"nr_periods 10\nnr_throttled 3\nthrottled_time 123456789\n");
        assert_eq!((split.periods, split.throttled_periods), (10, 3));
        assert_eq!(split.throttled_ns, 123_456_789);
        let unified = cpu_unified(
            b"usage_usec 2500\nuser_usec 2000\nsystem_usec 500\nnr_periods 4\nnr_throttled 1\n\
              throttled_usec 7\nnr_bursts 0\nburst_usec 0\n",
        );
        let expected =
            CpuStat { usage_ns: 2_500_000, periods: 4, throttled_periods: 1, throttled_ns: 7000 };
        assert_eq!(unified, expected);
    }

    #[test]
    fn io_of_both_layouts_sums_over_devices() {
        let split = b"254:0 Read 4096\n254:0 Write 1\n254:0 Sync 4097\n254:0 Total 4097\n\
                      7:0 Read 1\n7:0 Write 2\nTotal 4100\n";
        assert_eq!(io_split(split), (4097, 3));
        assert_eq!(io_split(b"Total 0\n"), (0, 0));
        let unified = b"254:0 rbytes=90112 wbytes=1 rios=3 wios=2 dbytes=0 dios=0\n\
                        7:0 rbytes=1 wbytes=1 rios=1 wios=1\n8:0\n";
        let expected = Io { read_bytes: 90113, write_bytes: 2, reads: 4, writes: 3 };
        assert_eq!(io_unified(unified), expected);
    }

    #[test]
    fn pressure_and_events() {
        let text = b"some avg10=0.12 avg60=0.00 avg300=0.00 total=1234\n\
                     full avg10=0.00 avg60=0.00 avg300=0.00 total=56\n";
        assert_eq!(pressure(text), Pressure { some_us: 1234, full_us: 56 });
        let events = b"low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(field(events, b"oom_kill"), 2);
        assert_eq!(field(b"oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", b"oom_kill"), 5);
    }

    #[test]
    fn damaged_texts_are_passed_over() {
        for text in [&b"\xff\xfe 1\n"[..], b"inactive_file\n", b"inactive_file x\n", b" \n=\n"] {
            assert_eq!(memory_unified(text), MemoryStat::default());
            assert_eq!(io_unified(text), Io::default());
            assert_eq!(io_split(text), (0, 0));
            assert_eq!(pressure(text), Pressure::default());
        }
    }
}
