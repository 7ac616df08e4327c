//! The `fields` mask of an Update: which leaves go from the request into the
//! stored object.
//!
//! - A path is field numbers from the top message, dotted. A leaf means
//!   itself. A message means all of its leaves, unless leaves below it are
//!   named too: then it is only their ancestor, as the original reads it.
//! - A masked leaf is copied whatever its value: zero sets zero, an empty list
//!   or map clears.
//! - A list of messages is made anew with the request's length and holds, by
//!   index, the masked leaves of the request's elements and nothing else.
//! - A message that the request leaves out counts as one with all leaves zero.

use std::{collections::BTreeMap, sync::Arc};

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, ReflectMessage, Value};

use super::{Error, Leaf, Object, Plan, descriptor_of, from_dynamic, mask_field, plan, to_dynamic};

/// A parsed mask of one message type.
#[derive(Debug, Clone)]
pub struct Mask {
    plan: Arc<Plan>,
    leaves: Vec<Leaf>,
}

impl Mask {
    /// Reads the paths of a mask; an error names all that do not exist.
    pub fn parse<S: AsRef<str>>(
        descriptor: &MessageDescriptor,
        paths: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error> {
        let plan = plan(descriptor);
        let mut wanted = Vec::new();
        let mut unknown = Vec::new();
        for path in paths {
            match numbers(path.as_ref()).filter(|numbers| !plan.below(numbers).is_empty()) {
                Some(numbers) => wanted.push(numbers),
                None => unknown.push(path.as_ref().to_owned()),
            }
        }
        if !unknown.is_empty() {
            let message = descriptor.name().to_owned();
            return Err(Error::UnknownFields { message, fields: unknown });
        }
        wanted.sort();
        wanted.dedup();
        let leaves = wanted
            .iter()
            .enumerate()
            // In sorted order what is below a path follows it at once.
            .filter(|(at, path)| !wanted.get(at + 1).is_some_and(|next| next.starts_with(path)))
            .flat_map(|(_, path)| plan.below(path).iter().cloned())
            .collect();
        Ok(Self { plan, leaves })
    }

    /// The mask that a request carries in its `fields`.
    pub fn of<M: Message + Name>(request: &M) -> Result<Self, Error> {
        let descriptor = descriptor_of::<M>()?;
        let dynamic = to_dynamic(request)?;
        let paths = mask_field(&descriptor).map(|field| dynamic.get_field(&field).into_owned());
        let paths = paths.as_ref().and_then(Value::as_list).unwrap_or_default();
        Self::parse(&descriptor, paths.iter().filter_map(Value::as_str))
    }

    /// The mask of every leaf.
    pub fn all(descriptor: &MessageDescriptor) -> Self {
        let plan = plan(descriptor);
        Self { leaves: plan.leaves().to_vec(), plan }
    }

    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The masked leaves, in order of their numbers.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Returns whether the leaf at a path, or any leaf below it, is masked.
    pub fn touches(&self, path: &str) -> bool {
        numbers(path).is_some_and(|path| self.leaves.iter().any(|l| l.numbers.starts_with(&path)))
    }

    /// The mask less the leaves at and below the given paths.
    pub fn without(&self, paths: &[&str]) -> Self {
        let kept = self.leaves.iter().filter(|leaf| !is_below(leaf, paths)).cloned().collect();
        Self { plan: self.plan.clone(), leaves: kept }
    }

    /// Fails when nothing is masked.
    pub fn require_some(&self) -> Result<(), Error> {
        if self.is_empty() { Err(Error::NothingToUpdate) } else { Ok(()) }
    }

    /// Fails, naming them, when other leaves than those at or below the given
    /// paths are masked.
    pub fn allow_only(&self, paths: &[&str]) -> Result<(), Error> {
        let refused = self.leaves.iter().filter(|leaf| !is_below(leaf, paths));
        let fields: Vec<String> = refused.map(|leaf| leaf.name.clone()).collect();
        if fields.is_empty() { Ok(()) } else { Err(Error::NotModifiable { fields }) }
    }

    /// Copies the masked leaves from `source` to `target` and says how many
    /// changed: with 0 the target is as it was and need not be written.
    pub fn apply<M: Object>(&self, target: &mut M, source: &M) -> Result<usize, Error> {
        let mut merged = to_dynamic(target)?;
        let changes = self.apply_dynamic(&mut merged, &to_dynamic(source)?);
        if changes > 0 {
            *target = from_dynamic(&merged)?;
        }
        Ok(changes)
    }

    /// Does what [`Mask::apply`] does, for messages of the mask's own type.
    pub fn apply_dynamic(&self, target: &mut DynamicMessage, source: &DynamicMessage) -> usize {
        let mut tree = Tree::default();
        for leaf in &self.leaves {
            tree.insert(&leaf.numbers);
        }
        tree.copy(target, source)
    }
}

fn is_below(leaf: &Leaf, paths: &[&str]) -> bool {
    paths.iter().filter_map(|path| numbers(path)).any(|path| leaf.numbers.starts_with(&path))
}

/// The numbers of a path; `None` for anything that is not one.
fn numbers(path: &str) -> Option<Vec<u32>> {
    let number = |part: &str| {
        let plain = part.starts_with(|c: char| ('1'..='9').contains(&c));
        plain.then(|| part.parse().ok()).flatten()
    };
    path.split('.').map(number).collect()
}

/// Masked leaves by their numbers; a node without children is a leaf.
#[derive(Default)]
struct Tree(BTreeMap<u32, Tree>);

impl Tree {
    fn insert(&mut self, numbers: &[u32]) {
        if let Some((first, rest)) = numbers.split_first() {
            self.0.entry(*first).or_default().insert(rest);
        }
    }

