//! Metrics that are looked up when somebody asks.

use std::{fmt, fs};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::tasks::{Status, Tasks};

/// The kernel counts time for programs in hundredths of a second, whatever it
/// does inside.
const TICKS_PER_SECOND: f64 = 100.0;

/// This process, by `/proc/self`. What cannot be read is left out.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(stat) = Stat::read() {
            let seconds = stat.cpu_ticks as f64 / TICKS_PER_SECOND;
            let metric = ConstCounter::new(seconds);
            let help = "CPU time used by this process";
            show(&mut encoder, "process_cpu_seconds", help, &metric)?;
            if let Some(boot) = boot_time() {
                let started = boot as f64 + stat.start_ticks as f64 / TICKS_PER_SECOND;
                let help = "When this process started, in seconds since 1970";
                let metric = ConstGauge::new(started);
                show(&mut encoder, "process_start_time_seconds", help, &metric)?;
            }
        }
        let gauges = [
            ("process_resident_memory_bytes", "Memory in RAM", resident_bytes()),
            ("process_open_fds", "Open file descriptors", open_files()),
            ("process_max_fds", "Limit of open file descriptors", file_limit()),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                show(&mut encoder, name, help, &ConstGauge::new(value))?;
            }
        }
        Ok(())
    }
}

fn show(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // The command's name, in brackets, may hold anything; count from its end.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self { cpu_ticks: number(11)? + number(12)?, start_ticks: number(19)? })
    }
}

fn boot_time() -> Option<u64> {
    labelled("/proc/stat", "btime")?.parse().ok()
}

fn resident_bytes() -> Option<i64> {
    let kib: i64 = labelled("/proc/self/status", "VmRSS:")?.parse().ok()?;
    Some(kib * 1024)
}

fn file_limit() -> Option<i64> {
    labelled("/proc/self/limits", "Max open files")?.parse().ok()
}

/// The first word after the label at the head of a line.
fn labelled(path: &str, label: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next().map(str::to_owned)
}

fn open_files() -> Option<i64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the directory we count in.
    i64::try_from(count).ok().map(|count| count - 1)
}

type Column = fn(&Status) -> u64;

/// Failures and restarts by task.
#[derive(Debug)]
pub(super) struct TaskCounts(pub(super) Tasks);

impl Collector for TaskCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let list = self.0.list();
        let columns: [(&str, &str, Column); 2] = [
            ("selvage_task_failures", "Failures of background tasks", |task| task.failures),
            ("selvage_task_restarts", "Restarts of background tasks", |task| task.restarts),
        ];
        for (name, help, column) in columns {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for status in &list {
                let labels = [("task", status.name.as_str())];
                let counter = ConstCounter::new(column(status));
                counter.encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
