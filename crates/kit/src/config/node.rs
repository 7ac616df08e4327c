//! A tree of values in which each remembers where it came from.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Error,
    schema::{Kind, Schema},
};

/// Source of a value.
#[derive(Clone)]
pub(super) enum Origin {
    Default,
    File { path: Arc<str>, line: usize, column: usize },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("built-in defaults"),
            Self::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One value. No `Debug`: it may be a secret.
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

pub(super) enum Value {
    /// From a variable or a flag: what it means depends on what is asked for.
    Given(String),
    Text(String),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    List(Vec<Node>),
    Table(BTreeMap<String, Entry>),
}

pub(super) struct Entry {
    /// Position of the key, which in a file is not that of the value.
    pub(super) key: Origin,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn from_defaults(value: &toml::Value) -> Self {
        let value = match value {
            toml::Value::String(text) => Value::Text(text.clone()),
            toml::Value::Integer(number) => Value::Integer((*number).into()),
            toml::Value::Float(number) => Value::Float(*number),
            toml::Value::Boolean(boolean) => Value::Boolean(*boolean),
            toml::Value::Datetime(time) => Value::Text(time.to_string()),
            toml::Value::Array(items) => {
                Value::List(items.iter().map(Self::from_defaults).collect())
            }
            toml::Value::Table(table) => Value::Table(
                table
                    .iter()
                    .map(|(key, value)| {
                        let node = Self::from_defaults(value);
                        (key.clone(), Entry { key: Origin::Default, node })
                    })
                    .collect(),
            ),
        };
        Self { origin: Origin::Default, value }
    }

    pub(super) fn from_file(path: &Path, text: &str) -> Result<Self, Error> {
        let source = Source { path: path.display().to_string().into(), text };
        let document = DeTable::parse(text).map_err(|error| Error::Syntax {
            place: source.at(error.span().map_or(0, |span| span.start)).to_string(),
            message: error.message().replace('\n', ", "),
        })?;
        let origin = source.at(document.span().start);
        Ok(Self { origin, value: source.table(document.get_ref()) })
    }

    /// A value written as TOML inside a variable or a flag.
    pub(super) fn from_inline(text: &str, origin: &Origin) -> Option<Self> {
        let source = Source { path: "".into(), text };
        let parsed = DeValue::parse(text).ok()?;
        let mut node = source.node(&parsed);
        node.move_to(origin);
        Some(node)
    }

    /// The tree in which only this key is set.
    pub(super) fn at_key(key: &str, value: String, origin: &Origin) -> Self {
        let leaf = Self { origin: origin.clone(), value: Value::Given(value) };
        key.rsplit('.').fold(leaf, |node, part| {
            let entry = Entry { key: origin.clone(), node };
            let table = BTreeMap::from([(part.to_owned(), entry)]);
            Self { origin: origin.clone(), value: Value::Table(table) }
        })
    }

    /// Moves what stands at the old name to the new one, unless something
    /// stands there already; where it stood.
    pub(super) fn rename(&mut self, old: &str, new: &str) -> Option<Origin> {
        let Entry { key, node } = self.take(old)?;
        let place = key.clone();
        let mut table = self;
        let (sections, last) = new.rsplit_once('.').unwrap_or(("", new));
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            let Value::Table(inside) = &mut table.value else { return Some(place) };
            let entry = inside.entry(section.to_owned()).or_insert_with(|| Entry {
                key: key.clone(),
                node: Self { origin: key.clone(), value: Value::Table(BTreeMap::new()) },
            });
            table = &mut entry.node;
        }
        if let Value::Table(inside) = &mut table.value {
            inside.entry(last.to_owned()).or_insert(Entry { key, node });
        }
        Some(place)
    }

    /// Takes what stands at this key out of the tree.
    fn take(&mut self, key: &str) -> Option<Entry> {
        let Value::Table(table) = &mut self.value else { return None };
        match key.split_once('.') {
            None => table.remove(key),
            Some((section, rest)) => {
                let inside = &mut table.get_mut(section)?.node;
                let taken = inside.take(rest);
                // A section that held nothing else may not be one any more.
                if matches!(&inside.value, Value::Table(table) if table.is_empty()) {
                    table.remove(section);
                }
                taken
            }
        }
    }

    fn move_to(&mut self, origin: &Origin) {
        self.origin = origin.clone();
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.move_to(origin)),
            Value::Table(table) => table.values_mut().for_each(|entry| {
                entry.key = origin.clone();
                entry.node.move_to(origin);
            }),
            Value::Given(_)
            | Value::Text(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_) => {}
        }
    }

    /// Lays `over` on top. Only what the schema knows as a struct or a map is
    /// merged: half of one enum variant and half of another make no sense.
    pub(super) fn overlay(&mut self, over: Self, schema: &Schema, path: &mut Vec<String>) {
        let mergeable = matches!(schema.kind(path), Some(Kind::Struct | Kind::Map));
        match (&mut self.value, over) {
            (Value::Table(below), Self { value: Value::Table(above), .. }) if mergeable => {
                for (key, entry) in above {
                    path.push(key.clone());
                    match below.get_mut(&key) {
                        Some(existing) => {
                            existing.key = entry.key;
                            existing.node.overlay(entry.node, schema, path);
                        }
                        None => {
                            below.insert(key, entry);
                        }
                    }
                    path.pop();
                }
            }
            (_, over) => *self = over,
        }
    }
}

struct Source<'a> {
    path: Arc<str>,
    text: &'a str,
}

impl Source<'_> {
    fn at(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        Origin::File { path: Arc::clone(&self.path), line, column }
    }

    fn node(&self, spanned: &Spanned<DeValue<'_>>) -> Node {
        let value = match spanned.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            // Wider than anything a configuration asks for; what does not fit
            // here is text that no integer key accepts.
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
                .map_or_else(|_| Value::Text(number.to_string()), Value::Integer),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .map_or_else(|_| Value::Text(number.as_str().to_owned()), Value::Float),
            DeValue::Boolean(boolean) => Value::Boolean(*boolean),
            DeValue::Datetime(time) => Value::Text(time.to_string()),
            DeValue::Array(items) => Value::List(items.iter().map(|i| self.node(i)).collect()),
            DeValue::Table(table) => self.table(table),
        };
        Node { origin: self.at(spanned.span().start), value }
    }

    fn table(&self, table: &DeTable<'_>) -> Value {
        Value::Table(
            table
                .iter()
                .map(|(key, value)| {
                    let entry = Entry { key: self.at(key.span().start), node: self.node(value) };
                    (key.get_ref().to_string(), entry)
                })
                .collect(),
        )
    }
}
