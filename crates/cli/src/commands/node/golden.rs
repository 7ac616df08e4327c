//! The tables byte for byte, from given answers.
#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use prost_types::Timestamp as Stamp;
use selvage_api::{
    common::Metadata,
    machine::{
        FileInfo, MountStat, Mounts, PlatformInfo, ServiceEvent, ServiceEvents, ServiceHealth,
        ServiceInfo, ServiceList, Upgrade, Version, VersionInfo,
    },
    network::{Interface, Interfaces, Route, RouteProtocol, Routes},
    os::{Container, ContainerInfo, MemInfo, Memory, Process, ProcessInfo, Stat, Stats},
    time::Time,
};

use super::{
    args::SortBy, list, memory, power, processes, services, sheet::Sheet, tables, version,
};
use crate::Format;

fn info(id: &str, pod: &str, image: &str, pid: u32) -> ContainerInfo {
    ContainerInfo {
        namespace: "k8s.io".into(),
        id: id.into(),
        pod_id: pod.into(),
        image: image.into(),
        pid,
        status: "RUNNING".into(),
        ..ContainerInfo::default()
    }
}

fn containers() -> Container {
    let metadata = Some(Metadata { hostname: "10.5.0.2".into(), ..Metadata::default() });
    let pod = "kube-system/coredns-7f";
    let mut odd = info("plain", "plain", "", 7);
    odd.internal_id = "0af3".into();
    odd.problem = "its image was removed".into();
    odd.status = "STOPPED".into();
    Container {
        metadata,
        containers: vec![
            odd,
            info("kube-system/coredns-7f:coredns", pod, "registry.example/coredns:1.6.2", 2041),
            info(pod, pod, "registry.example/pause:3.1", 1980),
        ],
    }
}

#[test]
fn containers_stand_under_their_pod() {
    let answer = containers();
    let sheet = tables::containers(&[("10.5.0.2", &answer), ("b", &Container::default())]);
    assert_eq!(
        sheet.text(Format::Table),
        "\
NODE       NAMESPACE   ID                                  IMAGE                            PID    STATUS
10.5.0.2   k8s.io      kube-system/coredns-7f              registry.example/pause:3.1       1980   RUNNING
10.5.0.2   k8s.io      └─ kube-system/coredns-7f:coredns   registry.example/coredns:1.6.2   2041   RUNNING
10.5.0.2   k8s.io      plain                                                                7      STOPPED
"
    );
    let wide = sheet.text(Format::Wide);
    assert!(wide.contains("STATUS    RUNTIME ID   POD UID   PROBLEM\n"), "{wide}");
    assert!(wide.contains("STOPPED   0af3                   its image was removed\n"), "{wide}");
}

#[test]
fn stats_are_megabytes_and_nanoseconds() {
    let stat = |id: &str, pod: &str, memory_usage, cpu_usage| Stat {
        namespace: "k8s.io".into(),
        id: id.into(),
        pod_id: pod.into(),
        memory_usage,
        cpu_usage,
        ..Stat::default()
    };
    let mut busy = stat("a/b:c", "a/b", 675_840, 1_234_567_890_123);
    busy.cpu_percent = 12.34;
    busy.memory_limit = 64_000_000;
    let answer = Stats { metadata: None, stats: vec![busy, stat("a/b", "a/b", 0, 0)] };
    let sheet = tables::stats(&[("n1", &answer)]);
    assert_eq!(
        sheet.text(Format::Table),
        "\
NODE   NAMESPACE   ID         MEMORY(MB)   CPU
n1     k8s.io      a/b        0.00         0
n1     k8s.io      └─ a/b:c   0.68         1234567890123
"
    );
    let wide = sheet.text(Format::Wide);
    assert!(wide.contains("1234567890123   12.3   64.00"), "{wide}");
}

fn process(pid: i32, cpu_time: f64, resident_memory: u64, args: &str) -> ProcessInfo {
    ProcessInfo {
        pid,
        ppid: 1,
        state: "S".into(),
        threads: 3,
        cpu_time,
        virtual_memory: 1_610_612_736,
        resident_memory,
        command: "init".into(),
        executable: "/sbin/init".into(),
        args: args.into(),
    }
}

#[test]
fn processes_are_sorted_by_memory_or_time() {
    let mut kernel = process(2, 0.0, 0, "");
    kernel.executable.clear();
    kernel.command = "kthreadd".into();
    let answer = Process {
        metadata: None,
        processes: vec![
            process(1, 2.504, 12 << 20, "init splash"),
            kernel,
            process(77, 99.0, 512, "x"),
        ],
    };
    let all = [("n1", &answer)];
    assert_eq!(
        tables::processes(&all, SortBy::Rss).text(Format::Table),
        "\
NODE   PID   STATE   THREADS   CPU-TIME   VIRTMEM   RESMEM   COMMAND
n1     1     S       3         2.50       1.5G      12M      /sbin/init splash
n1     77    S       3         99.00      1.5G      512B     x
n1     2     S       3         0.00       1.5G      0B       kthreadd
"
    );
    let by_time = tables::processes(&all, SortBy::Cpu).text(Format::Table);
    let pids: Vec<&str> =
        by_time.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(pids, ["77", "1", "2"]);
}

