//! The filter of a Show: an object of the same type whose fields that are set
//! must be equal in what it matches.
//!
//! - Zero, empty and absent match anything; the empty filter matches all.
//! - Messages match field by field, at any depth.
//! - Lists match at equal length and order: scalars when equal, messages when
//!   each matches. Maps match when equal.
//! - `fields` is ignored.
//!
//! A filter is compiled once per request. Matching walks the encoded object
//! and decodes nothing that the filter does not ask for.

use std::{borrow::Cow, collections::HashMap};

use prost::{Message, Name};
use prost_reflect::{FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::{
    Error, decode, descriptor_of, mask_field,
    wire::{self, Raw, Reason},
};

/// Deeper than any contract, shallower than any stack.
const MAX_DEPTH: usize = 100;

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    descriptor: MessageDescriptor,
    level: Level,
}

impl Filter {
    /// Compiles the filter that an example makes.
    pub fn of<M: Message + Name>(example: &M) -> Result<Self, Error> {
        Self::of_encoded(descriptor_of::<M>()?, &example.encode_to_vec())
    }

    /// Creates a filter like [`Filter::of`], from an encoded example of a type.
    pub fn of_encoded(descriptor: MessageDescriptor, bytes: &[u8]) -> Result<Self, Error> {
        // Bytes that are not a message of the type must not become a filter.
        decode(descriptor.clone(), bytes)?;
        let level = Level::compile(&descriptor, bytes, 0)
            .map_err(|reason| malformed(&descriptor, reason))?;
        Ok(Self { descriptor, level })
    }

    /// True when it matches every object.
    pub fn is_empty(&self) -> bool {
        self.level.0.is_empty()
    }

    /// Returns whether an object of the filter's type matches. An object of
    /// another type matches only the empty filter.
    pub fn matches<M: Message + Name>(&self, object: &M) -> bool {
        self.is_empty()
            || (M::full_name() == self.descriptor.full_name()
                && self.level.matches(&object.encode_to_vec()).unwrap_or(false))
    }

    /// Does what [`Filter::matches`] does, for an object in its encoded form:
    /// the cheapest way over many objects.
    pub fn matches_encoded(&self, bytes: &[u8]) -> Result<bool, Error> {
        self.level.matches(bytes).map_err(|reason| malformed(&self.descriptor, reason))
    }
}

fn malformed(descriptor: &MessageDescriptor, reason: Reason) -> Error {
    Error::Malformed { message: descriptor.name().to_owned(), reason }
}

/// The tests on the fields of one message.
#[derive(Debug)]
struct Level(Vec<(u32, Test)>);

#[derive(Debug)]
enum Test {
    Scalar(Shape, Scalar),
    Message(Level),
    Scalars(Shape, Vec<Scalar>),
    Messages(Vec<Level>),
    Map(MessageDescriptor, HashMap<MapKey, Value>),
}

impl Level {
    fn compile(descriptor: &MessageDescriptor, bytes: &[u8], depth: usize) -> Result<Self, Reason> {
        if depth > MAX_DEPTH {
            return Err("nested too deeply");
        }
        let mask = (depth == 0).then(|| mask_field(descriptor)).flatten();
        let mut tests = Vec::new();
        for field in descriptor.fields().filter(|field| Some(field) != mask.as_ref()) {
            if let Some(test) = Test::compile(&field, bytes, depth)? {
                tests.push((field.number(), test));
            }
        }
        Ok(Self(tests))
    }

