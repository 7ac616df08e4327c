//! The overview as one caller may see it.

use std::sync::Arc;

use selvage_api::selvage::dashboard::{Overview, Problem, Severity};

use super::{Snapshot, counts, verdict};
use crate::{
    facts::{Facts, each},
    radar,
    rules::Thresholds,
    scope::Scope,
    unstamp,
};

/// Most problems that are told.
const MOST: usize = 500;

/// The overview with what this caller may see.
pub(crate) fn view(snapshot: &Snapshot, scope: &Scope, thresholds: &Thresholds) -> Arc<Overview> {
    let whole = &snapshot.overview;
    if *scope == Scope::Everything {
        if whole.problems.len() <= MOST {
            return Arc::clone(whole);
        }
        let mut cut = Overview::clone(whole);
        cut.problems.truncate(MOST);
        return Arc::new(cut);
    }
    let facts = narrowed(&snapshot.facts, scope);
    let mut problems: Vec<Problem> =
        whole.problems.iter().filter_map(|problem| shown(problem, scope)).collect();
    let now = whole.time.and_then(unstamp).unwrap_or_default();
    let mut marks = radar::marks(&facts, &problems, now, thresholds);
    if !scope.sees_shared() {
        // The others are about what this caller has no part in.
        marks.retain(|mark| mark.name == radar::HEALTH || mark.name == radar::STABILITY);
    }
    let total = u32::try_from(problems.len()).unwrap_or(u32::MAX);
    let verdict = verdict::verdict(&facts, &problems);
    let counts = counts::counts(&facts, now, thresholds);
    let places = counts::places(&facts, &problems);
    problems.truncate(MOST);
    let shared = scope.sees_shared();
    Arc::new(Overview {
        version: whole.version,
        time: whole.time,
        verdict: Some(verdict),
        problems,
        problems_total: total,
        counts,
        radar: marks,
        capacity: if shared { whole.capacity.clone() } else { Vec::new() },
        sources: if shared { whole.sources.clone() } else { Vec::new() },
        places,
    })
}

/// Problem as the caller may see it: everybody learns that a cloudlet is away, only
/// its organisation what its agent says.
pub(crate) fn shown(problem: &Problem, scope: &Scope) -> Option<Problem> {
    let object = problem.object.as_ref()?;
    if scope.sees(object) {
        return Some(problem.clone());
    }
    let known = object.kind == "cloudlet" && problem.severity() != Severity::Notice;
    known.then(|| Problem { detail: String::new(), command: String::new(), ..problem.clone() })
}

fn narrowed(facts: &Facts, scope: &Scope) -> Facts {
    let instances = each(&facts.instances).filter(|instance| scope.sees(&instance.object));
    let clusters = each(&facts.clusters).filter(|cluster| scope.sees(&cluster.object));
    let kaas = each(&facts.kaas).filter(|cluster| scope.sees(&cluster.object));
    let operations = each(&facts.operations).filter(|operation| scope.sees(&operation.object));
    let mut narrow = Facts {
        cloudlets: facts.cloudlets.clone(),
        instances: facts.instances.as_ref().map(|_| Arc::new(instances.cloned().collect())),
        clusters: facts.clusters.as_ref().map(|_| Arc::new(clusters.cloned().collect())),
        kaas: facts.kaas.as_ref().map(|_| Arc::new(kaas.cloned().collect())),
        operations: facts.operations.as_ref().map(|_| Arc::new(operations.cloned().collect())),
        ..Facts::default()
    };
    if scope.sees_shared() {
        narrow = Facts {
            cloudlets: narrow.cloudlets,
            instances: narrow.instances,
            clusters: narrow.clusters,
            kaas: narrow.kaas,
            operations: narrow.operations,
            ..facts.clone()
        };
    }
    narrow
}
