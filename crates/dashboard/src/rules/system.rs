//! The store, and the sources of the dashboard itself.

use selvage_api::selvage::dashboard::Severity;

use super::{Context, Finding};
use crate::facts::{Section, object};

pub(super) fn store_failing(context: &Context<'_>, found: &mut Vec<Finding>) {
    let Some(process) = &context.facts.process else { return };
    if process.store_failure.is_empty() {
        return;
    }
    let object = object("store", process.store.clone());
    let summary = format!("The store ({}) takes no writes", process.store);
    let finding = Finding::new(&object, summary, "selvage status".into());
    found.push(finding.detail(&process.store_failure));
}

pub(super) fn source_failing(context: &Context<'_>, found: &mut Vec<Finding>) {
    for source in context.sources.iter().filter(|source| source.failing()) {
        let name = format!("{} {}", source.source, source.section.name());
        let object = object("source", name.clone());
        let summary = format!("{name} does not answer");
        // Nobody can tell how the storage is.
        let only = source.section == Section::Storage
            && context
                .sources
                .iter()
                .all(|other| other.section != source.section || other.failing());
        let severity = if only { Severity::Critical } else { Severity::Warning };
        let finding = Finding::new(&object, summary, "selvage status".into()).severity(severity);
        let late = match source.fetched {
            Some(_) => "it takes longer to answer than it should",
            None => "it has not answered yet",
        };
        let error = source.error.as_deref().unwrap_or(late);
        found.push(finding.detail(error).since(source.fetched));
    }
}