    fn matches(&self, bytes: &[u8]) -> Result<bool, Reason> {
        for (number, test) in &self.0 {
            if !test.matches(*number, bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Test {
    /// The test that a field of an example makes; `None` when it is not set.
    fn compile(
        field: &FieldDescriptor,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Option<Self>, Reason> {
        let number = field.number();
        Ok(match (field.kind(), Shape::of(&field.kind())) {
            (Kind::Message(entry), _) if field.is_map() => {
                let wanted = map(&entry, number, bytes)?;
                (!wanted.is_empty()).then_some(Self::Map(entry, wanted))
            }
            (Kind::Message(inner), _) if field.is_list() => {
                let levels: Result<Vec<Level>, Reason> = slices(number, bytes)
                    .map(|element| Level::compile(&inner, element?, depth + 1))
                    .collect();
                let levels = levels?;
                (!levels.is_empty()).then_some(Self::Messages(levels))
            }
            (Kind::Message(inner), _) => {
                let level = Level::compile(&inner, &joined(number, bytes)?, depth + 1)?;
                (!level.0.is_empty()).then_some(Self::Message(level))
            }
            (_, Some(shape)) if field.is_list() => {
                let wanted = list(shape, number, bytes)?;
                (!wanted.is_empty()).then_some(Self::Scalars(shape, wanted))
            }
            (_, Some(shape)) => last(number, bytes)?
                .map(|raw| shape.read(raw))
                .transpose()?
                .filter(|value| field.supports_presence() || !value.is_zero())
                .map(|value| Self::Scalar(shape, value.owned())),
            (_, None) => None,
        })
    }

    fn matches(&self, number: u32, bytes: &[u8]) -> Result<bool, Reason> {
        Ok(match self {
            Self::Scalar(shape, wanted) => match last(number, bytes)? {
                Some(raw) => wanted.equals(shape.read(raw)?),
                // Absent is zero, and zero is only asked for where absence
                // can be told from it.
                None => false,
            },
            Self::Message(level) => level.matches(&joined(number, bytes)?)?,
            Self::Scalars(shape, wanted) => list(*shape, number, bytes)? == *wanted,
            Self::Messages(levels) => {
                let mut elements = slices(number, bytes);
                for level in levels {
                    match elements.next() {
                        Some(element) if level.matches(element?)? => {}
                        _ => return Ok(false),
                    }
                }
                elements.next().is_none()
            }
            Self::Map(entry, wanted) => map(entry, number, bytes)? == *wanted,
        })
    }
}

/// Wire encoding of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Bool,
    Varint32,
    Varint64,
    Fixed32,
    Fixed64,
    Bytes,
}

/// A scalar, comparable by its bits.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scalar {
    Bits(u64),
    Bytes(Vec<u8>),
}

/// A scalar that is still in the bytes of its message.
#[derive(Debug, Clone, Copy)]
enum Borrowed<'a> {
    Bits(u64),
    Bytes(&'a [u8]),
}

impl Borrowed<'_> {
    fn is_zero(self) -> bool {
        match self {
            Self::Bits(bits) => bits == 0,
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    fn owned(self) -> Scalar {
        match self {
            Self::Bits(bits) => Scalar::Bits(bits),
            Self::Bytes(bytes) => Scalar::Bytes(bytes.to_vec()),
        }
    }
}

impl Scalar {
    fn equals(&self, other: Borrowed<'_>) -> bool {
        match (self, other) {
            (Self::Bits(a), Borrowed::Bits(b)) => *a == b,
            (Self::Bytes(a), Borrowed::Bytes(b)) => a == b,
            _ => false,
        }
    }
}

impl Shape {
    fn of(kind: &Kind) -> Option<Self> {
        Some(match kind {
            Kind::Bool => Self::Bool,
            Kind::Int32 | Kind::Uint32 | Kind::Sint32 | Kind::Enum(_) => Self::Varint32,
            Kind::Int64 | Kind::Uint64 | Kind::Sint64 => Self::Varint64,
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => Self::Fixed32,
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => Self::Fixed64,
            Kind::String | Kind::Bytes => Self::Bytes,
            Kind::Message(_) => return None,
        })
    }

    fn read(self, raw: Raw<'_>) -> Result<Borrowed<'_>, Reason> {
        match (self, raw) {
            (Self::Bool, Raw::Varint(value)) => Ok(Borrowed::Bits(u64::from(value != 0))),
            (Self::Varint32, Raw::Varint(value)) => Ok(Borrowed::Bits(value & 0xffff_ffff)),
            (Self::Varint64, Raw::Varint(value)) | (Self::Fixed64, Raw::Fixed64(value)) => {
                Ok(Borrowed::Bits(value))
            }
            (Self::Fixed32, Raw::Fixed32(value)) => Ok(Borrowed::Bits(value.into())),
            (Self::Bytes, Raw::Bytes(bytes)) => Ok(Borrowed::Bytes(bytes)),
            _ => Err("wrong wire type"),
        }
    }

    /// The values of a packed list.
    fn unpack(self, mut bytes: &[u8], values: &mut Vec<Scalar>) -> Result<(), Reason> {
        while !bytes.is_empty() {
            let raw = match self {
                Self::Fixed32 => wire::fixed(&mut bytes, false)?,
                Self::Fixed64 => wire::fixed(&mut bytes, true)?,
                _ => Raw::Varint(wire::varint(&mut bytes)?),
            };
            values.push(self.read(raw)?.owned());
        }
        Ok(())
    }
}

/// All occurrences of a field.
fn occurrences(number: u32, bytes: &[u8]) -> impl Iterator<Item = Result<Raw<'_>, Reason>> {
    wire::fields(bytes).filter_map(move |field| match field {
        Ok((found, raw)) => (found == number).then_some(Ok(raw)),
        Err(reason) => Some(Err(reason)),
    })
}

/// The last occurrence of a field, which is the one that counts.
fn last(number: u32, bytes: &[u8]) -> Result<Option<Raw<'_>>, Reason> {
    let mut found = None;
    for raw in occurrences(number, bytes) {
        found = Some(raw?);
    }
    Ok(found)
}

fn slices(number: u32, bytes: &[u8]) -> impl Iterator<Item = Result<&[u8], Reason>> {
    occurrences(number, bytes).map(|raw| match raw? {
        Raw::Bytes(slice) => Ok(slice),
        _ => Err("wrong wire type"),
    })
}

/// A message field. Several occurrences merge, which for encoded messages is
/// to stand one after the other.
fn joined(number: u32, bytes: &[u8]) -> Result<Cow<'_, [u8]>, Reason> {
    let mut whole = Cow::Borrowed(&[][..]);
    for slice in slices(number, bytes) {
        let slice = slice?;
        if whole.is_empty() {
            whole = Cow::Borrowed(slice);
        } else {
            whole.to_mut().extend_from_slice(slice);
        }
    }
    Ok(whole)
}

fn list(shape: Shape, number: u32, bytes: &[u8]) -> Result<Vec<Scalar>, Reason> {
    let mut values = Vec::new();
    for raw in occurrences(number, bytes) {
        match raw? {
            Raw::Bytes(packed) if shape != Shape::Bytes => shape.unpack(packed, &mut values)?,
            raw => values.push(shape.read(raw)?.owned()),
        }
    }
    Ok(values)
}

fn map(
    entry: &MessageDescriptor,
    number: u32,
    bytes: &[u8],
) -> Result<HashMap<MapKey, Value>, Reason> {
    let mut map = HashMap::new();
    for slice in slices(number, bytes) {
        let pair = decode(entry.clone(), slice?).map_err(|_| "bad map entry")?;
        let key = pair.get_field(&entry.map_entry_key_field()).into_owned();
        let value = pair.get_field(&entry.map_entry_value_field()).into_owned();
        map.insert(key.into_map_key().ok_or("bad map key")?, value);
    }
    Ok(map)
}