    fn copy(&self, target: &mut DynamicMessage, source: &DynamicMessage) -> usize {
        let descriptor = target.descriptor();
        let fields = self.0.iter();
        fields
            .filter_map(|(number, below)| Some((descriptor.get_field(*number)?, below)))
            .map(|(field, below)| {
                if below.0.is_empty() {
                    copy_value(&field, target, source)
                } else if field.is_list() {
                    below.copy_list(&field, target, source)
                } else {
                    below.copy_message(&field, target, source)
                }
            })
            .sum()
    }

    fn copy_list(
        &self,
        field: &FieldDescriptor,
        target: &mut DynamicMessage,
        source: &DynamicMessage,
    ) -> usize {
        let mut made = DynamicMessage::new(target.descriptor());
        let elements = source.get_field(field);
        let elements = elements.as_list().unwrap_or_default().iter().filter_map(Value::as_message);
        let list: Vec<Value> = elements
            .map(|element| {
                let mut fresh = DynamicMessage::new(element.descriptor());
                self.copy(&mut fresh, element);
                Value::Message(fresh)
            })
            .collect();
        made.set_field(field, Value::List(list));
        copy_value(field, target, &made)
    }

    fn copy_message(
        &self,
        field: &FieldDescriptor,
        target: &mut DynamicMessage,
        source: &DynamicMessage,
    ) -> usize {
        let given = source.get_field(field);
        let Some(given) = given.as_message() else { return 0 };
        let present = target.has_field(field);
        let mut merged = target
            .get_field(field)
            .as_message()
            .cloned()
            .unwrap_or_else(|| DynamicMessage::new(given.descriptor()));
        let changes = self.copy(&mut merged, given);
        let chosen = field.containing_oneof().is_some() && source.has_field(field) && !present;
        if changes == 0 && !chosen {
            return 0;
        }
        if !source.has_field(field) && merged.encoded_len() == 0 {
            target.clear_field(field);
        } else {
            target.set_field(field, Value::Message(merged));
        }
        changes.max(1)
    }
}

fn copy_value(
    field: &FieldDescriptor,
    target: &mut DynamicMessage,
    source: &DynamicMessage,
) -> usize {
    let given = source.get_field(field);
    let same_presence =
        !field.supports_presence() || source.has_field(field) == target.has_field(field);
    if same_presence && same(&given, &target.get_field(field)) {
        return 0;
    }
    if source.has_field(field) {
        target.set_field(field, given.into_owned());
    } else {
        target.clear_field(field);
    }
    1
}

/// Equal, also when not a number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}
