//! Parts that the contracts repeat on every object, done once by descriptors:
//! the key, the `fields` mask of an Update, the filter of a Show, the range of
//! enums. Works on every generated type; nothing is written per object.

mod enums;
mod filter;
mod key;
mod mask;
mod plan;
mod wire;

#[cfg(test)]
mod tests;

pub use enums::{camel_name, check_enums};
pub use filter::Filter;
pub use key::Key;
pub use mask::Mask;
pub use plan::{Leaf, Plan, plan};

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor};

use crate::Code;

/// Any generated message.
pub trait Object: Message + Name + Default + Clone {}

impl<T: Message + Name + Default + Clone> Object for T {}

/// Errors of an object, a mask or a filter.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name in a key breaks the rules; the texts are part of the contract.
    #[error("{0}")]
    InvalidName(&'static str),
    #[error("{message} has no key that could be checked")]
    NoKey { message: String },
    #[error("{message} has no field(s) {} to be updated", fields.join(", "))]
    UnknownFields { message: String, fields: Vec<String> },
    #[error("specified field(s) {} cannot be modified", fields.join(", "))]
    NotModifiable { fields: Vec<String> },
    #[error("nothing specified to update")]
    NothingToUpdate,
    #[error("invalid {name}: {field} cannot be {value}, it is one of {}", known.join(", "))]
    InvalidEnum { name: String, field: String, value: i32, known: Vec<String> },
    #[error("bytes that are not a {message}")]
    Decode { message: String, source: prost::DecodeError },
    #[error("bytes that are not a {message}: {reason}")]
    Malformed { message: String, reason: &'static str },
    /// A type that is in none of the contracts.
    #[error("{message} is in no contract")]
    UnknownType { message: String },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidName(_)
            | Self::UnknownFields { .. }
            | Self::NotModifiable { .. }
            | Self::NothingToUpdate
            | Self::InvalidEnum { .. }
            | Self::Decode { .. }
            | Self::Malformed { .. } => Code::InvalidArgument,
            Self::NoKey { .. } | Self::UnknownType { .. } => Code::Internal,
        }
    }
}

/// The descriptor of a generated type.
pub fn descriptor_of<M: Name>() -> Result<MessageDescriptor, Error> {
    let message = M::full_name();
    crate::pool().get_message_by_name(&message).ok_or(Error::UnknownType { message })
}

/// A generated message as a dynamic one.
pub fn to_dynamic<M: Message + Name>(message: &M) -> Result<DynamicMessage, Error> {
    decode(descriptor_of::<M>()?, &message.encode_to_vec())
}

/// A dynamic message as a generated one.
pub fn from_dynamic<M: Message + Name + Default>(message: &DynamicMessage) -> Result<M, Error> {
    M::decode(message.encode_to_vec().as_slice())
        .map_err(|source| Error::Decode { message: M::full_name(), source })
}

/// Names of the fields in which two messages differ, in the order of the
/// contract.
pub fn changed_fields<M: Message + Name>(before: &M, after: &M) -> Result<Vec<String>, Error> {
    let (before, after) = (to_dynamic(before)?, to_dynamic(after)?);
    let fields = descriptor_of::<M>()?;
    let differs = |field: &FieldDescriptor| before.get_field(field) != after.get_field(field);
    Ok(fields.fields().filter(differs).map(|field| field.name().to_owned()).collect())
}

/// The object as it is stored: without its `fields`.
pub fn without_fields<M: Object>(object: &M) -> Result<M, Error> {
    let mut dynamic = to_dynamic(object)?;
    if let Some(field) = mask_field(&descriptor_of::<M>()?) {
        dynamic.clear_field(&field);
    }
    from_dynamic(&dynamic)
}

fn decode(descriptor: MessageDescriptor, bytes: &[u8]) -> Result<DynamicMessage, Error> {
    let message = descriptor.full_name().to_owned();
    DynamicMessage::decode(descriptor, bytes).map_err(|source| Error::Decode { message, source })
}

/// The field that carries the mask of an Update: number 1, named `fields`. It
/// is never masked, filtered by or stored.
fn mask_field(descriptor: &MessageDescriptor) -> Option<FieldDescriptor> {
    descriptor.get_field(1).filter(|field| field.name() == "fields" && field.is_list())
}
