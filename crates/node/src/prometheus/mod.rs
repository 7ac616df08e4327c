//! The page for Prometheus, under the names that cAdvisor and node_exporter
//! gave: dashboards made for those work as they are.

mod containers;
mod host;
mod text;

use bytes::Bytes;

pub(crate) use containers::container_labels;

use self::text::Page;
use crate::{host::Filesystem, sampler::Sampler};

/// The whole page, from what was read at the last look and a few files more.
pub fn page(sampler: &Sampler, filesystems: &[Filesystem]) -> Bytes {
    let mut page = Page::default();
    host::write(&mut page, sampler, filesystems);
    containers::write(&mut page, sampler);
    page.finish()
}
