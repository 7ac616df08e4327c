//! The objects of the edge controller as people name them: kinds, flags,
//! files. All of it is read off the contracts; what is written here by hand is
//! only what they do not say, such as which fields the server fills.

pub(crate) mod catalog;
pub(crate) mod diff;
pub(crate) mod draft;
pub(crate) mod file;
pub(crate) mod flags;
pub(crate) mod plain;
pub(crate) mod rpc;
pub(crate) mod scalar;
pub(crate) mod yaml;

pub(crate) use catalog::{Kind, Verb};
pub(crate) use draft::Draft;
