//! Whoever reads a contract learns what each thing means: nothing that was
//! published stands there without a comment.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashSet;

use prost_reflect::FileDescriptor;

/// The paths that carry a comment.
fn commented(file: &FileDescriptor) -> HashSet<Vec<i32>> {
    let info = file.file_descriptor_proto().source_code_info.clone().expect("source info");
    info.location
        .into_iter()
        .filter(|place| !place.leading_comments().trim().is_empty())
        .map(|place| place.path)
        .collect()
}

#[test]
fn everything_published_is_commented() {
    let pool = selvage_api::pool();
    let ours = |package: &str| !package.starts_with("google") && !package.starts_with("selvage");
    let mut bare = Vec::new();
    let mut check = |file: &FileDescriptor, path: &[i32], name: &str| {
        if !commented(file).contains(path) {
            bare.push(name.to_owned());
        }
    };
    for message in pool.all_messages().filter(|m| ours(m.package_name()) && !m.is_map_entry()) {
        check(&message.parent_file(), message.path(), message.full_name());
        for field in message.fields() {
            check(&message.parent_file(), field.path(), field.full_name());
        }
    }
    for enumeration in pool.all_enums().filter(|e| ours(e.package_name())) {
        check(&enumeration.parent_file(), enumeration.path(), enumeration.full_name());
        for value in enumeration.values() {
            check(&enumeration.parent_file(), value.path(), value.full_name());
        }
    }
    for service in pool.services().filter(|s| ours(s.package_name())) {
        check(&service.parent_file(), service.path(), service.full_name());
        for method in service.methods() {
            check(&service.parent_file(), method.path(), method.full_name());
        }
    }
    assert!(bare.is_empty(), "without a comment: {bare:#?}");
}
