//! Verdict on everything in one sentence.

use selvage_api::selvage::dashboard::{Problem, Severity, Verdict};

use crate::{facts::Facts, text::counted};

/// `problems` are worst first.
pub(super) fn verdict(facts: &Facts, problems: &[Problem]) -> Verdict {
    let severity = problems.first().map_or(Severity::Ok, Problem::severity);
    let count = |wanted: Severity| problems.iter().filter(|p| p.severity() == wanted).count();
    let sentence = match (problems, severity) {
        ([], _) => format!("All is well{}.", inventory(facts)),
        (_, Severity::Ok | Severity::Notice) => {
            format!("All is well{}; {}.", inventory(facts), counted(problems.len(), "notice"))
        }
        ([only], _) => format!("{}.", only.summary),
        ([first, ..], _) => {
            let words = [
                (count(Severity::Critical), "critical problem"),
                (count(Severity::Warning), "warning"),
            ];
            let words: Vec<String> = words
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, word)| counted(count, word))
                .collect();
            format!("{}: {}.", words.join(" and "), first.summary)
        }
    };
    Verdict { severity: severity.into(), sentence }
}

fn inventory(facts: &Facts) -> String {
    let size = |list: Option<usize>, word: &str| {
        list.filter(|count| *count > 0).map(|count| counted(count, word))
    };
    let parts: Vec<String> = [
        size(facts.cloudlets.as_ref().map(|list| list.len()), "cloudlet"),
        size(facts.instances.as_ref().map(|list| list.len()), "instance"),
        size(facts.machines.as_ref().map(|list| list.len()), "machine"),
        size(facts.nodes.as_ref().map(|list| list.len()), "node"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}
