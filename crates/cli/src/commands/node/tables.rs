//! The tables, as the clients of the originals print them.

use selvage_api::{machine, network, os, time};

use super::{processes, sheet::Sheet};

/// Answers with the machines they come from.
pub(crate) type From<'a, T> = [(&'a str, &'a T)];

/// Whatever is in a pod hangs under its sandbox.
fn branch(id: &str, pod: &str) -> String {
    if id == pod { id.to_owned() } else { format!("└─ {id}") }
}

pub(crate) fn containers(answers: &From<'_, os::Container>) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NODE",
        "NAMESPACE",
        "ID",
        "IMAGE",
        "PID",
        "STATUS",
        "+RUNTIME ID",
        "+POD UID",
        "+PROBLEM",
    ]);
    for (node, answer) in answers {
        let mut all: Vec<&os::ContainerInfo> = answer.containers.iter().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        for container in all {
            sheet.push([
                (*node).to_owned(),
                container.namespace.clone(),
                branch(&container.id, &container.pod_id),
                container.image.clone(),
                container.pid.to_string(),
                container.status.clone(),
                container.internal_id.clone(),
                container.pod_uid.clone(),
                container.problem.clone(),
            ]);
        }
    }
    sheet
}

pub(crate) fn stats(answers: &From<'_, os::Stats>) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NODE",
        "NAMESPACE",
        "ID",
        "MEMORY(MB)",
        "CPU",
        "+CPU%",
        "+LIMIT(MB)",
        "+PIDS",
        "+READ(MB)",
        "+WRITTEN(MB)",
        "+RECEIVED(MB)",
        "+SENT(MB)",
        "+OOM KILLS",
    ]);
    let mega = |bytes: u64| format!("{:.2}", bytes as f64 * 1e-6);
    for (node, answer) in answers {
        let mut all: Vec<&os::Stat> = answer.stats.iter().collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        for stat in all {
            sheet.push([
                (*node).to_owned(),
                stat.namespace.clone(),
                branch(&stat.id, &stat.pod_id),
                mega(stat.memory_usage),
                stat.cpu_usage.to_string(),
                format!("{:.1}", stat.cpu_percent),
                if stat.memory_limit == 0 { "-".into() } else { mega(stat.memory_limit) },
                stat.pids.to_string(),
                mega(stat.read_bytes),
                mega(stat.written_bytes),
                mega(stat.received_bytes),
                mega(stat.sent_bytes),
                stat.oom_kills.to_string(),
            ]);
        }
    }
    sheet
}

pub(crate) fn processes(answers: &From<'_, os::Process>, sort: super::args::SortBy) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NODE", "PID", "+PPID", "STATE", "THREADS", "CPU-TIME", "VIRTMEM", "RESMEM", "COMMAND",
    ]);
    for (node, answer) in answers {
        for process in processes::sorted(&answer.processes, sort) {
            sheet.push([
                (*node).to_owned(),
                process.pid.to_string(),
                process.ppid.to_string(),
                process.state.clone(),
                process.threads.to_string(),
                format!("{:.2}", process.cpu_time),
                super::size::binary(process.virtual_memory),
                super::size::binary(process.resident_memory),
                processes::command(process),
            ]);
        }
    }
    sheet
}

pub(crate) fn mounts(answers: &From<'_, machine::Mounts>) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NODE",
        "FILESYSTEM",
        "SIZE(GB)",
        "USED(GB)",
        "AVAILABLE(GB)",
        "PERCENT USED",
        "MOUNTED ON",
    ]);
    let giga = |bytes: u64| format!("{:.2}", bytes as f64 * 1e-9);
    for (node, answer) in answers {
        for mount in answer.stats.iter().filter(|mount| mount.size > 0) {
            let used = mount.size.saturating_sub(mount.available);
            sheet.push([
                (*node).to_owned(),
                mount.filesystem.clone(),
                giga(mount.size),
                giga(used),
                giga(mount.available),
                format!("{:.2}%", 100.0 * used as f64 / mount.size as f64),
                mount.mounted_on.clone(),
            ]);
        }
    }
    sheet
}

pub(crate) fn interfaces(answers: &From<'_, network::Interfaces>) -> Sheet {
    let mut sheet = Sheet::new(&["NODE", "INDEX", "NAME", "MAC", "MTU", "ADDRESS"]);
    for (node, answer) in answers {
        for interface in &answer.interfaces {
            let row = |address: &str| {
                [
                    (*node).to_owned(),
                    interface.index.to_string(),
                    interface.name.clone(),
                    interface.hardwareaddr.clone(),
                    interface.mtu.to_string(),
                    address.to_owned(),
                ]
            };
            interface.ipaddress.iter().for_each(|address| sheet.push(row(address)));
            if interface.ipaddress.is_empty() {
                sheet.push(row(""));
            }
        }
    }
    sheet
}

pub(crate) fn routes(answers: &From<'_, network::Routes>) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NODE",
        "INTERFACE",
        "DESTINATION",
        "GATEWAY",
        "METRIC",
        "+SOURCE",
        "+PROTOCOL",
    ]);
    for (node, answer) in answers {
        for route in &answer.routes {
            let protocol = route.protocol().as_str_name().trim_start_matches("RTPROT_");
            sheet.push([
                (*node).to_owned(),
                route.interface.clone(),
                route.destination.clone(),
                route.gateway.clone(),
                route.metric.to_string(),
                route.source.clone(),
                protocol.to_lowercase(),
            ]);
        }
    }
    sheet
}

pub(crate) fn times(answers: &From<'_, time::Time>) -> Sheet {
    let mut sheet = Sheet::new(&["NODE", "NTP-SERVER", "LOCAL-TIME", "REMOTE-TIME"]);
    for (node, answer) in answers {
        let stamp = |seconds: i64, nanos: i32| {
            jiff::Timestamp::new(seconds, nanos).map_or(String::new(), |time| time.to_string())
        };
        let local = answer.localtime.as_ref();
        let remote = answer.remotetime.as_ref();
        sheet.push([
            (*node).to_owned(),
            answer.server.clone(),
            local.map_or(String::new(), |time| stamp(time.seconds, time.nanos)),
            remote.map_or(String::new(), |time| stamp(time.seconds, time.nanos)),
        ]);
    }
    sheet
}
