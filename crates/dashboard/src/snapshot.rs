//! The snapshot: everything that services tell, made whenever something
//! changed.

mod capacity;
mod counts;
mod verdict;
mod view;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use selvage_api::selvage::dashboard::{Capacity, Overview, Problem, Source};

pub(crate) use self::{
    capacity::filesystem,
    counts::{cloudlet_word, kaas_word, tracked_word},
    view::view,
};
use crate::{
    board::SourceState,
    facts::Facts,
    radar,
    rules::{self, Context, Thresholds},
    series::Trend,
    stamp,
};

/// State that services answer from. Never changed once it is made.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Name of the system where no storage cluster has one.
    pub id: String,
    pub facts: Facts,
    /// Everything, for those who may see everything. Its problems are all
    /// there are.
    pub overview: Arc<Overview>,
    /// State of each section when it was made.
    pub sources: Vec<SourceState>,
}

impl Snapshot {
    /// Nothing is known.
    pub(crate) fn empty(now: Timestamp) -> Self {
        let overview = Overview { time: Some(stamp(now)), ..Overview::default() };
        let overview = Arc::new(overview);
        Self { id: String::new(), facts: Facts::default(), overview, sources: Vec::new() }
    }

    /// Returns true once any source has answered.
    pub fn is_filled(&self) -> bool {
        self.sources.iter().any(|source| source.fetched.is_some())
    }
}

/// A finding that is, or may become, a problem.
struct Tracked {
    began: Timestamp,
    problem: Option<Arc<Problem>>,
}

/// Makes snapshots and remembers since when each problem lasts.
pub(crate) struct Maker {
    id: String,
    thresholds: Thresholds,
    tracked: BTreeMap<String, Tracked>,
    /// Begin of problems that lasted when the process ended.
    recalled: HashMap<String, Timestamp>,
    growth: HashMap<String, Trend>,
    version: u64,
}

impl Maker {
    pub(crate) fn new(id: String, thresholds: Thresholds) -> Self {
        Self {
            id,
            thresholds,
            tracked: BTreeMap::new(),
            recalled: HashMap::new(),
            growth: HashMap::new(),
            version: 0,
        }
    }

    pub(crate) fn recall(&mut self, began: impl IntoIterator<Item = (String, Timestamp)>) {
        self.recalled.extend(began);
    }

    pub(crate) fn grows(&mut self, growth: HashMap<String, Trend>) {
        self.growth = growth;
    }

    /// A new snapshot, and whether what it shows is different from the one
    /// before.
    pub(crate) fn make(
        &mut self,
        facts: Facts,
        sources: &[SourceState],
        now: Timestamp,
        before: &Snapshot,
    ) -> (Snapshot, bool) {
        let capacity = capacity::capacity(&facts, &self.growth, now, &self.thresholds);
        let problems = self.problems(&facts, &capacity, sources, now);
        let mut overview = Overview {
            version: before.overview.version,
            time: before.overview.time,
            verdict: Some(verdict::verdict(&facts, &problems)),
            problems_total: u32::try_from(problems.len()).unwrap_or(u32::MAX),
            counts: counts::counts(&facts, now, &self.thresholds),
            radar: radar::marks(&facts, &problems, now, &self.thresholds),
            capacity,
            sources: sources.iter().filter(|source| !source.absent).map(to_source).collect(),
            places: counts::places(&facts, &problems),
            problems,
        };
        let same = self.version > 0
            && same_sections(sources, &before.sources)
            && same_apart_from_ages(&before.overview, &overview);
        let overview = if same {
            Arc::clone(&before.overview)
        } else {
            self.version += 1;
            overview.version = self.version;
            overview.time = Some(stamp(now));
            Arc::new(overview)
        };
        let sources = sources.to_vec();
        (Snapshot { id: self.id.clone(), facts, overview, sources }, !same)
    }

    /// The problems of now, worst first, then the oldest first.
    fn problems(
        &mut self,
        facts: &Facts,
        capacity: &[Capacity],
        sources: &[SourceState],
        now: Timestamp,
    ) -> Vec<Problem> {
        let context = Context { facts, capacity, sources, thresholds: &self.thresholds, now };
        let mut tracked = BTreeMap::new();
        for (rule, finding) in rules::findings(&context) {
            let id = rules::id(rule, &finding.object);
            let known = self.tracked.remove(&id);
            let recalled = self.recalled.remove(&id);
            let seen = known.as_ref().map(|known| known.began).or(recalled);
            let began = seen.or(finding.since).unwrap_or(now).min(now);
            let held = now.duration_since(began).try_into().unwrap_or(Duration::ZERO);
            let was = known.and_then(|known| known.problem);
            let raised = was.is_some() || recalled.is_some() || held >= rule.after;
            let problem = raised.then(|| Arc::new(rules::problem(rule, finding, began)));
            tracked.insert(id, Tracked { began, problem });
        }
        self.tracked = tracked;
        let raised = self.tracked.values().filter_map(|tracked| tracked.problem.as_deref());
        let mut problems: Vec<Problem> = raised.cloned().collect();
        problems.sort_by_key(|problem| {
            let since = problem.since.map(|since| (since.seconds, since.nanos));
            (std::cmp::Reverse(problem.severity), since, problem.id.clone())
        });
        problems
    }
}

/// The source as callers see it.
pub(crate) fn to_source(state: &SourceState) -> Source {
    Source {
        name: state.source.into(),
        section: state.section.name().into(),
        fetched_at: state.fetched.map(stamp),
        stale: state.stale,
        error: state.error.clone().unwrap_or_default(),
    }
}

/// Compares two overviews. The time of a source's last answer is no change by itself.
fn same_apart_from_ages(old: &Overview, new: &Overview) -> bool {
    let source = |source: &Source| {
        (source.name.clone(), source.section.clone(), source.stale, source.error.clone())
    };
    old.verdict == new.verdict
        && old.problems == new.problems
        && old.counts == new.counts
        && old.radar == new.radar
        && old.capacity == new.capacity
        && old.places == new.places
        && old.sources.iter().map(source).eq(new.sources.iter().map(source))
}

fn same_sections(new: &[SourceState], old: &[SourceState]) -> bool {
    let shape = |state: &SourceState| {
        (state.source, state.section, state.absent, state.fetched.is_some(), state.stale)
    };
    new.iter().map(shape).eq(old.iter().map(shape))
}