#[test]
fn a_command_is_shown_with_its_path_where_that_is_known() {
    let shown = |executable: &str, args: &str| {
        let process = ProcessInfo {
            command: "comm".into(),
            executable: executable.into(),
            args: args.into(),
            ..ProcessInfo::default()
        };
        processes::command(&process)
    };
    assert_eq!(shown("", "ignored"), "comm");
    assert_eq!(shown("/usr/bin/top", "top -d 1 top"), "/usr/bin/top -d 1 top");
    assert_eq!(shown("/usr/bin/top", "top"), "/usr/bin/top");
    assert_eq!(shown("/usr/bin/top", "-top x"), "-top x");
    assert_eq!(shown("/usr/bin/top", ""), "/usr/bin/top");
}

#[test]
fn memory_is_megabytes_and_what_is_used_never_wraps() {
    let memory = |meminfo| Memory { metadata: None, meminfo: Some(meminfo) };
    let usual = memory(MemInfo {
        memtotal: 4_096_000,
        memfree: 1_024_000,
        memavailable: 2_048_000,
        buffers: 102_400,
        cached: 921_600,
        shmem: 10_240,
        ..MemInfo::default()
    });
    let torn = memory(MemInfo { memtotal: 1024, memfree: 2048, ..MemInfo::default() });
    assert_eq!(
        memory::brief(&[("10.5.0.2", &usual), ("10.5.0.3", &torn)]).text(Format::Table),
        "\
NODE       TOTAL   USED   FREE   SHARED   BUFFERS   CACHE   AVAILABLE
10.5.0.2   4000    2000   1000   10       100       900     2000
10.5.0.3   1       0      2      0        0         0       0
"
    );
    let full = memory::full(&[("10.5.0.2", &usual)]);
    assert!(full.starts_with("NODE: 10.5.0.2\nMemTotal: 4096000 kB\nMemFree: 1024000 kB\n"));
    for line in ["\nActiveAnon: 0 kB\n", "\nCommittedAS: 0 kB\n", "\nHugePagesTotal: 0\n"] {
        assert!(full.contains(line), "{full}");
    }
    assert!(full.ends_with("\nDirectMap1G: 0 kB\n"));
    assert_eq!(full.lines().count(), 49);
}

#[test]
fn mounts_are_gigabytes_and_those_without_size_are_left_out() {
    let mount = |filesystem: &str, size, available, mounted_on: &str| MountStat {
        filesystem: filesystem.into(),
        size,
        available,
        mounted_on: mounted_on.into(),
        ..MountStat::default()
    };
    let answer = Mounts {
        metadata: None,
        stats: vec![
            mount("/dev/vda1", 10_000_000_000, 2_500_000_000, "/"),
            mount("proc", 0, 0, "/proc"),
        ],
    };
    assert_eq!(
        tables::mounts(&[("n1", &answer)]).text(Format::Table),
        "\
NODE   FILESYSTEM   SIZE(GB)   USED(GB)   AVAILABLE(GB)   PERCENT USED   MOUNTED ON
n1     /dev/vda1    10.00      7.50       2.50            75.00%         /
"
    );
}

fn service(id: &str, healthy: Option<bool>, events: &[(&str, &str, i64)]) -> ServiceInfo {
    let event = |(state, msg, seconds): &(&str, &str, i64)| ServiceEvent {
        state: (*state).into(),
        msg: (*msg).into(),
        ts: Some(Stamp { seconds: *seconds, nanos: 0 }),
    };
    ServiceInfo {
        id: id.into(),
        state: "Running".into(),
        events: Some(ServiceEvents { events: events.iter().map(event).collect() }),
        health: Some(ServiceHealth {
            unknown: healthy.is_none(),
            healthy: healthy.unwrap_or_default(),
            ..ServiceHealth::default()
        }),
    }
}

#[test]
fn services_tell_their_last_change() {
    let events = [("Preparing", "Creating it", 1000), ("Running", "Started with PID 7", 1100)];
    let mut sick = service("kubelet", Some(false), &events);
    sick.health.as_mut().unwrap().last_message = "connection refused".into();
    let answer = ServiceList {
        metadata: None,
        services: vec![service("ntpd", Some(true), &events), sick, service("odd", None, &[])],
    };
    let now = Timestamp::from_second(4761).unwrap();
    assert_eq!(
        services::table(&[("n1", &answer)], now).text(Format::Table),
        "\
NODE   SERVICE   STATE     HEALTH   LAST CHANGE   LAST EVENT
n1     ntpd      Running   OK       1h1m1s ago    Started with PID 7
n1     kubelet   Running   Fail     1h1m1s ago    Started with PID 7
n1     odd       Running   ?                      <none>
"
    );
    let one = ServiceList { metadata: None, services: vec![answer.services[1].clone()] };
    assert_eq!(
        services::details(&[("n1", &one)], now),
        "\
NODE                  n1
ID                    kubelet
STATE                 Running
HEALTH                Fail
LAST HEALTH MESSAGE   connection refused
EVENTS                [Running]: Started with PID 7 (1h1m1s ago)
                      [Preparing]: Creating it (1h2m41s ago)
"
    );
}

