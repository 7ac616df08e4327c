//! Volumes, backups, Ceph and the Kubernetes objects around it.

use std::fmt::Write as _;

use selvage_api::selvage::{dashboard::Severity, volumes::JobState};

use super::{Context, Finding};
use crate::{
    facts::{Backups, Job, Resource, each, object},
    text::{outside, quoted},
};

const NAME: usize = 200;

pub(super) fn volume_group_full(context: &Context<'_>, found: &mut Vec<Finding>) {
    for group in context.facts.volumes.iter().flat_map(|volumes| &volumes.groups) {
        if group.missing || group.size == 0 {
            continue;
        }
        let share = group.size.saturating_sub(group.free) as f64 / group.size as f64;
        let (word, severity) = if share >= context.thresholds.full {
            ("is full", Severity::Critical)
        } else if share >= context.thresholds.near_full {
            ("is nearly full", Severity::Warning)
        } else {
            continue;
        };
        let summary = format!("Volume group {} {word}", outside(&group.object.name, NAME));
        let command = "selvage volume list".to_owned();
        let detail = format!("{:.0} % of it is in use", share * 100.0);
        let finding = Finding::new(&group.object, summary, command).severity(severity);
        found.push(finding.detail(&detail));
    }
}

/// Storage that is nearly full already has a problem of its own.
pub(super) fn full_soon(context: &Context<'_>, found: &mut Vec<Finding>) {
    for room in context.capacity {
        let share = room.used_bytes as f64 / room.total_bytes.max(1) as f64;
        let (Some(object), Some(full_at), true) =
            (&room.object, room.full_at, share < room.near_full)
        else {
            continue;
        };
        let left = |at: &prost_types::Timestamp| at.seconds - context.now.as_second();
        if left(&full_at).unsigned_abs() > context.thresholds.full_within.as_secs() {
            continue;
        }
        let name = outside(&object.name, NAME);
        let summary = format!("{name} will be full in {}", span(left(&full_at)));
        let earliest = room.full_earliest.as_ref().unwrap_or(&full_at);
        let mut detail = format!(
            "{:.0} % of it is in use. If it goes on like this it is full in {} at the earliest",
            share * 100.0,
            span(left(earliest)),
        );
        if let Some(latest) = &room.full_latest {
            let _ = write!(detail, ", in {} at the latest", span(left(latest)));
        }
        detail.push('.');
        let command = match object.kind.as_str() {
            "ceph" => "ceph df".to_owned(),
            "volume_group" => "selvage volume list".to_owned(),
            _ => "df -h".to_owned(),
        };
        found.push(Finding::new(object, summary, command).detail(&detail));
    }
}

/// A time from now on, in words.
fn span(seconds: i64) -> String {
    let hours = seconds.max(0) / 3600;
    let plural = |count: i64, unit: &str| {
        if count == 1 { format!("1 {unit}") } else { format!("{count} {unit}s") }
    };
    if hours < 48 { plural(hours, "hour") } else { plural(hours / 24, "day") }
}

pub(super) fn volume_group_missing(context: &Context<'_>, found: &mut Vec<Finding>) {
    let groups = context.facts.volumes.iter().flat_map(|volumes| &volumes.groups);
    for group in groups.filter(|group| group.missing) {
        let summary = format!("Volume group {} is not there", outside(&group.object.name, NAME));
        found.push(Finding::new(&group.object, summary, "selvage volume classes".into()));
    }
}

/// Returns whether two names, each NAME or GROUP/NAME, can be of one volume.
pub(crate) fn same_volume(one: &str, other: &str) -> bool {
    let parts = |full: &str| match full.rsplit_once('/') {
        Some((group, name)) => (Some(group.to_owned()), name.to_owned()),
        None => (None, full.to_owned()),
    };
    let ((group, name), (other_group, other_name)) = (parts(one), parts(other));
    name == other_name && (group == other_group || group.is_none() || other_group.is_none())
}

