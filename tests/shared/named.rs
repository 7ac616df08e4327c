//! Lists of what has to be shown name the tests that show it; here is checked
//! that there are such tests. Suites take this file in by its path.

use std::path::Path;

/// The test that shows `what` is in this file; the file may be part of the
/// folder.
pub(crate) fn assert_there_is(what: &str, folder: &str, file: &str, test: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = match file {
        "" => root.join(folder),
        file => root.join(folder).join(file),
    };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert!(text.contains(&format!("fn {test}(")), "{what}: {path:?} has no {test}");
}
