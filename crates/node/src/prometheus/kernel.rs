//! Counters of the kernel's network, its connection tracking and its clock,
//! under node_exporter's names.

use super::text::{Kind, Page};
use crate::host::HostReader;

/// Fields of `/proc/net/snmp` and `/proc/net/netstat` that are exported: those
/// that dashboards made for node_exporter use.
const COUNTERS: &[(&str, &[&str])] = &[
    ("Icmp", &["InErrors", "InMsgs", "OutMsgs"]),
    ("Ip", &["Forwarding"]),
    ("IpExt", &["InOctets", "OutOctets"]),
    (
        "Tcp",
        &[
            "ActiveOpens",
            "CurrEstab",
            "InErrs",
            "InSegs",
            "OutRsts",
            "OutSegs",
            "PassiveOpens",
            "RetransSegs",
        ],
    ),
    (
        "TcpExt",
        &[
            "ListenDrops",
            "ListenOverflows",
            "SyncookiesFailed",
            "SyncookiesRecv",
            "SyncookiesSent",
            "TCPOFOQueue",
            "TCPRcvQDrop",
            "TCPSynRetrans",
            "TCPTimeouts",
        ],
    ),
    (
        "Udp",
        &["InDatagrams", "InErrors", "NoPorts", "OutDatagrams", "RcvbufErrors", "SndbufErrors"],
    ),
];

pub(super) fn write(page: &mut Page, reader: &mut HostReader) {
    for text in [reader.network_counters(), reader.network_counters_more()] {
        counters(page, &text);
    }
    softnet(page, reader.softnet());
    if let Some((now, most)) = reader.tracked_connections() {
        page.single("node_nf_conntrack_entries", Kind::Gauge, "Connections tracked.", now);
        page.single("node_nf_conntrack_entries_limit", Kind::Gauge, "Most of them.", most);
    }
    clock(page);
}

/// Pairs of lines: `Tcp: name name …` and `Tcp: number number …`.
fn counters(page: &mut Page, text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (Some((protocol, names)), Some((same, numbers))) =
            (pair[0].split_once(": "), pair[1].split_once(": "))
        else {
            continue;
        };
        let wanted = COUNTERS.iter().find(|(name, _)| *name == protocol && same == protocol);
        let Some((_, wanted)) = wanted else { continue };
        let named = names.split_ascii_whitespace().zip(numbers.split_ascii_whitespace());
        for (name, number) in named.filter(|(name, _)| wanted.contains(name)) {
            if let Ok(number) = number.parse::<u64>() {
                let metric = format!("node_netstat_{protocol}_{name}");
                page.single(&metric, Kind::Untyped, "As /proc/net has it.", number);
            }
        }
    }
}

/// A line a processor, hexadecimal: packets, those dropped, and how often the
/// time was not enough.
fn softnet(page: &mut Page, text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let rows: Vec<[u64; 3]> = text.lines().filter_map(softnet_row).collect();
    let columns = [
        ("node_softnet_processed_total", "Packets processed."),
        ("node_softnet_dropped_total", "Packets dropped because a queue was full."),
        ("node_softnet_times_squeezed_total", "Times that processing ran out of its share."),
    ];
    for (at, (name, help)) in columns.into_iter().enumerate() {
        if rows.is_empty() {
            return;
        }
        page.metric(name, Kind::Counter, help);
        for (cpu, row) in rows.iter().enumerate() {
            page.line(name, &format!("cpu=\"{cpu}\""), row[at]);
        }
    }
}

fn softnet_row(line: &str) -> Option<[u64; 3]> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || u64::from_str_radix(words.next()?, 16).ok();
    Some([next()?, next()?, next()?])
}

fn clock(page: &mut Page) {
    let Some(clock) = selvage_memory::kernel_clock() else { return };
    let synchronised = u64::from(clock.synchronised);
    page.single(
        "node_timex_sync_status",
        Kind::Gauge,
        "1 when it is kept by a server.",
        synchronised,
    );
    for (name, help, seconds) in [
        ("node_timex_offset_seconds", "Offset from the server.", clock.offset_seconds),
        ("node_timex_maxerror_seconds", "Largest possible error.", clock.max_error_seconds),
        ("node_timex_estimated_error_seconds", "Estimated error.", clock.estimated_error_seconds),
        ("node_timex_frequency_adjustment_ratio", "Speed of the clock.", clock.frequency_ratio),
    ] {
        page.single(name, Kind::Gauge, help, seconds);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counters_are_read_by_their_names() {
        let mut page = Page::default();
        let text = "Tcp: RtoAlgorithm CurrEstab RetransSegs\nTcp: 1 7 9\nOdd: x\nOdd: 1\n";
        counters(&mut page, text.as_bytes());
        let page = String::from_utf8(page.finish().to_vec()).unwrap();
        assert!(page.contains("\nnode_netstat_Tcp_CurrEstab 7\n"), "{page}");
        assert!(page.contains("\nnode_netstat_Tcp_RetransSegs 9\n"), "{page}");
        assert!(!page.contains("RtoAlgorithm") && !page.contains("Odd"), "{page}");
    }

    #[test]
    fn softnet_is_hexadecimal_and_by_processor() {
        let mut page = Page::default();
        softnet(&mut page, b"0000001f 00000002 00000003 0\n00000020 00000000 00000001 0\n");
        let page = String::from_utf8(page.finish().to_vec()).unwrap();
        assert!(page.contains("node_softnet_processed_total{cpu=\"0\"} 31\n"), "{page}");
        assert!(page.contains("node_softnet_dropped_total{cpu=\"0\"} 2\n"), "{page}");
        assert!(page.contains("node_softnet_times_squeezed_total{cpu=\"1\"} 1\n"), "{page}");
    }
}
