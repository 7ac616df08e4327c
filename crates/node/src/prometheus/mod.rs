//! The page for Prometheus, under the names that cAdvisor and node_exporter
//! gave: dashboards made for those work as they are.

mod containers;
mod host;
mod kernel;
mod text;
mod textfile;

use std::path::Path;

use bytes::Bytes;

pub(crate) use containers::container_labels;

use self::text::Page;
use crate::{host::Filesystem, sampler::Sampler};

/// The whole page, from what was read at the last look and a few files more;
/// among them those of scripts in the folder `textfiles`.
pub fn page(sampler: &Sampler, filesystems: &[Filesystem], textfiles: Option<&Path>) -> Bytes {
    let mut page = Page::default();
    host::write(&mut page, sampler, filesystems);
    sampler.with_host_reader(|reader| kernel::write(&mut page, reader));
    containers::write(&mut page, sampler);
    if let Some(folder) = textfiles {
        textfile::write(&mut page, folder);
    }
    page.finish()
}