/// The last backup of a volume that has ended.
fn last<'a>(backups: &'a Backups, volume: &str) -> Option<&'a Job> {
    let of_volume = |job: &&Job| job.backup && same_volume(&job.volume, volume);
    backups
        .jobs
        .iter()
        .filter(of_volume)
        .filter(|job| job.ended.is_some())
        .max_by_key(|job| job.ended)
}

pub(super) fn backup_failed(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(backups) = &context.facts.backups else { return };
    let mut volumes: Vec<&str> =
        backups.jobs.iter().filter(|job| job.backup).map(|job| job.volume.as_str()).collect();
    volumes.sort_unstable();
    volumes.dedup();
    for volume in volumes {
        let Some(job) = last(backups, volume).filter(|job| job.state == JobState::JobFailed) else {
            continue;
        };
        let object = object("backup", volume);
        let summary = format!("The last backup of {} failed", outside(volume, NAME));
        let finding = Finding::new(&object, summary, "selvage backup list".into());
        found.push(finding.detail(&job.error).since(job.ended));
    }
}

pub(super) fn backup_late(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(backups) = &context.facts.backups else { return };
    for schedule in &backups.schedules {
        let done = |job: &&Job| job.state == JobState::JobComplete;
        let ended = backups
            .jobs
            .iter()
            .filter(done)
            .filter(|job| job.backup && same_volume(&job.volume, &schedule.volume))
            .filter_map(|job| job.ended)
            .max();
        let late = ended.is_some_and(|ended| {
            let age = context.now.as_second().saturating_sub(ended.as_second());
            age > i64::try_from(schedule.every_seconds.saturating_mul(2)).unwrap_or(i64::MAX)
        });
        if !late && schedule.error.is_empty() {
            continue;
        }
        let name = outside(&schedule.volume, NAME);
        let summary = match late {
            true => format!("The backup of {name} is overdue"),
            false => format!("The backup of {name} cannot begin"),
        };
        let finding =
            Finding::new(&schedule.object, summary, "selvage backup schedule list".into());
        found.push(finding.detail(&schedule.error).since(ended.filter(|_| late)));
    }
}

pub(super) fn ceph_check(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(storage) = &context.facts.storage else { return };
    for check in storage.checks.iter().filter(|check| !check.muted) {
        let object = object("ceph", check.code.clone());
        let severity = if check.is_error { Severity::Critical } else { Severity::Warning };
        let summary = format!("Ceph: {}", outside(&check.message, NAME));
        let finding = Finding::new(&object, summary, "ceph health detail".into());
        found.push(finding.severity(severity).detail(&check.detail.join("; ")));
    }
}

pub(super) fn ceph_crash(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(storage) = &context.facts.storage else { return };
    for crash in &storage.crashes {
        let object = object("ceph", outside(crash, NAME));
        let summary = format!("Ceph: {} crashed", outside(crash, NAME));
        found.push(Finding::new(&object, summary, "ceph crash ls-new".into()));
    }
}

pub(super) fn kubernetes_node(context: &Context<'_>, found: &mut Vec<Finding>) {
    for node in each(&context.facts.nodes) {
        let (word, severity) = match (node.ready, node.cordoned) {
            (Some(true), false) => continue,
            (Some(true), true) => ("takes no new pods", Severity::Notice),
            _ => ("is not ready", Severity::Critical),
        };
        let object = object("kubernetes", format!("Node/{}", node.name));
        let summary = format!("Kubernetes node {} {word}", outside(&node.name, NAME));
        let command = format!("kubectl describe node {}", quoted(&node.name));
        found.push(Finding::new(&object, summary, command).severity(severity));
    }
}

