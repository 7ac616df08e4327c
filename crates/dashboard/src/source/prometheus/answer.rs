//! Answers of Prometheus' HTTP API. Whatever is not as it should be is left
//! out: the numbers come from exporters that anybody may have written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvage_api::selvage::dashboard::Severity;
use serde_json::Value;

use crate::{
    facts::{Alert, Exporter, Filesystem},
    source::Failure,
    text::{outside, quoted},
};

/// Most that is taken of one answer.
const MOST_SERIES: usize = 50_000;
const MOST_ALERTS: usize = 1000;
const MOST_FILESYSTEMS: usize = 64;
const NAME: usize = 200;
const DETAIL: usize = 1000;
/// Alerts over our own metrics repeat problems that are there already; as
/// problems they would keep themselves alive.
const OWN: &str = "Selvage";

/// The data of an answer that says that it is one.
pub(super) fn data(body: &[u8]) -> Result<Value, Failure> {
    let failed = |reason: String| Failure::Failed(reason);
    let mut answer: Value = serde_json::from_slice(body)
        .map_err(|error| failed(format!("the answer is no JSON: {error}")))?;
    if answer["status"] != "success" {
        let error = answer["error"].as_str().unwrap_or("the answer has no status");
        return Err(failed(format!("Prometheus says: {}", outside(error, NAME))));
    }
    Ok(answer["data"].take())
}

/// Alerts that fire.
pub(super) fn alerts(data: &Value, base: &str) -> Vec<Alert> {
    let all = data["alerts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut found: Vec<Alert> =
        all.iter().take(MOST_ALERTS).filter_map(|one| alert(one, base)).collect();
    found.sort_by(|a, b| a.object.cmp(&b.object));
    found.dedup_by(|a, b| a.object == b.object);
    found
}

fn alert(alert: &Value, base: &str) -> Option<Alert> {
    let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default();
    let note = |name: &str| alert["annotations"][name].as_str().unwrap_or_default();
    let name = label("alertname");
    if alert["state"] != "firing" || name.is_empty() || name.starts_with(OWN) {
        return None;
    }
    let severity = match label("severity") {
        // The alert that always fires, to show that alerts arrive.
        "none" => return None,
        "critical" | "error" | "page" | "emergency" => Severity::Critical,
        "info" | "notice" | "information" => Severity::Notice,
        _ => Severity::Warning,
    };
    let labels = alert["labels"].as_object()?;
    let others = labels.iter().filter(|(key, _)| *key != "alertname" && *key != "severity");
    let others: Vec<String> = others
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let summary = Some(note("summary")).filter(|text| !text.is_empty());
    Some(Alert {
        name: outside(name, NAME),
        object: outside(&format!("{name} {}", others.join(" ")), NAME).trim_end().to_owned(),
        severity,
        summary: outside(summary.unwrap_or(name), NAME),
        detail: outside(note("description"), DETAIL),
        since: alert["activeAt"].as_str().and_then(|at| at.parse::<Timestamp>().ok()),
        runbook: link(note("runbook_url")).unwrap_or_else(|| search(base, name)),
        command: format!(
            "promtool query instant {} {}",
            quoted(base),
            quoted(&format!("ALERTS{{alertname={name:?}}}"))
        ),
    })
}

/// The page of Prometheus about an alert.
fn search(base: &str, name: &str) -> String {
    let page = reqwest::Url::parse_with_params(&format!("{base}/alerts"), [("search", name)]);
    page.map(|page| page.to_string()).unwrap_or_default()
}

/// An address that a browser may be sent to.
fn link(text: &str) -> Option<String> {
    let url: reqwest::Url = text.parse().ok()?;
    let fits = matches!(url.scheme(), "http" | "https") && text.len() <= DETAIL;
    fits.then(|| url.to_string())
}

/// One number with its labels.
struct Sample<'a> {
    labels: &'a Value,
    value: f64,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> &str {
        self.labels[name].as_str().unwrap_or_default()
    }
}

/// Numbers that are numbers.
fn samples(data: &Value) -> impl Iterator<Item = Sample<'_>> {
    let all = data["result"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().take(MOST_SERIES).filter_map(|series| {
        let value: f64 = series["value"][1].as_str()?.parse().ok()?;
        let fits = value.is_finite() && value >= 0.0;
        fits.then_some(Sample { labels: &series["metric"], value })
    })
}

