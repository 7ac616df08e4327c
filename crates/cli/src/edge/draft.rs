//! An object in the making: a message, and which of its leaves somebody named.
//! Without the second nobody could tell "set it to zero" from "leave it".

use std::collections::BTreeSet;

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind as Type, MessageDescriptor, ReflectMessage, Value,
};
use selvage_api::object::plan;
use selvage_edge::is_auto_cluster;

use super::{
    Kind,
    scalar::{self, Wrong, normal},
    yaml::{Content, Node},
};
use crate::{Error, suggest};

/// Longer lists are nobody's intention.
const LONGEST_LIST: usize = 10_000;

/// A message and the leaves that were named.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) message: DynamicMessage,
    given: BTreeSet<Vec<u32>>,
}

/// Position of a value in the input, for errors.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    /// File or flag.
    origin: String,
    path: String,
}

impl Position {
    pub(crate) fn new(origin: &str) -> Self {
        Self { origin: origin.to_owned(), path: String::new() }
    }

    fn inside(&self, name: &str) -> Self {
        let path = match (self.path.is_empty(), name.starts_with('[')) {
            (true, _) => name.to_owned(),
            (false, true) => format!("{}{name}", self.path),
            (false, false) => format!("{}.{name}", self.path),
        };
        Self { path, ..self.clone() }
    }

    pub(crate) fn wrong(&self, line: usize, wrong: Wrong) -> Error {
        let line = if line > 0 { format!(" line {line}") } else { String::new() };
        let path = match self.path.as_str() {
            "" => format!("{}{line}", self.origin),
            path => format!("{}{line}: {path}", self.origin),
        };
        Error::Field { path, message: wrong.message, suggestions: wrong.suggestions }
    }

    fn complain(&self, line: usize, message: impl Into<String>) -> Error {
        self.wrong(line, Wrong { message: message.into(), suggestions: Vec::new() })
    }
}

impl Draft {
    pub(crate) fn new(kind: &Kind) -> Self {
        Self { message: DynamicMessage::new(kind.message.clone()), given: BTreeSet::new() }
    }

    /// A draft about an object that is there: its key, and of the fields that
    /// these paths change in part what they hold, so that the rest of a list
    /// stays.
    pub(crate) fn of(kind: &Kind, there: &DynamicMessage, paths: &[&str]) -> Self {
        let mut message = only_key(there);
        for path in paths {
            let Some((name, _)) = steps(path).into_iter().next() else { continue };
            let wanted = normal(&name);
            let field = kind.message.fields().find(|field| normal(field.name()) == wanted);
            if let Some(field) = field.filter(|field| field.name() != "key") {
                message.set_field(&field, there.get_field(&field).into_owned());
            }
        }
        Self { message, given: BTreeSet::new() }
    }

    /// A draft that names every field of a message that is set.
    pub(crate) fn naming(message: &DynamicMessage) -> Self {
        let given = message.fields().map(|(field, _)| vec![field.number()]).collect();
        Self { message: message.clone(), given }
    }

    /// Takes the key of an object that is there.
    pub(crate) fn take_key(&mut self, there: &DynamicMessage) {
        if let Some(key) = there.get_field_by_name("key") {
            self.message.set_field_by_name("key", key.into_owned());
        }
    }

    /// Sets a leaf by its numbers from the top message.
    pub(crate) fn set_leaf(
        &mut self,
        numbers: &[u32],
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let mut fill = Fill { given: &mut self.given, numbers: Vec::new() };
        fill.leaf(&mut self.message, numbers, node, position)
    }

    /// Sets what a path such as `configs[0].kind` names.
    pub(crate) fn set_path(
        &mut self,
        path: &str,
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let mut fill = Fill { given: &mut self.given, numbers: Vec::new() };
        fill.path(&mut self.message, &steps(path), node, position)
    }

    /// Takes what a mapping says.
    pub(crate) fn fill(&mut self, node: &Node, position: &Position) -> Result<(), Error> {
        let mut fill = Fill { given: &mut self.given, numbers: Vec::new() };
        fill.message(&mut self.message, node, position)
    }

    /// The named leaves that are neither the key nor filled by the server, as
    /// in the `fields` of an Update.
    pub(crate) fn named(&self, kind: &Kind) -> Vec<String> {
        let plan = plan(&kind.message);
        let mut paths = Vec::new();
        for numbers in &self.given {
            let leaves = plan.below(numbers).iter();
            paths.extend(
                leaves
                    .filter(|leaf| !leaf.name.starts_with("key."))
                    .filter(|leaf| !kind.is_server_set(&leaf.name))
                    .map(|leaf| leaf.path.clone()),
            );
        }
        paths.dedup();
        paths
    }

