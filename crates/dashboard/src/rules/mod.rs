//! The rules that find problems, as data: one row each, with what it looks for
//! and how bad that is. `docs/dashboard.md` has a section for every row.

mod edge;
mod machines;
mod scraped;
mod storage;
mod system;

use std::time::Duration;

use jiff::Timestamp;
use selvage_api::selvage::dashboard::{Capacity, Object, Problem, Severity};

pub(crate) use self::{
    machines::{MachineState, hosts, state},
    storage::same_volume,
};
use crate::{board::SourceState, facts::Facts, text};

/// Longest detail that is kept of what a part or a tenant wrote.
const LONGEST_DETAIL: usize = 1000;

/// Limits from which something is a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// Shares of a volume group in use, 0 to 1.
    pub near_full: f64,
    pub full: f64,
    /// Time before storage is full at which it becomes a problem.
    pub full_within: Duration,
    /// A machine that has not reported for so long is away.
    pub machine_away: Duration,
    /// A certificate that ends so soon should have been renewed.
    pub certificate: Duration,
    /// An operation without progress for so long is stuck.
    pub operation_stuck: Duration,
    /// A clock that differs by so much is wrong.
    pub clock_skew: Duration,
    /// So many restarts within ten minutes are a crash loop.
    pub crash_loop: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            near_full: 0.85,
            full: 0.95,
            full_within: Duration::from_secs(7 * 86_400),
            machine_away: Duration::from_secs(180),
            certificate: Duration::from_secs(7 * 86_400),
            operation_stuck: Duration::from_secs(600),
            clock_skew: Duration::from_secs(5),
            crash_loop: 3,
        }
    }
}

/// Input of rules.
pub(crate) struct Context<'a> {
    pub(crate) facts: &'a Facts,
    /// Room for data, with its forecast.
    pub(crate) capacity: &'a [Capacity],
    pub(crate) sources: &'a [SourceState],
    pub(crate) thresholds: &'a Thresholds,
    pub(crate) now: Timestamp,
}

/// Finding of a rule.
pub(crate) struct Finding {
    pub(crate) object: Object,
    pub(crate) summary: String,
    pub(crate) detail: String,
    /// Begin of it, where the data has one.
    pub(crate) since: Option<Timestamp>,
    pub(crate) command: String,
    /// Severity, where it is worse or better than the rule's own.
    pub(crate) severity: Option<Severity>,
    /// Address of a page about it, of whoever wrote its rule; empty for ours.
    pub(crate) runbook: String,
}

impl Finding {
    fn new(object: &Object, summary: String, command: String) -> Self {
        Self {
            object: object.clone(),
            summary,
            detail: String::new(),
            since: None,
            command,
            severity: None,
            runbook: String::new(),
        }
    }

    fn detail(mut self, detail: &str) -> Self {
        self.detail = text::outside(detail, LONGEST_DETAIL);
        self
    }

    fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    fn severity(mut self, severity: Severity) -> Self {
        self.severity = Some(severity);
        self
    }

    fn runbook(mut self, address: &str) -> Self {
        self.runbook = address.to_owned();
        self
    }
}