pub(super) fn kubernetes_object(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(objects) = &context.facts.objects else { return };
    let all = objects.resources.iter().chain(&objects.deployments);
    for Resource { kind, namespace, name, message, .. } in all.filter(|r| r.ready == Some(false)) {
        let object = object("kubernetes", format!("{kind}/{namespace}/{name}"));
        let summary = format!("{kind} {} is not ready", outside(name, NAME));
        let command = format!(
            "kubectl describe -n {} {} {}",
            quoted(namespace),
            quoted(&kind.to_lowercase()),
            quoted(name)
        );
        found.push(Finding::new(&object, summary, command).detail(message));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;
    use selvage_api::selvage::dashboard::Capacity;

    use super::*;
    use crate::{
        facts::{Facts, Schedule},
        rules::Thresholds,
    };

    const NOW: i64 = 1_800_000_000;

    fn room(used: u64, [at, earliest, latest]: [Option<i64>; 3]) -> Capacity {
        let days = |days: Option<i64>| {
            days.map(|days| prost_types::Timestamp { seconds: NOW + days * 86_400, nanos: 0 })
        };
        Capacity {
            object: Some(object("volume_group", "vg")),
            used_bytes: used,
            total_bytes: 100,
            near_full: 0.85,
            full: 0.95,
            full_at: days(at),
            full_earliest: days(earliest),
            full_latest: days(latest),
            ..Capacity::default()
        }
    }

    fn found(room: Capacity) -> Option<(String, String)> {
        let context = Context {
            facts: &Facts::default(),
            capacity: &[room],
            sources: &[],
            thresholds: &Thresholds::default(),
            now: Timestamp::from_second(NOW).unwrap(),
        };
        let mut findings = Vec::new();
        full_soon(&context, &mut findings);
        findings.pop().map(|finding| (finding.summary, finding.detail))
    }

    #[test]
    fn what_will_be_full_within_days_is_a_problem_today() {
        let (summary, detail) = found(room(60, [Some(5), Some(1), Some(9)])).unwrap();
        assert_eq!(summary, "vg will be full in 5 days");
        let bounds = "full in 24 hours at the earliest, in 9 days at the latest.";
        assert!(
            detail.starts_with("60 % of it is in use.") && detail.ends_with(bounds),
            "{detail}"
        );
        let (_, open) = found(room(60, [Some(5), Some(1), None])).unwrap();
        assert!(open.ends_with("full in 24 hours at the earliest."), "{open}");
    }

    /// Volumes whose backups are told of as overdue.
    fn late(schedules: &[&str], done: &[(&str, i64)]) -> Vec<String> {
        let job = |(volume, age): &(&str, i64)| Job {
            volume: (*volume).into(),
            state: JobState::JobComplete,
            error: String::new(),
            ended: Timestamp::from_second(NOW - age).ok(),
            backup: true,
        };
        let schedule = |volume: &&str| Schedule {
            object: object("backup", *volume),
            volume: (*volume).into(),
            every_seconds: 60,
            error: String::new(),
        };
        let backups = Backups {
            jobs: done.iter().map(job).collect(),
            schedules: schedules.iter().map(schedule).collect(),
        };
        let facts = Facts { backups: Some(backups.into()), ..Facts::default() };
        let context = Context {
            facts: &facts,
            capacity: &[],
            sources: &[],
            thresholds: &Thresholds::default(),
            now: Timestamp::from_second(NOW).unwrap(),
        };
        let mut findings = Vec::new();
        backup_late(&context, &mut findings);
        findings.into_iter().map(|finding| finding.summary).collect()
    }

    #[test]
    fn a_backup_of_another_volume_is_none_of_this_one() {
        let overdue = ["The backup of data is overdue"];
        assert_eq!(late(&["data"], &[("vg/data", 1000)]), overdue);
        assert_eq!(late(&["data"], &[("vg/data", 1000), ("vg/data", 10)]), [""; 0]);
        assert_eq!(late(&["data"], &[("vg/data", 1000), ("vg/mydata", 10)]), overdue);
        let overdue = ["The backup of vg/data is overdue"];
        assert_eq!(late(&["vg/data"], &[("vg/data", 1000), ("vg2/data", 10)]), overdue);
        assert_eq!(late(&["vg/data"], &[("vg/data", 1000), ("data", 10)]), [""; 0]);
    }

    #[test]
    fn distant_uncertain_or_known_shortages_are_no_problems() {
        assert_eq!(found(room(60, [Some(8), Some(1), Some(9)])), None);
        assert_eq!(found(room(60, [None, Some(1), None])), None);
        assert_eq!(found(room(90, [Some(5), Some(1), Some(9)])), None);
    }
}