#[test]
fn versions_are_blocks() {
    let answer = Version {
        metadata: None,
        version: Some(VersionInfo {
            tag: "0.1.0".into(),
            sha: "abc".into(),
            built: "today".into(),
            go_version: "rustc 1.95.0".into(),
            os: "linux".into(),
            arch: "amd64".into(),
        }),
        platform: Some(PlatformInfo::default()),
    };
    assert_eq!(
        version::server_text(&[("n1", &answer)], false),
        "Server:\n\tNODE:        n1\n\tTag:         0.1.0\n\tSHA:         abc\n\
         \tBuilt:       today\n\tGo version:  rustc 1.95.0\n\tOS/Arch:     linux/amd64\n"
    );
    assert_eq!(version::server_text(&[("n1", &answer)], true), "n1: 0.1.0\n");
}

#[test]
fn interfaces_have_a_row_for_every_address() {
    let answer = Interfaces {
        metadata: None,
        interfaces: vec![
            Interface {
                index: 2,
                mtu: 1500,
                name: "eth0".into(),
                hardwareaddr: "02:42:0a:05:00:02".into(),
                ipaddress: vec!["10.5.0.2/24".into(), "fe80::1/64".into()],
                ..Interface::default()
            },
            Interface { index: 3, mtu: 65536, name: "bond0".into(), ..Interface::default() },
        ],
    };
    assert_eq!(
        tables::interfaces(&[("n1", &answer)]).text(Format::Table),
        "\
NODE   INDEX   NAME    MAC                 MTU     ADDRESS
n1     2       eth0    02:42:0a:05:00:02   1500    10.5.0.2/24
n1     2       eth0    02:42:0a:05:00:02   1500    fe80::1/64
n1     3       bond0                       65536
"
    );
}

#[test]
fn routes_times_and_upgrades() {
    let mut route = Route {
        interface: "eth0".into(),
        destination: "0.0.0.0/0".into(),
        gateway: "10.5.0.1".into(),
        metric: 1024,
        ..Route::default()
    };
    route.set_protocol(RouteProtocol::RtprotDhcp);
    let routes = tables::routes(&[("n1", &Routes { metadata: None, routes: vec![route] })]);
    assert_eq!(
        routes.text(Format::Table),
        "NODE   INTERFACE   DESTINATION   GATEWAY    METRIC\n\
         n1     eth0        0.0.0.0/0     10.5.0.1   1024\n"
    );
    assert!(routes.text(Format::Wide).contains("dhcp\n"));

    let time = Time {
        metadata: None,
        server: "ntp.example".into(),
        localtime: Some(Stamp { seconds: 1_700_000_000, nanos: 0 }),
        remotetime: Some(Stamp { seconds: 1_700_000_000, nanos: 500_000_000 }),
    };
    assert_eq!(
        tables::times(&[("n1", &time)]).text(Format::Table),
        "NODE   NTP-SERVER    LOCAL-TIME             REMOTE-TIME\n\
         n1     ntp.example   2023-11-14T22:13:20Z   2023-11-14T22:13:20.5Z\n"
    );

    let upgrade = Upgrade { metadata: None, ack: "Upgrade request received".into() };
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    assert_eq!(
        power::upgrades(&[("n1", &upgrade)], now).text(Format::Table),
        "NODE   ACK                        STARTED\n\
         n1     Upgrade request received   2023-11-14T22:13:20Z\n"
    );
}

#[test]
fn files_in_full() {
    let file = FileInfo {
        size: 2048,
        mode: 1 << 27 | 0o777,
        modified: 1_700_000_000,
        relative_name: "etc/localtime".into(),
        link: "/usr/share/zoneinfo/UTC".into(),
        ..FileInfo::default()
    };
    let mut sheet = Sheet::new(&["MODE", "SIZE(B)", "LASTMOD", "NAME"]);
    sheet.push(list::long(&file, false));
    sheet.push(list::long(&file, true));
    assert_eq!(
        sheet.text(Format::Table),
        "\
MODE         SIZE(B)   LASTMOD       NAME
Lrwxrwxrwx   2048      Nov 14 2023   etc/localtime -> /usr/share/zoneinfo/UTC
Lrwxrwxrwx   2K        Nov 14 2023   etc/localtime -> /usr/share/zoneinfo/UTC
"
    );
}

#[test]
fn nothing_of_a_machine_steers_the_terminal_or_breaks_a_row() {
    let mut evil = containers();
    evil.containers[0].image = "a\x1b[2Jb\nc".into();
    let text = tables::containers(&[("n1", &evil)]).text(Format::Table);
    assert!(!text.contains('\x1b'));
    assert_eq!(text.lines().count(), 4);
}
