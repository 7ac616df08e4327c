//! Objects by a name on the command line: `selvage app delete hello`.
//!
//! A name is the object's own, or its key from the outside in, as lists and
//! messages print it: `demo/hello/1`. What it leaves open must be clear.

use prost_reflect::{DynamicMessage, Value};
use selvage_api::object::{Leaf, plan};

use crate::{
    Error,
    client::Client,
    edge::{Kind, Verb, draft, rpc},
    suggest,
};

/// Leaves that hold an object's own name; the first that the kind has counts.
const OWN_NAME: [&str; 4] = ["key.name", "key.app_key.name", "key.cluster_key.name", "key.addr"];
/// Keys that an error lists before it says how many more there are.
const MOST_LISTED: usize = 8;

fn key_leaves(kind: &Kind) -> Vec<Leaf> {
    let plan = plan(&kind.message);
    plan.leaves().iter().filter(|leaf| leaf.name.starts_with("key.")).cloned().collect()
}

/// Leaf of the object's own name.
fn own_leaf(kind: &Kind) -> Option<Leaf> {
    let leaves = key_leaves(kind);
    let named = OWN_NAME.iter().find_map(|name| leaves.iter().find(|leaf| leaf.name == *name));
    named.or(leaves.first()).cloned()
}

fn text_at(message: &DynamicMessage, leaf: &Leaf) -> String {
    let values = draft::values_at(message, &leaf.numbers);
    values.first().and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns whether the name means this object.
pub(crate) fn means(kind: &Kind, message: &DynamicMessage, name: &str) -> bool {
    let key = draft::key_text(message);
    let begins = key.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let own = own_leaf(kind).is_some_and(|leaf| text_at(message, &leaf) == name);
    own || key == name || begins
}

/// Puts the name of a new object into its key.
pub(crate) fn put(kind: &Kind, message: &mut DynamicMessage, name: &str) -> Result<(), Error> {
    let parts: Vec<&str> = name.split('/').collect();
    let leaves = key_leaves(kind);
    if parts.len() > leaves.len() || parts.contains(&"") {
        let names: Vec<&str> = leaves.iter().filter_map(|leaf| short(&leaf.name)).collect();
        return Err(Error::invalid(format!(
            "{name:?} is no name of a new {}: give its own, or {}",
            kind.word,
            names.join("/")
        )));
    }
    let targets: Vec<Leaf> = match parts.len() {
        1 => own_leaf(kind).into_iter().collect(),
        _ => leaves,
    };
    for (leaf, part) in targets.iter().zip(parts) {
        draft::set_text(message, &leaf.numbers, part);
    }
    Ok(())
}

/// Last word of a leaf that says something: `key.operator_key.name` is the operator.
fn short(leaf: &str) -> Option<&str> {
    let mut words = leaf.rsplit('.');
    match words.next()? {
        "name" => words.next().map(|outer| if outer == "key" { "NAME" } else { outer }),
        word => Some(word),
    }
}

/// The one object that a name means, among those whose key fits `filter`.
pub(crate) async fn resolve(
    kind: &'static Kind,
    name: &str,
    filter: &DynamicMessage,
    client: &Client,
) -> Result<DynamicMessage, Error> {
    let Some(method) = kind.method(Verb::Show) else {
        return Err(Error::Unexpected(format!("{} cannot be shown", kind.plural)));
    };
    let all = rpc::show(client, method, draft::only_key(filter)).await?;
    let found: Vec<&DynamicMessage> =
        all.iter().filter(|object| means(kind, object, name)).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(unknown(kind, name, &all)),
        several => Err(ambiguous(kind, name, several)),
    }
}

fn unknown(kind: &'static Kind, name: &str, all: &[DynamicMessage]) -> Error {
    let own = own_leaf(kind);
    let names: Vec<String> =
        all.iter().filter_map(|object| Some(text_at(object, own.as_ref()?))).collect();
    Error::Unknown {
        kind: &kind.word,
        name: name.to_owned(),
        suggestions: suggest::closest(name, names.iter().map(String::as_str)),
        hint: format!("`selvage {} list` shows those there are", kind.command()),
    }
}

fn ambiguous(kind: &Kind, name: &str, several: &[&DynamicMessage]) -> Error {
    let keys = several.iter().take(MOST_LISTED).map(|object| draft::key_text(object));
    let mut listed = keys.collect::<Vec<_>>().join(", ");
    if several.len() > MOST_LISTED {
        listed += &format!(" and {} more", several.len() - MOST_LISTED);
    }
    Error::Invalid {
        message: format!("{name:?} means {} {}: {listed}", several.len(), kind.plural),
        hints: vec![
            "give more of the key, from its beginning, or a flag that tells them apart".into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::edge::catalog;

    fn app(key: &str) -> (&'static Kind, DynamicMessage) {
        let kind = catalog::kind("app").unwrap();
        let mut message = DynamicMessage::new(kind.message.clone());
        put(kind, &mut message, key).unwrap();
        (kind, message)
    }

    #[test]
    fn a_name_is_the_own_one_or_the_key_from_its_beginning() {
        let (kind, message) = app("demo/hello/1");
        assert_eq!(draft::key_text(&message), "demo/hello/1");
        for name in ["hello", "demo/hello/1", "demo/hello", "demo"] {
            assert!(means(kind, &message, name), "{name}");
        }
        for name in ["hell", "demo/hell", "1", "hello/1", "demo/hello/10"] {
            assert!(!means(kind, &message, name), "{name}");
        }
        let (_, alone) = app("hello");
        assert_eq!(draft::key_text(&alone), "hello");
    }

    #[test]
    fn a_new_object_needs_a_name_that_fits_its_key() {
        let kind = catalog::kind("cloudlet").unwrap();
        let mut message = DynamicMessage::new(kind.message.clone());
        let error = put(kind, &mut message, "a/b/c").unwrap_err().to_string();
        assert!(error.contains("operator_key/NAME"), "{error}");
        assert!(put(kind, &mut message, "a//").is_err());
        let inst = catalog::kind("appinst").unwrap();
        let mut message = DynamicMessage::new(inst.message.clone());
        put(inst, &mut message, "hello").unwrap();
        assert_eq!(text_at(&message, &own_leaf(inst).unwrap()), "hello");
    }
}
