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
    let pool = selvage_api::pool_with_comments();
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

/// Each comment is found at the path of its element.
#[test]
fn every_comment_is_found_at_its_place() {
    let mut found = 0;
    for file in selvage_api::pool_with_comments().files() {
        // The files of the compiler itself have no comments.
        let info = file.file_descriptor_proto().source_code_info.as_ref();
        for place in info.iter().flat_map(|info| &info.location) {
            let expected = match (place.leading_comments(), place.trailing_comments()) {
                ("", trailing) => trailing,
                (leading, _) => leading,
            };
            assert_eq!(selvage_api::comment(file.name(), &place.path), expected, "{place:?}");
            found += usize::from(!expected.is_empty());
        }
    }
    assert!(found > 1000, "{found}");
    assert_eq!(selvage_api::comment("nothing.proto", &[4, 0]), "");
}