/// One rule.
pub struct Rule {
    /// Name that problems carry, and the section of the documentation.
    pub id: &'static str,
    pub severity: Severity,
    /// Meaning in one sentence.
    pub about: &'static str,
    /// Name of the source whose data it looks at.
    pub source: &'static str,
    /// It must be so for this long before it is a problem.
    pub after: Duration,
    find: fn(&Context<'_>, &mut Vec<Finding>),
}

const NOW: Duration = Duration::ZERO;

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "cloudlet_offline",
        severity: Severity::Critical,
        about: "The controller has no connection to the agent of a cloudlet.",
        source: "selvage",
        after: NOW,
        find: edge::cloudlet_offline,
    },
    Rule {
        id: "cloudlet_errors",
        severity: Severity::Critical,
        about: "The agent of a cloudlet reports errors and takes no work.",
        source: "selvage",
        after: NOW,
        find: edge::cloudlet_errors,
    },
    Rule {
        id: "instance_failed",
        severity: Severity::Critical,
        about: "Creating, updating or deleting an instance of an app failed.",
        source: "selvage",
        after: NOW,
        find: edge::instance_failed,
    },
    Rule {
        id: "instance_crash_loop",
        severity: Severity::Critical,
        about: "The containers of an instance end and are started again and again.",
        source: "selvage",
        after: NOW,
        find: edge::instance_crash_loop,
    },
    Rule {
        id: "instance_unhealthy",
        severity: Severity::Warning,
        about: "The public ports of an instance do not answer.",
        source: "selvage",
        after: NOW,
        find: edge::instance_unhealthy,
    },
    Rule {
        id: "cluster_failed",
        severity: Severity::Critical,
        about: "Creating, updating or deleting a cluster failed.",
        source: "selvage",
        after: NOW,
        find: edge::cluster_failed,
    },
    Rule {
        id: "kaas_cluster",
        severity: Severity::Critical,
        about: "A Kubernetes cluster does not work, or lacks machines.",
        source: "selvage",
        after: NOW,
        find: edge::kaas_cluster,
    },
    Rule {
        id: "operation_stuck",
        severity: Severity::Warning,
        about: "An operation has made no progress for ten minutes.",
        source: "selvage",
        after: NOW,
        find: edge::operation_stuck,
    },
    Rule {
        id: "machine_away",
        severity: Severity::Critical,
        about: "A machine has not reported, or its agent does not answer.",
        source: "selvage",
        after: NOW,
        find: machines::machine_away,
    },
    Rule {
        id: "machine_blocked",
        severity: Severity::Notice,
        about: "An administrator has stopped a machine.",
        source: "selvage",
        after: NOW,
        find: machines::machine_blocked,
    },
    Rule {
        id: "key_copied",
        severity: Severity::Critical,
        about: "A certificate was renewed that its machine had replaced already.",
        source: "selvage",
        after: NOW,
        find: machines::key_copied,
    },
    Rule {
        id: "certificate_ends",
        severity: Severity::Warning,
        about: "A machine's certificate ends within a week and was not renewed.",
        source: "selvage",
        after: NOW,
        find: machines::certificate_ends,
    },
    Rule {
        id: "clock_skew",
        severity: Severity::Warning,
        about: "A machine's clock is more than five seconds off.",
        source: "selvage",
        after: Duration::from_secs(10),
        find: machines::clock_skew,
    },
    Rule {
        id: "memory_low",
        severity: Severity::Warning,
        about: "A machine has less than five percent of its memory left.",
        source: "selvage",
        after: Duration::from_secs(60),
        find: machines::memory_low,
    },
    Rule {
        id: "volume_group_full",
        severity: Severity::Warning,
        about: "A volume group is nearly full; new volumes will be refused.",
        source: "selvage",
        after: NOW,
        find: storage::volume_group_full,
    },
    Rule {
        id: "full_soon",
        severity: Severity::Warning,
        about: "Room for data will be used up within days if it goes on like this.",
        source: "selvage",
        after: Duration::from_secs(600),
        find: storage::full_soon,
    },
    Rule {
        id: "volume_group_missing",
        severity: Severity::Critical,
        about: "A device class names a volume group that is not there.",
        source: "selvage",
        after: NOW,
        find: storage::volume_group_missing,
    },
    Rule {
        id: "backup_failed",
        severity: Severity::Warning,
        about: "The last backup of a volume failed.",
        source: "selvage",
        after: NOW,
        find: storage::backup_failed,
    },
    Rule {
        id: "backup_late",
        severity: Severity::Warning,
        about: "A scheduled backup is more than one interval overdue.",
        source: "selvage",
        after: NOW,
        find: storage::backup_late,
    },
    Rule {
        id: "ceph_check",
        severity: Severity::Warning,
        about: "A health check of the Ceph cluster does not pass.",
        source: "ceph",
        after: NOW,
        find: storage::ceph_check,
    },
    Rule {
        id: "ceph_crash",
        severity: Severity::Warning,
        about: "A daemon of the Ceph cluster crashed recently.",
        source: "ceph",
        after: NOW,
        find: storage::ceph_crash,
    },
    Rule {
        id: "kubernetes_node",
        severity: Severity::Critical,
        about: "A Kubernetes node that carries storage is not ready.",
        source: "rook",
        after: NOW,
        find: storage::kubernetes_node,
    },
    Rule {
        id: "kubernetes_object",
        severity: Severity::Warning,
        about: "A deployment or resource of the storage is not ready.",
        source: "rook",
        after: Duration::from_secs(60),
        find: storage::kubernetes_object,
    },
    Rule {
        id: "prometheus_alert",
        severity: Severity::Warning,
        about: "An alert of the Prometheus that this page asks fires.",
        source: "prometheus",
        after: NOW,
        find: scraped::prometheus_alert,
    },
    Rule {
        id: "filesystem_full",
        severity: Severity::Warning,
        about: "A file system of a machine that Prometheus scrapes is nearly full.",
        source: "prometheus",
        after: NOW,
        find: scraped::filesystem_full,
    },
    Rule {
        id: "exporter_memory_low",
        severity: Severity::Warning,
        about: "A machine that Prometheus scrapes has less than five percent of its memory left.",
        source: "prometheus",
        after: Duration::from_secs(60),
        find: scraped::exporter_memory_low,
    },
    Rule {
        id: "store_failing",
        severity: Severity::Critical,
        about: "The store takes no writes: nothing can be changed.",
        source: "selvage",
        after: NOW,
        find: system::store_failing,
    },
    Rule {
        id: "source_failing",
        severity: Severity::Warning,
        about: "A source of this page does not answer; what it told last is shown.",
        source: "selvage",
        after: Duration::from_secs(5),
        find: system::source_failing,
    },
];

/// Looks for everything.
pub(crate) fn findings(context: &Context<'_>) -> Vec<(&'static Rule, Finding)> {
    let mut all = Vec::new();
    for rule in RULES {
        let mut found = Vec::new();
        (rule.find)(context, &mut found);
        all.extend(found.into_iter().map(|finding| (rule, finding)));
    }
    all
}

/// Id of a problem for as long as it lasts.
pub(crate) fn id(rule: &Rule, object: &Object) -> String {
    format!("{}/{}/{}", rule.id, object.kind, object.name)
}

/// The problem as callers see it.
pub(crate) fn problem(rule: &Rule, finding: Finding, since: Timestamp) -> Problem {
    Problem {
        id: id(rule, &finding.object),
        rule: rule.id.into(),
        severity: finding.severity.unwrap_or(rule.severity).into(),
        summary: finding.summary,
        detail: finding.detail,
        since: Some(crate::stamp(since)),
        command: finding.command,
        runbook: Some(finding.runbook)
            .filter(|address| !address.is_empty())
            .unwrap_or_else(|| rule.id.into()),
        source: rule.source.into(),
        object: Some(finding.object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_of_its_own_and_says_what_to_do() {
        let docs = include_str!("../../../../docs/dashboard.md");
        let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        for rule in RULES {
            assert!(docs.contains(&format!("\n### {}\n", rule.id)), "docs: {}", rule.id);
            assert!(rule.about.ends_with('.'), "{}", rule.id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
    }
}
