//! Reads a tree of values into the structs, and says exactly what did not fit.
//!
//! This is a serde deserializer of our own for two reasons: an error keeps the
//! origin of the value that caused it, and text from a variable is read as
//! what the struct asks for, so that `SELVAGE_X=5` is a number for a number
//! and a name for a name.

use std::{collections::btree_map, fmt, slice};

use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, Expected, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
};

use super::{
    node::{Entry, Node, Origin, Value},
    types::REDACTED,
};

/// A value shown in an error is cut after so many characters.
const SHOWN: usize = 80;

#[derive(Debug)]
pub(super) enum Reason {
    UnknownKey { siblings: Vec<String> },
    Missing,
    Invalid(String),
}

/// A value that did not fit, and its position. Boxed: it is carried through
/// every level of the tree, mostly for nothing.
pub(super) struct Failure(Box<Fault>);

pub(super) struct Fault {
    pub(super) origin: Option<Origin>,
    pub(super) reason: Reason,
    /// The offending value in quotes, unless it is a secret or no single value.
    pub(super) value: Option<String>,
    /// Innermost first.
    path: Vec<String>,
    secret: bool,
}

impl Failure {
    fn new(reason: Reason) -> Self {
        let path = Vec::new();
        Self(Box::new(Fault { origin: None, reason, value: None, path, secret: false }))
    }

    fn invalid(reason: impl Into<String>) -> Self {
        Self::new(Reason::Invalid(reason.into()))
    }

    /// The key from the root.
    pub(super) fn key(&self) -> String {
        let mut key = String::new();
        for part in self.0.path.iter().rev() {
            if !key.is_empty() && !part.starts_with('[') {
                key.push('.');
            }
            key.push_str(part);
        }
        if key.is_empty() { "the configuration".to_owned() } else { key }
    }

    /// The whole finding, for the error that people see.
    pub(super) fn into_fault(self) -> Fault {
        *self.0
    }

    fn named(mut self, part: &str) -> Self {
        self.0.path.push(part.to_owned());
        self
    }

    fn inside(mut self, part: String, node: &Node) -> Self {
        let fault = &mut self.0;
        if fault.origin.is_none() {
            fault.origin = Some(node.origin.clone());
            fault.value = (!fault.secret).then(|| node.shown()).flatten();
        }
        fault.path.push(part);
        self
    }
}

// serde asks for Debug; no more than Display may come out of it.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.key(), self.0.reason)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::invalid(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid(format!("expected {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid(format!("expected {expected}"))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        let known: Vec<String> = expected.iter().map(|name| format!("{name:?}")).collect();
        Self::invalid(match known.as_slice() {
            [one] => format!("expected {one}"),
            several => format!("expected one of {}", several.join(", ")),
        })
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let siblings = expected.iter().map(|name| (*name).to_owned()).collect();
        Self::new(Reason::UnknownKey { siblings }).named(field)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Reason::Missing).named(field)
    }
}

impl Node {
    fn shown(&self) -> Option<String> {
        match &self.value {
            Value::Given(text) | Value::Text(text) if text.chars().count() > SHOWN => {
                Some(format!("{:?}…", text.chars().take(SHOWN).collect::<String>()))
            }
            Value::Given(text) | Value::Text(text) => Some(format!("{text:?}")),
            Value::Integer(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Boolean(boolean) => Some(boolean.to_string()),
            Value::List(_) | Value::Table(_) => None,
        }
    }
}

/// The deserializer of one value.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    node: &'a Node,
}

