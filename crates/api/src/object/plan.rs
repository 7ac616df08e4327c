//! The leaves of a message type: what an Update can name and a Show can ask
//! for.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use prost_reflect::{Kind, MessageDescriptor};

use super::mask_field;

/// A field that holds a value of its own: a scalar, an enum, a list of those
/// or a map; at any depth, also inside lists of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Field numbers from the top message.
    pub numbers: Vec<u32>,
    /// The same, dotted, as in `fields`: `2.1.1`.
    pub path: String,
    /// Field names, dotted: `key.operator_key.name`.
    pub name: String,
}

/// The leaves of one message type.
#[derive(Debug)]
pub struct Plan {
    descriptor: MessageDescriptor,
    leaves: Vec<Leaf>,
}

impl Plan {
    pub fn descriptor(&self) -> &MessageDescriptor {
        &self.descriptor
    }

    /// All leaves, in order of their numbers.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// The leaf at a path, or all leaves below it; empty when there is no
    /// such field.
    pub fn below(&self, numbers: &[u32]) -> &[Leaf] {
        let start = self.leaves.partition_point(|leaf| leaf.numbers.as_slice() < numbers);
        let rest = self.leaves.get(start..).unwrap_or_default();
        let count = rest.partition_point(|leaf| leaf.numbers.starts_with(numbers));
        rest.get(..count).unwrap_or_default()
    }
}

static PLANS: LazyLock<RwLock<HashMap<String, Arc<Plan>>>> = LazyLock::new(RwLock::default);

/// The plan of a message type, made once.
pub fn plan(descriptor: &MessageDescriptor) -> Arc<Plan> {
    let known =
        PLANS.read().unwrap_or_else(PoisonError::into_inner).get(descriptor.full_name()).cloned();
    // Another pool may know another type by the same name.
    if let Some(plan) = known.filter(|plan| plan.descriptor == *descriptor) {
        return plan;
    }
    let mut walk = Walk { leaves: Vec::new(), numbers: Vec::new(), names: Vec::new() };
    walk.message(descriptor, &mut Vec::new());
    let plan = Arc::new(Plan { descriptor: descriptor.clone(), leaves: walk.leaves });
    let mut plans = PLANS.write().unwrap_or_else(PoisonError::into_inner);
    plans.insert(descriptor.full_name().to_owned(), plan.clone());
    plan
}

struct Walk {
    leaves: Vec<Leaf>,
    numbers: Vec<u32>,
    names: Vec<String>,
}

impl Walk {
    fn message(&mut self, descriptor: &MessageDescriptor, inside: &mut Vec<MessageDescriptor>) {
        let mask = inside.is_empty().then(|| mask_field(descriptor)).flatten();
        inside.push(descriptor.clone());
        for field in descriptor.fields().filter(|field| Some(field) != mask.as_ref()) {
            self.numbers.push(field.number());
            self.names.push(field.name().to_owned());
            match field.kind() {
                // A type inside itself has no last leaf: it is copied whole.
                Kind::Message(inner) if !field.is_map() && !inside.contains(&inner) => {
                    self.message(&inner, inside);
                }
                _ => self.leaf(),
            }
            self.numbers.pop();
            self.names.pop();
        }
        inside.pop();
    }

    fn leaf(&mut self) {
        let path: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        self.leaves.push(Leaf {
            numbers: self.numbers.clone(),
            path: path.join("."),
            name: self.names.join("."),
        });
    }
}