/// Machines with an exporter: room and memory of one answer, shares of
/// processor time of the other.
pub(super) fn exporters(room: &Value, cpu: &Value) -> Vec<Exporter> {
    let mut found: BTreeMap<String, Exporter> = BTreeMap::new();
    let mut disks: BTreeMap<(String, String), Filesystem> = BTreeMap::new();
    for sample in samples(room) {
        let instance = outside(sample.label("instance"), NAME);
        let bytes = sample.value as u64;
        let host = found.entry(instance.clone()).or_insert_with_key(|name| new(name));
        let disk = || (instance.clone(), outside(sample.label("mountpoint"), NAME));
        match sample.label("__name__") {
            "node_memory_MemTotal_bytes" => host.memory_bytes = bytes,
            "node_memory_MemAvailable_bytes" => host.memory_available = bytes,
            "node_filesystem_size_bytes" => {
                let entry = disks.entry(disk()).or_default();
                (entry.size, entry.device) = (bytes, outside(sample.label("device"), NAME));
            }
            "node_filesystem_avail_bytes" => {
                disks.entry(disk()).or_default().available = Some(bytes);
            }
            _ => {}
        }
    }
    for sample in samples(cpu) {
        if let Some(host) = found.get_mut(&outside(sample.label("instance"), NAME)) {
            host.cpu_percent = Some(sample.value.min(100.0));
        }
    }
    for ((instance, mount), disk) in disks {
        let Some(host) = found.get_mut(&instance) else { continue };
        keep(&mut host.filesystems, Filesystem { mount, ..disk });
    }
    found.into_values().collect()
}

fn new(name: &str) -> Exporter {
    Exporter { instance: name.to_owned(), ..Exporter::default() }
}

/// A device that is mounted in several places is one file system.
fn keep(known: &mut Vec<Filesystem>, one: Filesystem) {
    let whole = one.size > 0 && one.available.is_some_and(|free| free <= one.size);
    let twice = known.iter().any(|other| !one.device.is_empty() && other.device == one.device);
    if whole && !twice && known.len() < MOST_FILESYSTEMS {
        known.push(one);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn firing(labels: Value, annotations: Value) -> Value {
        json!({"state": "firing", "labels": labels, "annotations": annotations,
               "activeAt": "2026-11-15T11:00:00.5Z", "value": "1e+00"})
    }

    #[test]
    fn alerts_that_fire_are_taken_with_their_severity() {
        let data = json!({"alerts": [
            firing(json!({"alertname": "DiskBroken", "severity": "page", "instance": "a:9100"}),
                   json!({"summary": "It is broken", "runbook_url": "https://wiki.example/disk"})),
            firing(json!({"alertname": "Slow"}), json!({"runbook_url": "javascript:alert(1)"})),
            firing(json!({"alertname": "Watchdog", "severity": "none"}), json!({})),
            firing(json!({"alertname": "SelvageDown", "severity": "critical"}), json!({})),
            {"state": "pending", "labels": {"alertname": "Later"}},
            {"state": "firing"}, 7, null,
        ]});
        let found = alerts(&data, "http://prometheus.example:9090");
        let names: Vec<&str> = found.iter().map(|alert| alert.name.as_str()).collect();
        assert_eq!(names, ["DiskBroken", "Slow"]);
        assert_eq!(found[0].severity, Severity::Critical);
        assert_eq!(found[0].object, "DiskBroken instance=a:9100");
        assert_eq!(found[0].runbook, "https://wiki.example/disk");
        assert!(found[0].since.is_some());
        assert_eq!(found[1].severity, Severity::Warning);
        assert_eq!(found[1].runbook, "http://prometheus.example:9090/alerts?search=Slow");
        assert!(
            found[1].command.ends_with(r#" 'ALERTS{alertname="Slow"}'"#),
            "{}",
            found[1].command
        );
    }

    #[test]
    fn numbers_that_are_none_are_left_out() {
        let line = |name: &str, mount: &str, value: &str| {
            let metric = json!({"__name__": name, "instance": "a:9100", "mountpoint": mount,
                                "device": format!("/dev{mount}")});
            json!({"metric": metric, "value": [1.0, value]})
        };
        let room = json!({"result": [
            line("node_memory_MemTotal_bytes", "", "1000"),
            line("node_memory_MemAvailable_bytes", "", "NaN"),
            line("node_filesystem_size_bytes", "/", "100"),
            line("node_filesystem_avail_bytes", "/", "40"),
            line("node_filesystem_size_bytes", "/half", "100"),
            line("node_filesystem_size_bytes", "/inf", "+Inf"),
            line("node_filesystem_avail_bytes", "/inf", "1"),
            line("node_filesystem_size_bytes", "/odd", "10"),
            line("node_filesystem_avail_bytes", "/odd", "11"),
            {"metric": {}, "value": []}, {"value": 3}, null,
        ]});
        let cpu = json!({"result": [{"metric": {"instance": "a:9100"}, "value": [1.0, "250"]}]});
        let found = exporters(&room, &cpu);
        let host = found.iter().find(|host| host.instance == "a:9100").unwrap();
        assert_eq!((host.memory_bytes, host.memory_available), (1000, 0));
        assert_eq!(host.cpu_percent, Some(100.0));
        let mounts: Vec<&str> = host.filesystems.iter().map(|disk| disk.mount.as_str()).collect();
        assert_eq!(mounts, ["/"]);
    }

    #[test]
    fn an_error_is_shown_verbatim_and_bounded() {
        let long = json!({"status": "error", "error": "x".repeat(10_000)}).to_string();
        let failed = data(long.as_bytes());
        let explained = matches!(&failed, Err(Failure::Failed(reason))
            if reason.starts_with("Prometheus says: xxx") && reason.len() < 300);
        assert!(explained, "{failed:?}");
        assert!(data(b"<html>").is_err());
        assert!(data(b"[]").is_err());
    }
}