impl<'a> Reader<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self { node }
    }

    fn integer<T: TryFrom<i128>>(self, least: i128, most: i128) -> Result<T, Failure> {
        let number = match &self.node.value {
            Value::Integer(number) => Some(*number),
            Value::Given(text) => text.trim().parse().ok(),
            _ => None,
        };
        let number = number.ok_or_else(|| Failure::invalid("expected an integer"))?;
        T::try_from(number)
            .map_err(|_| Failure::invalid(format!("expected an integer from {least} to {most}")))
    }

    fn float(self) -> Result<f64, Failure> {
        let number = match &self.node.value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
            Value::Given(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| Failure::invalid("expected a number"))
    }

    fn text(self) -> Result<&'a str, Failure> {
        match &self.node.value {
            Value::Given(text) | Value::Text(text) => Ok(text),
            _ => Err(Failure::invalid("expected text in quotes")),
        }
    }

    /// Text from a variable or a flag, read as TOML of the shape asked for.
    fn inline(self, opening: char) -> Option<Node> {
        match &self.node.value {
            Value::Given(text) if text.trim_start().starts_with(opening) => {
                Node::from_inline(text.trim(), &self.node.origin)
            }
            _ => None,
        }
    }

    fn table<'de, V: Visitor<'de>>(
        self,
        known: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        if let Some(node) = self.inline('{') {
            return Reader::new(&node).table(known, visitor);
        }
        let Value::Table(table) = &self.node.value else {
            return Err(Failure::invalid("expected a table"));
        };
        let unknown = known.and_then(|known| {
            let mut entries = table.iter();
            entries.find(|(key, _)| !known.contains(&key.as_str())).map(|found| (known, found))
        });
        if let Some((known, (key, entry))) = unknown {
            let mut failure: Failure = de::Error::unknown_field(key, known);
            failure.0.origin = Some(entry.key.clone());
            return Err(failure);
        }
        visitor.visit_map(Entries { entries: table.iter(), current: None })
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            visitor.$visit(self.integer::<$type>(<$type>::MIN as i128, <$type>::MAX as i128)?)
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            visitor.visit_str(self.text()?)
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    integers! {
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    texts! { deserialize_char deserialize_str deserialize_string deserialize_bytes
    deserialize_byte_buf deserialize_identifier }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Given(text) | Value::Text(text) => visitor.visit_str(text),
            Value::Integer(number) => match i64::try_from(*number) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => visitor.visit_i128(*number),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Table(_) => self.table(None, visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::Given(text) if text == "true" => visitor.visit_bool(true),
            Value::Given(text) if text == "false" => visitor.visit_bool(false),
            _ => Err(Failure::invalid("expected true or false")),
        }
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_u128(self.integer(0, i128::MAX)?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_f64(self.float()?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_f64(self.float()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Failure> {
        Err(Failure::invalid("expected nothing at all"))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self).map_err(|mut failure| {
            failure.0.secret |= name == REDACTED;
            failure
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        if let Some(node) = self.inline('[') {
            return Reader::new(&node).deserialize_seq(visitor);
        }
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Given(text) => {
                let given = |part: &str| Node {
                    origin: self.node.origin.clone(),
                    value: Value::Given(part.trim().to_owned()),
                };
                let parts = text.split(',').filter(|_| !text.trim().is_empty());
                let items: Vec<Node> = parts.map(given).collect();
                visitor.visit_seq(Items { items: items.iter(), index: 0 })
            }
            _ => Err(Failure::invalid("expected a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.table(None, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.table(Some(fields), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Table(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Entries {
                    entries: table.iter(),
                    current: None,
                }))
            }
            Value::Table(_) => Err(Failure::invalid("expected a table with exactly one key")),
            _ => visitor.visit_enum(StrDeserializer::new(self.text()?)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }
}

struct Entries<'a> {
    entries: btree_map::Iter<'a, String, Entry>,
    current: Option<(&'a str, &'a Node)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        let Some((key, entry)) = self.entries.next() else { return Ok(None) };
        self.current = Some((key, &entry.node));
        seed.deserialize(StrDeserializer::new(key)).map(Some).map_err(|mut failure: Failure| {
            // A key that its map's type refuses is as wrong as a value.
            failure.0.origin = Some(entry.key.clone());
            failure.0.value = Some(format!("{key:?}"));
            failure
        })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Failure> {
        let Some((key, node)) = self.current.take() else {
            return Err(Failure::invalid("a value was read before its key"));
        };
        seed.deserialize(Reader { node }).map_err(|failure| failure.inside(key.to_owned(), node))
    }
}

struct Items<'a> {
    items: slice::Iter<'a, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Failure> {
        let Some(node) = self.items.next() else { return Ok(None) };
        let part = format!("[{}]", self.index);
        self.index += 1;
        seed.deserialize(Reader { node }).map(Some).map_err(|failure| failure.inside(part, node))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}
