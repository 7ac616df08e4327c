//! Containers, under cAdvisor's names.

use selvage_runtime::{Container, Kind as ContainerKind};

use super::text::{Helped, Kind, Named, Page, label};
use crate::sampler::{Measured, Sampler, Tracked};

/// Labels of a container, as dashboards for Kubernetes join on them.
pub(crate) fn container_labels(container: &Container) -> String {
    let mut labels = String::new();
    let (namespace, pod) = match container.kind {
        ContainerKind::Plain => ("", ""),
        ContainerKind::Sandbox | ContainerKind::App => {
            container.pod_id.split_once('/').unwrap_or(("", container.pod_id.as_str()))
        }
    };
    let name = match container.kind {
        // Name that cAdvisor gives to the container of a pod.
        ContainerKind::Sandbox => "POD",
        ContainerKind::Plain | ContainerKind::App => container.name.as_str(),
    };
    label(&mut labels, "container", name);
    label(&mut labels, "id", &format!("/{}/{}", container.namespace, container.runtime_id));
    label(&mut labels, "image", &container.image);
    label(&mut labels, "name", &container.runtime_id);
    label(&mut labels, "namespace", namespace);
    label(&mut labels, "pod", pod);
    labels
}

/// Seconds of so many nanoseconds.
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

struct Row {
    labels: String,
    measured: Measured,
    started: Option<f64>,
    network: bool,
}

pub(super) fn write(page: &mut Page, sampler: &Sampler) {
    let mut rows = Vec::new();
    sampler.each(|tracked: &Tracked| {
        if let Some(measured) = tracked.latest() {
            let created = tracked.container.created;
            rows.push(Row {
                labels: tracked.labels.clone(),
                measured: measured.clone(),
                started: created.map(|at| at.as_millisecond() as f64 / 1000.0),
                network: tracked.has_network(),
            });
        }
    });
    if rows.is_empty() {
        return;
    }
    cpu(page, &rows);
    memory(page, &rows);
    disks_and_network(page, &rows);
    waiting(page, &rows);
    page.metric("container_start_time_seconds", Kind::Gauge, "When the container was made.");
    for row in &rows {
        if let Some(started) = row.started {
            page.line("container_start_time_seconds", &row.labels, started);
        }
    }
}

type Values<'a, N> = &'a dyn Fn(&Measured) -> N;

fn metric<N: super::text::Number>(
    page: &mut Page,
    rows: &[Row],
    (name, kind, help): (&str, Kind, &str),
    value: Values<'_, N>,
) {
    page.metric(name, kind, help);
    for row in rows {
        page.line(name, &row.labels, value(&row.measured));
    }
}

fn cpu(page: &mut Page, rows: &[Row]) {
    use Kind::Counter;
    page.metric("container_cpu_usage_seconds_total", Counter, "CPU time used.");
    let mut labels = String::new();
    for row in rows {
        labels.clear();
        labels.push_str(&row.labels);
        labels.push_str(",cpu=\"total\"");
        let used = seconds(row.measured.sample.core.cpu_ns);
        page.line("container_cpu_usage_seconds_total", &labels, used);
    }
    metric(
        page,
        rows,
        ("container_cpu_cfs_periods_total", Counter, "Periods of the CPU limit."),
        &|of| of.sample.periods,
    );
    metric(
        page,
        rows,
        ("container_cpu_cfs_throttled_periods_total", Counter, "Periods held back in."),
        &|of| of.sample.throttled_periods,
    );
    metric(
        page,
        rows,
        ("container_cpu_cfs_throttled_seconds_total", Counter, "Time held back."),
        &|of| seconds(of.sample.throttled_ns),
    );
}

fn memory(page: &mut Page, rows: &[Row]) {
    use Kind::{Counter, Gauge};
    metric(
        page,
        rows,
        ("container_memory_usage_bytes", Gauge, "Memory in use, page cache included."),
        &|of| of.sample.core.memory_bytes,
    );
    metric(
        page,
        rows,
        ("container_memory_working_set_bytes", Gauge, "Memory in use less inactive page cache."),
        &|of| of.sample.core.working_set_bytes,
    );
    metric(page, rows, ("container_memory_rss", Gauge, "Memory that belongs to no file."), &|of| {
        of.sample.core.anonymous_bytes
    });
    metric(page, rows, ("container_memory_cache", Gauge, "Page cache."), &|of| {
        of.sample.core.file_bytes
    });
    metric(
        page,
        rows,
        ("container_spec_memory_limit_bytes", Gauge, "Limit of memory, 0 for none."),
        &|of| of.sample.core.memory_limit.unwrap_or(0),
    );
    metric(
        page,
        rows,
        ("container_oom_events_total", Counter, "Processes killed for want of memory."),
        &|of| of.sample.oom_kills,
    );
    metric(page, rows, ("container_threads", Gauge, "Processes and threads."), &|of| {
        of.sample.pids
    });
    metric(
        page,
        rows,
        ("container_threads_max", Gauge, "Limit of processes and threads, 0 for none."),
        &|of| of.sample.pids_limit.unwrap_or(0),
    );
}

fn disks_and_network(page: &mut Page, rows: &[Row]) {
    use Kind::Counter;
    metric(
        page,
        rows,
        ("container_fs_reads_bytes_total", Counter, "Bytes read from disks."),
        &|of| of.sample.io.read_bytes,
    );
    metric(
        page,
        rows,
        ("container_fs_writes_bytes_total", Counter, "Bytes written to disks."),
        &|of| of.sample.io.write_bytes,
    );
    metric(page, rows, ("container_fs_reads_total", Counter, "Reads from disks."), &|of| {
        of.sample.io.reads
    });
    metric(page, rows, ("container_fs_writes_total", Counter, "Writes to disks."), &|of| {
        of.sample.io.writes
    });
    let directions: [Helped<Measured>; 2] = [
        ("container_network_receive_bytes_total", "Bytes received.", |of| of.received_bytes),
        ("container_network_transmit_bytes_total", "Bytes sent.", |of| of.sent_bytes),
    ];
    for (name, help, value) in directions {
        page.metric(name, Counter, help);
        for row in rows.iter().filter(|row| row.network) {
            page.line(name, &row.labels, value(&row.measured));
        }
    }
}

fn waiting(page: &mut Page, rows: &[Row]) {
    let pressure_of = |row: &Row| row.measured.sample.pressure;
    if !rows.iter().any(|row| pressure_of(row).is_some()) {
        return;
    }
    let kinds: [Named<selvage_runtime::cgroup::Pressures>; 3] = [
        ("container_pressure_cpu_waiting_seconds_total", |of| of.cpu.some_us),
        ("container_pressure_memory_waiting_seconds_total", |of| of.memory.some_us),
        ("container_pressure_io_waiting_seconds_total", |of| of.io.some_us),
    ];
    for (name, value) in kinds {
        page.metric(name, Kind::Counter, "Time in which some task waited.");
        for row in rows {
            if let Some(pressure) = pressure_of(row) {
                page.line(name, &row.labels, value(&pressure) as f64 / 1e6);
            }
        }
    }
}
