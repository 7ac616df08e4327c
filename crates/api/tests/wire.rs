//! The wire stays as it is locked, and the lock stays as it was published.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, path::Path};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use selvage_api::{
    FILE_DESCRIPTOR_SET,
    lock::{Difference, compare, render, unpublished},
    pool,
};

fn proto(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lines<T: ToString>(all: &[T]) -> String {
    all.iter().map(|line| format!("  {}\n", line.to_string())).collect()
}

#[test]
fn the_wire_is_as_locked() {
    let differences = compare(&proto("wire.lock"), &render(pool()));
    assert!(
        differences.is_empty(),
        "proto/wire.lock and proto/ differ:\n{}\
         If nothing breaks: cargo run -q -p selvage-api --example wire-lock > proto/wire.lock",
        lines(&differences)
    );
    assert_eq!(proto("wire.lock"), render(pool()), "same lines in another order");
}

/// Names of all files of a folder, from the root of the contracts on.
fn contracts(folder: &Path, root: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true => contracts(&path, root),
        false => vec![path.strip_prefix(root).unwrap().display().to_string()],
    });
    found.filter(|name| name.ends_with(".proto")).collect()
}

/// The build script is told of changes by folder, and not of a folder that is new.
#[test]
fn no_contract_is_forgotten_by_the_build() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let known: Vec<String> = pool().files().map(|file| file.name().to_owned()).collect();
    let mut forgotten = contracts(&root, &root);
    assert!(forgotten.len() > 20, "{forgotten:?}");
    forgotten.retain(|name| !known.contains(name));
    assert!(forgotten.is_empty(), "touch crates/api/build.rs, {forgotten:?} came later");
}

#[test]
fn the_wire_is_as_published() {
    let complaints = unpublished(&proto("published.tsv"), pool());
    assert!(
        complaints.is_empty(),
        "proto/ contradicts proto/published.tsv:\n{}",
        lines(&complaints)
    );
}

#[test]
fn a_changed_lock_tells_what_breaks_from_what_is_new() {
    let now = "field\ta.M\t1\tx\tstring\nfield\ta.M\t2\ty\tstring\n";
    let locked = "field\ta.M\t1\tx\tint32\n";
    assert_eq!(
        compare(locked, now),
        [
            Difference::Broken("field\ta.M\t1\tx\tint32".into()),
            Difference::Added("field\ta.M\t1\tx\tstring".into()),
            Difference::Added("field\ta.M\t2\ty\tstring".into()),
        ]
    );
    assert!(compare(now, now).is_empty());
}

/// A part of the descriptor set: the list it is in, and its name.
type Step<'a> = (&'a str, &'a str);

