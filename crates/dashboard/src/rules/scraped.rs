//! Rules over a Prometheus: its alerts, and machines that it scrapes.

use selvage_api::selvage::dashboard::Severity;

use super::{Context, Finding};
use crate::{
    facts::{each, object},
    snapshot::filesystem,
    text::{outside, quoted},
};

const NAME: usize = 200;
/// Share of memory below which there is too little.
const LOW: f64 = 0.05;

pub(super) fn prometheus_alert(context: &Context<'_>, found: &mut Vec<Finding>) {
    for alert in each(&context.facts.alerts) {
        let object = object("alert", alert.object.clone());
        let finding = Finding::new(&object, alert.summary.clone(), alert.command.clone());
        let finding = finding.severity(alert.severity).since(alert.since).detail(&alert.detail);
        found.push(finding.runbook(&alert.runbook));
    }
}

pub(super) fn filesystem_full(context: &Context<'_>, found: &mut Vec<Finding>) {
    for host in each(&context.facts.exporters) {
        for disk in &host.filesystems {
            let (word, severity) = match disk.share() {
                share if share >= context.thresholds.full => ("is full", Severity::Critical),
                share if share >= context.thresholds.near_full => {
                    ("is nearly full", Severity::Warning)
                }
                _ => continue,
            };
            let (mount, name) = (outside(&disk.mount, NAME), outside(&host.instance, NAME));
            let summary = format!("File system {mount} of {name} {word}");
            let command = format!("du -xhd1 {} | sort -h", quoted(&disk.mount));
            let detail = format!("{:.0} % of it is in use", disk.share() * 100.0);
            let finding = Finding::new(&filesystem(host, disk), summary, command);
            found.push(finding.severity(severity).detail(&detail));
        }
    }
}

/// Of machines whose own agent does not tell already.
pub(super) fn exporter_memory_low(context: &Context<'_>, found: &mut Vec<Finding>) {
    for host in each(&context.facts.exporters) {
        let share = host.memory_available as f64 / host.memory_bytes.max(1) as f64;
        let address = |own: &str| own.rsplit_once(':').map_or(own, |(host, _)| host).to_owned();
        let own = each(&context.facts.machines).any(|machine| {
            let name = address(&host.instance);
            name == machine.name || name == address(&machine.address)
        });
        if own || host.memory_bytes == 0 || host.memory_available == 0 || share >= LOW {
            continue;
        }
        let object = object("exporter", host.instance.clone());
        let summary = format!("{} is short of memory", outside(&host.instance, NAME));
        found.push(Finding::new(&object, summary, "ps aux --sort=-rss | head".into()));
    }
}
