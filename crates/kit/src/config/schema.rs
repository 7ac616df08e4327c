//! The keys of a configuration, read off its types.
//!
//! `Deserialize` tells a deserializer what it wants before it gets anything:
//! a struct names its fields. So a type is asked again and again, each time
//! along one path of fields, what it wants at the end of that path; the answer
//! is noted and the question abandoned with an error. This sees optional keys,
//! which a default value does not show.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
};

use serde::{
    Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, Visitor, value},
    forward_to_deserialize_any,
};

use super::Error;

/// Deeper than any configuration that somebody would want to write.
const MAX_DEPTH: usize = 8;

/// Shape of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Has keys of its own, which are in the schema.
    Struct,
    /// Has keys that the user chooses.
    Map,
    /// Anything else.
    Leaf,
}

/// All keys with their full paths.
#[derive(Debug)]
pub(super) struct Schema {
    keys: BTreeMap<String, Kind>,
}

impl Schema {
    pub(super) fn of<T: DeserializeOwned>() -> Self {
        let mut keys = BTreeMap::new();
        let mut open = VecDeque::from([Vec::new()]);
        while let Some(path) = open.pop_front() {
            let (kind, fields) = match ask::<T>(&path) {
                Shape::Struct(fields) => (Kind::Struct, fields),
                Shape::Map => (Kind::Map, &[][..]),
                Shape::Other => (Kind::Leaf, &[][..]),
            };
            keys.insert(path.join("."), kind);
            if path.len() < MAX_DEPTH {
                open.extend(fields.iter().map(|field| [path.as_slice(), &[*field]].concat()));
            }
        }
        Self { keys }
    }

    pub(super) fn kind(&self, path: &[String]) -> Option<Kind> {
        self.keys.get(&path.join(".")).copied()
    }

    /// The variables that set something, with their keys.
    pub(super) fn variables(&self, prefix: &str) -> Result<BTreeMap<String, String>, Error> {
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        for (key, _) in self.keys.iter().filter(|(_, kind)| **kind != Kind::Struct) {
            let variable = variable(prefix, key);
            if let Some(first) = variables.insert(variable.clone(), key.clone()) {
                return Err(Error::Ambiguous { variable, first, second: key.clone() });
            }
        }
        Ok(variables)
    }

    /// The key that was probably meant. `siblings` are the keys allowed where
    /// the unknown one stands, which inside lists only the reader knows.
    pub(super) fn suggest(&self, unknown: &str, siblings: &[String]) -> Option<String> {
        let parent =
            unknown.rsplit_once('.').map_or(String::new(), |(parent, _)| format!("{parent}."));
        let beside: Vec<String> = siblings.iter().map(|name| format!("{parent}{name}")).collect();
        let all = self.keys.keys().map(String::as_str).filter(|key| !key.is_empty());
        nearest(unknown, beside.iter().map(String::as_str))
            .or_else(|| {
                let suffix = format!(".{}", unknown.rsplit('.').next().unwrap_or(unknown));
                let mut same_name = all.clone().filter(|key| key.ends_with(&suffix));
                same_name.next().filter(|_| same_name.next().is_none()).map(str::to_owned)
            })
            .or_else(|| nearest(unknown, all))
    }
}

/// Name of the variable that sets a key.
pub(super) fn variable(prefix: &str, key: &str) -> String {
    format!("{prefix}{}", key.to_uppercase().replace(['.', '-'], "_"))
}

/// The candidate closest to `text`, if it is close at all. What two names
/// share at the front does not make them more alike.
pub(super) fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    candidates
        .map(|candidate| {
            (strsim::osa_distance(text, candidate), different_part(text, candidate), candidate)
        })
        .filter(|(distance, length, _)| *distance <= 2.min(length.div_ceil(2)))
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., candidate)| candidate.to_owned())
}

/// Length of the last word, or of the first that differs, whichever is less
/// forgiving.
fn different_part(text: &str, candidate: &str) -> usize {
    let words = |text: &str| text.split(['.', '_', '-']).map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (words(text), words(candidate));
    a.iter()
        .zip(&b)
        .find(|(a, b)| a != b)
        .map_or(1, |(a, b)| a.chars().count().max(b.chars().count()))
}

enum Shape {
    Struct(&'static [&'static str]),
    Map,
    Other,
}

fn ask<T: DeserializeOwned>(path: &[&'static str]) -> Shape {
    let answer = Cell::new(Shape::Other);
    // The answer is in the cell; what comes back is the error that ended it.
    let _ = T::deserialize(Question { path, answer: &answer });
    answer.into_inner()
}

#[derive(Clone, Copy)]
struct Question<'a> {
    path: &'a [&'static str],
    answer: &'a Cell<Shape>,
}

impl Question<'_> {
    fn answered<T>(self, wanted: Shape) -> Result<T, value::Error> {
        self.answer.set(wanted);
        Err(value::Error::custom("answered"))
    }
}

impl<'de> Deserializer<'de> for Question<'_> {
    type Error = value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, value::Error> {
        match self.path.split_first() {
            None => self.answered(Shape::Struct(fields)),
            Some((field, rest)) => visitor
                .visit_map(OneField { field: Some(field), rest: Question { path: rest, ..self } }),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        self.answered(Shape::Map)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, value::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, value::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        self.answered(Shape::Other)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
        bytes byte_buf unit unit_struct seq tuple tuple_struct enum identifier
        ignored_any
    }
}

struct OneField<'a> {
    field: Option<&'static str>,
    rest: Question<'a>,
}

impl<'de> MapAccess<'de> for OneField<'_> {
    type Error = value::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, value::Error> {
        let Some(field) = self.field.take() else { return Ok(None) };
        seed.deserialize(value::StrDeserializer::new(field)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, value::Error> {
        seed.deserialize(self.rest)
    }
}