    /// Of those the ones whose values differ from what is there.
    pub(crate) fn differing(&self, kind: &Kind, there: &DynamicMessage) -> Vec<String> {
        let named = self.named(kind).into_iter();
        named.filter(|path| differs(path, &self.message, there)).collect()
    }

    /// The message of an Update of these fields.
    pub(crate) fn with_mask(&self, fields: Vec<String>) -> DynamicMessage {
        let mut message = self.message.clone();
        let fields = fields.into_iter().map(Value::String).collect();
        message.set_field_by_name("fields", Value::List(fields));
        message
    }
}

/// Returns whether two messages differ at a path of numbers.
pub(crate) fn differs(path: &str, one: &DynamicMessage, other: &DynamicMessage) -> bool {
    let numbers: Vec<u32> = path.split('.').filter_map(|number| number.parse().ok()).collect();
    values_at(one, &numbers) != values_at(other, &numbers)
}

/// The paths in the mask of an Update.
pub(crate) fn mask_of(message: &DynamicMessage) -> Vec<String> {
    let fields = message.get_field_by_name("fields");
    let paths = fields.as_deref().and_then(Value::as_list).unwrap_or_default();
    paths.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The values at a path, one for each element of the lists on the way; zero
/// values where nothing is.
pub(crate) fn values_at(message: &DynamicMessage, numbers: &[u32]) -> Vec<Value> {
    let Some((first, rest)) = numbers.split_first() else { return Vec::new() };
    let Some(field) = message.descriptor().get_field(*first) else { return Vec::new() };
    let value = message.get_field(&field);
    match (&*value, rest.is_empty()) {
        (value, true) => vec![value.clone()],
        (Value::Message(inner), false) => values_at(inner, rest),
        (Value::List(items), false) => {
            // The length counts too: an element of zeros is an element.
            let elements = items.iter().filter_map(Value::as_message);
            let count = u64::try_from(items.len()).unwrap_or(u64::MAX);
            [Value::U64(count)]
                .into_iter()
                .chain(elements.flat_map(|e| values_at(e, rest)))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Sets a text by the numbers of its leaf.
pub(crate) fn set_text(message: &mut DynamicMessage, numbers: &[u32], text: &str) {
    let Some((first, rest)) = numbers.split_first() else { return };
    let Some(field) = message.descriptor().get_field(*first) else { return };
    match (rest, message.get_field_mut(&field)) {
        ([], value) => *value = Value::String(text.to_owned()),
        (rest, Value::Message(inner)) => set_text(inner, rest, text),
        _ => {}
    }
}

/// A message with nothing but the key of this one, as it stands.
pub(crate) fn only_key(message: &DynamicMessage) -> DynamicMessage {
    let mut only = DynamicMessage::new(message.descriptor());
    if let Some(key) = message.get_field_by_name("key") {
        only.set_field_by_name("key", key.into_owned());
    }
    only
}

/// The key of an object as people read it: its names, from the outside in.
pub(crate) fn key_text(message: &DynamicMessage) -> String {
    let plan = plan(&message.descriptor());
    let leaves = plan.leaves().iter().filter(|leaf| leaf.name.starts_with("key."));
    let texts = leaves.flat_map(|leaf| values_at(message, &leaf.numbers)).filter_map(|value| {
        let text = value.as_str().map(str::to_owned);
        text.filter(|text| !text.is_empty())
    });
    texts.collect::<Vec<_>>().join("/")
}

/// Returns whether two objects have the same key, leaf by leaf.
pub(crate) fn same_key(message: &DynamicMessage, other: &DynamicMessage) -> bool {
    let plan = plan(&message.descriptor());
    let mut leaves = plan.leaves().iter().filter(|leaf| leaf.name.starts_with("key."));
    leaves.all(|leaf| values_at(message, &leaf.numbers) == values_at(other, &leaf.numbers))
}

/// A message with nothing but the key under which the server keeps what this
/// one asks for.
pub(crate) fn kept_key(message: &DynamicMessage) -> DynamicMessage {
    let mut only = only_key(message);
    keep_key(&mut only);
    only
}

/// Makes the key what the server makes of it: it fills in whose cluster an
/// instance is in, and writes the names of clusters that it makes itself in
/// lower case.
pub(crate) fn keep_key(message: &mut DynamicMessage) {
    let _ = complete_cluster(message);
}

/// `None` where the key names no cluster of an instance.
fn complete_cluster(message: &mut DynamicMessage) -> Option<()> {
    message.descriptor().get_field_by_name("key").filter(|field| {
        let inside = field.kind();
        inside.as_message().is_some_and(|key| key.get_field_by_name("cluster_inst_key").is_some())
    })?;
    let key = message.get_field_by_name_mut("key")?.as_message_mut()?;
    let owner = key.get_field_by_name("app_key")?.as_message()?.clone();
    let owner = owner.get_field_by_name("developer_key")?.as_message()?.clone();
    let owner = owner.get_field_by_name("name")?.into_owned();
    let cluster_inst = key.get_field_by_name_mut("cluster_inst_key")?.as_message_mut()?;
    let developer = cluster_inst.get_field_by_name_mut("developer")?;
    if developer.as_str() == Some("") {
        *developer = owner;
    }
    let cluster = cluster_inst.get_field_by_name_mut("cluster_key")?.as_message_mut()?;
    let name = cluster.get_field_by_name_mut("name")?;
    if let Some(auto) = name.as_str().filter(|name| is_auto_cluster(name)) {
        *name = Value::String(auto.to_lowercase());
    }
    Some(())
}

/// One step of a path: a name, and which element of the list it is.
type Step = (String, Option<usize>);

fn steps(path: &str) -> Vec<Step> {
    path.split('.')
        .map(|part| match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((name, index)) if index.parse::<usize>().is_ok() => {
                (name.to_owned(), index.parse().ok())
            }
            _ => (part.to_owned(), None),
        })
        .collect()
}

/// Fills messages and writes down what it filled.
struct Fill<'a> {
    given: &'a mut BTreeSet<Vec<u32>>,
    numbers: Vec<u32>,
}

impl Fill<'_> {
    fn leaf(
        &mut self,
        message: &mut DynamicMessage,
        numbers: &[u32],
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let descriptor = message.descriptor();
        let field = numbers.first().and_then(|number| descriptor.get_field(*number));
        let Some(field) = field else {
            return Err(Error::Unexpected(format!("{} has no such field", descriptor.name())));
        };
        self.numbers.push(field.number());
        match (numbers.get(1..), message.get_field_mut(&field)) {
            (Some(rest @ [_, ..]), Value::Message(inner)) => {
                self.leaf(inner, rest, node, position)?
            }
            _ => self.field(message, &field, node, position)?,
        }
        self.numbers.pop();
        Ok(())
    }

    fn path(
        &mut self,
        message: &mut DynamicMessage,
        steps: &[Step],
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let Some(((name, index), rest)) = steps.split_first() else { return Ok(()) };
        let field = find(&message.descriptor(), name, 0, position)?;
        let position = position.inside(field.name());
        self.numbers.push(field.number());
        match (index, rest) {
            (Some(index), rest) => {
                self.element(message, &field, (*index, rest), node, &position)?
            }
            (None, [(key, None)]) if field.is_map() => {
                self.entry(message, &field, key, node, &position)?
            }
            (None, []) => self.field(message, &field, node, &position)?,
            (None, rest) => match message.get_field_mut(&field) {
                Value::Message(inner) => self.path(inner, rest, node, &position)?,
                _ => return Err(position.complain(0, "holds nothing that could be named")),
            },
        }
        self.numbers.pop();
        Ok(())
    }

    fn element(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        (index, rest): (usize, &[Step]),
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let here = position.inside(&format!("[{index}]"));
        let Value::List(items) = message.get_field_mut(field) else {
            return Err(position.complain(0, "is no list"));
        };
        if index > items.len() || index >= LONGEST_LIST {
            let message = format!("there are {} before it; name them in order", items.len());
            return Err(here.complain(0, message));
        }
        self.given.insert(self.numbers.clone());
        if rest.is_empty() {
            let value = one(&field.kind(), node, &here)?;
            if index == items.len() {
                items.push(value)
            } else {
                items[index] = value
            }
            return Ok(());
        }
        let Type::Message(inner) = field.kind() else {
            return Err(here.complain(0, "holds nothing that could be named"));
        };
        if index == items.len() {
            items.push(Value::Message(DynamicMessage::new(inner)));
        }
        // Inside a list the list counts as named, not its elements' fields.
        let mut inside = Fill { given: &mut BTreeSet::new(), numbers: Vec::new() };
        match items.get_mut(index) {
            Some(Value::Message(element)) => inside.path(element, rest, node, &here),
            _ => Ok(()),
        }
    }

    fn entry(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        key: &str,
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let Type::Message(entry) = field.kind() else { return Ok(()) };
        let position = position.inside(key);
        let kind = entry.map_entry_key_field().kind();
        let key = scalar::map_key(&kind, key).map_err(|wrong| position.wrong(node.line, wrong))?;
        let value = one(&entry.map_entry_value_field().kind(), node, &position)?;
        if let Value::Map(entries) = message.get_field_mut(field) {
            entries.insert(key, value);
        }
        self.given.insert(self.numbers.clone());
        Ok(())
    }

    fn message(
        &mut self,
        message: &mut DynamicMessage,
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        let entries = match &node.content {
            Content::Map(entries) => entries,
            Content::Null => return Ok(()),
            _ => {
                let name = message.descriptor().name().to_owned();
                let text = format!("must be a mapping, a {name}, and is {}", node.is_a());
                return Err(position.complain(node.line, text));
            }
        };
        for (key, line, value) in entries {
            let field = find(&message.descriptor(), key, *line, position)?;
            self.numbers.push(field.number());
            self.field(message, &field, value, &position.inside(key))?;
            self.numbers.pop();
        }
        Ok(())
    }

    fn field(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        node: &Node,
        position: &Position,
    ) -> Result<(), Error> {
        if let (Type::Message(_), false, Value::Message(inner)) =
            (field.kind(), field.is_list() || field.is_map(), message.get_field_mut(field))
        {
            return self.message(inner, node, position);
        }
        self.given.insert(self.numbers.clone());
        if node.content == Content::Null {
            message.clear_field(field);
            return Ok(());
        }
        if field.is_map() {
            let Content::Map(entries) = &node.content else {
                return Err(position.complain(node.line, "must be a mapping"));
            };
            return entries
                .iter()
                .try_for_each(|(key, _, value)| self.entry(message, field, key, value, position));
        }
        let value = if field.is_list() {
            list(field, node, position)?
        } else {
            one(&field.kind(), node, position)?
        };
        message.set_field(field, value);
        Ok(())
    }
}

fn list(field: &FieldDescriptor, node: &Node, position: &Position) -> Result<Value, Error> {
    let Content::List(items) = &node.content else {
        return Err(position.complain(node.line, format!("must be a list, and is {}", node.is_a())));
    };
    let values = items
        .iter()
        .enumerate()
        .map(|(at, item)| one(&field.kind(), item, &position.inside(&format!("[{at}]"))));
    Ok(Value::List(values.collect::<Result<_, _>>()?))
}

/// A value that is no list: a scalar, or a message of its own.
fn one(kind: &Type, node: &Node, position: &Position) -> Result<Value, Error> {
    match (kind, &node.content) {
        (Type::Message(inner), _) => {
            let mut message = DynamicMessage::new(inner.clone());
            let mut fill = Fill { given: &mut BTreeSet::new(), numbers: Vec::new() };
            fill.message(&mut message, node, position)?;
            Ok(Value::Message(message))
        }
        (kind, Content::Text(text)) => {
            scalar::value(kind, text).map_err(|wrong| position.wrong(node.line, wrong))
        }
        (kind, Content::Null) => Ok(Value::default_value(kind)),
        _ => {
            let text = format!("must be a single value, and is {}", node.is_a());
            Err(position.complain(node.line, text))
        }
    }
}

/// The field of a name, whatever its case and underscores.
fn find(
    descriptor: &MessageDescriptor,
    name: &str,
    line: usize,
    position: &Position,
) -> Result<FieldDescriptor, Error> {
    let wanted = normal(name);
    let found = descriptor.fields().find(|field| normal(field.name()) == wanted);
    // The mask of an Update is made here, from what is named.
    found.filter(|field| field.name() != "fields").ok_or_else(|| {
        let names: Vec<String> = descriptor
            .fields()
            .map(|field| field.name().to_owned())
            .filter(|name| name != "fields")
            .collect();
        let wrong = Wrong {
            message: format!("{} has no field {name:?}", descriptor.name()),
            suggestions: suggest::closest(name, names.iter().map(String::as_str)),
        };
        position.wrong(line, wrong)
    })
}