/// The contracts with one part of their descriptors changed.
fn changed(steps: &[Step<'_>], change: impl Fn(&mut DynamicMessage)) -> DescriptorPool {
    let kind = pool().get_message_by_name("google.protobuf.FileDescriptorSet").unwrap();
    let mut set = DynamicMessage::decode(kind, FILE_DESCRIPTOR_SET).unwrap();
    let mut part = &mut set;
    for (list, name) in steps {
        let elements = part.get_field_by_name_mut(list).unwrap().as_list_mut().unwrap();
        part = elements
            .iter_mut()
            .map(|element| element.as_message_mut().unwrap())
            .find(|element| element.get_field_by_name("name").unwrap().as_str() == Some(name))
            .unwrap_or_else(|| panic!("no {name} in {list}"));
    }
    change(part);
    DescriptorPool::decode(set.encode_to_vec().as_slice()).unwrap()
}

const APP_FILE: Step<'_> = ("file", "edgeproto/app.proto");
const APP: [Step<'_>; 2] = [APP_FILE, ("message_type", "App")];
const IMAGE_PATH: [Step<'_>; 3] = [APP_FILE, ("message_type", "App"), ("field", "image_path")];
const SHOW_APP: [Step<'_>; 3] = [APP_FILE, ("service", "AppApi"), ("method", "ShowApp")];

/// Both guards must see the change; the second one must say so in these words.
fn expect(pool: &DescriptorPool, words: &str) {
    assert!(!compare(&proto("wire.lock"), &render(pool)).is_empty(), "the lock sees nothing");
    let complaints = unpublished(&proto("published.tsv"), pool);
    assert!(
        complaints.iter().any(|complaint| complaint.contains(words)),
        "{words:?} is not in:\n{}",
        lines(&complaints)
    );
}

/// The last element of a list, copied and changed, as a new element.
fn add(part: &mut DynamicMessage, list: &str, change: impl Fn(&mut DynamicMessage)) {
    let elements = part.get_field_by_name_mut(list).unwrap().as_list_mut().unwrap();
    let mut made = elements.last().unwrap().as_message().unwrap().clone();
    change(&mut made);
    elements.push(Value::Message(made));
}

fn name(part: &mut DynamicMessage, name: &str) {
    part.set_field_by_name("name", Value::String(name.into()));
}

#[test]
fn the_mutation_itself_changes_nothing() {
    let same = changed(&APP, |_| {});
    assert_eq!(render(&same), render(pool()));
    assert!(unpublished(&proto("published.tsv"), &same).is_empty());
}

#[test]
fn another_number_is_noticed() {
    let moved = changed(&IMAGE_PATH, |field| field.set_field_by_name("number", Value::I32(3)));
    expect(&moved, "missing or changed: field edgeproto.App 4 image_path string");
    expect(&moved, "extensions start at 100: field edgeproto.App 3 image_path string");
}

#[test]
fn another_type_name_or_label_is_noticed() {
    let typed =
        changed(&IMAGE_PATH, |field| field.set_field_by_name("type", Value::EnumNumber(12)));
    expect(&typed, "missing or changed: field edgeproto.App 4 image_path string");
    expect(&typed, "means something else here: field edgeproto.App 4 image_path bytes");
    let named = changed(&IMAGE_PATH, |field| name(field, "image"));
    expect(&named, "means something else here: field edgeproto.App 4 image string");
    let many = changed(&IMAGE_PATH, |field| field.set_field_by_name("label", Value::EnumNumber(3)));
    expect(&many, "means something else here: field edgeproto.App 4 image_path repeated string");
}

#[test]
fn another_enum_value_is_noticed() {
    let steps = [APP_FILE, ("enum_type", "DeleteType"), ("value", "AUTO_DELETE")];
    let moved = changed(&steps, |value| value.set_field_by_name("number", Value::I32(2)));
    expect(&moved, "missing or changed: value edgeproto.DeleteType 1 AUTO_DELETE");
    expect(&moved, "extensions start at 100: value edgeproto.DeleteType 2 AUTO_DELETE");
}

#[test]
fn another_stream_or_reply_is_noticed() {
    let unary = changed(&SHOW_APP, |method| {
        method.set_field_by_name("server_streaming", Value::Bool(false));
    });
    expect(&unary, "missing or changed: rpc edgeproto.AppApi ShowApp");
    let reply = changed(&SHOW_APP, |method| {
        method.set_field_by_name("output_type", Value::String(".edgeproto.Result".into()));
    });
    expect(&reply, "not published: rpc edgeproto.AppApi ShowApp edgeproto.App edgeproto.Result");
}

#[test]
fn another_route_is_noticed() {
    let (route, other) = (b"/show/app\x3a\x01*", b"/show/apq\x3a\x01*");
    let mut bytes = FILE_DESCRIPTOR_SET.to_vec();
    let at = bytes.windows(route.len()).position(|window| window == route).unwrap();
    bytes[at..at + other.len()].copy_from_slice(other);
    let moved = DescriptorPool::decode(bytes.as_slice()).unwrap();
    expect(&moved, "missing or changed: route edgeproto.AppApi ShowApp POST /show/app");
    expect(&moved, "not published: route edgeproto.AppApi ShowApp POST /show/apq");
}

#[test]
fn what_is_gone_is_noticed() {
    let gone = changed(&APP, |message| {
        message.get_field_by_name_mut("field").unwrap().as_list_mut().unwrap().pop();
    });
    expect(&gone, "missing or changed: field edgeproto.App 21 configs");
}

#[test]
fn extensions_are_right_from_100_up_only() {
    let with = |number| {
        changed(&APP, |message| {
            add(message, "field", |field| {
                name(field, "ours");
                field.set_field_by_name("number", Value::I32(number));
                field.set_field_by_name("json_name", Value::String("ours".into()));
            });
        })
    };
    assert!(unpublished(&proto("published.tsv"), &with(100)).is_empty());
    expect(&with(22), "extensions start at 100: field edgeproto.App 22 ours");
}

#[test]
fn new_messages_and_services_in_published_packages_are_noticed() {
    let message = changed(&[APP_FILE], |file| add(file, "message_type", |m| name(m, "AppMore")));
    expect(&message, "not published: message edgeproto.AppMore");
    let service = changed(&[APP_FILE], |file| add(file, "service", |s| name(s, "AppMoreApi")));
    expect(&service, "not published: service edgeproto.AppMoreApi");
    let method = changed(&SHOW_APP[..2], |service| add(service, "method", |m| name(m, "Count")));
    expect(&method, "not published: rpc edgeproto.AppApi Count");
}
