//! Input of strangers for the fuzzer. Not for anything else.

use std::path::Path;

use crate::mounts;

/// Reads options of a mount, and a path for one.
pub fn mount(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok((_, data)) = mounts::options(&[text.to_owned()]) {
        assert!(data.split(',').all(|option| option.is_empty() || text.contains(option)));
    }
    let root = Path::new("/var/lib/kubelet");
    if let Ok(path) = mounts::check_path(text, "target_path", root) {
        assert!(path.starts_with(root) && !text.contains("/../"), "{text}");
    }
}
