//! The contracts: generated types, clients and servers of every package in
//! `proto/`, and the descriptors that everything generic works by.
//!
//! [`mod@method`] knows every method and its routes, [`object`] works on any
//! object by its descriptors (key, update mask, Show filter), [`json`] is
//! canonical JSON, [`lock`] keeps the wire as it was published,
//! [`secret`] keeps secrets out of sight.
//!
//! What is here knows the shape of a message and, of its meaning, only what
//! the contracts repeat on every object, such as which names a key may hold:
//! no rule of a part, no state, no I/O.

pub mod code;
pub mod json;
pub mod lock;
pub mod method;
pub mod object;
pub mod secret;

use std::sync::LazyLock;

use prost_reflect::DescriptorPool;

#[allow(clippy::all, unreachable_pub, unused_qualifications, rustdoc::all, missing_docs)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}

pub use code::Code;
pub use generated::*;
pub use method::{HttpBinding, Method, method, methods};

/// The encoded `FileDescriptorSet` of all contracts, options and comments
/// included.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    // Made by our own build script: it decodes or the build is broken.
    #[allow(clippy::expect_used)]
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors made by build.rs")
});

/// The descriptors of all contracts.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}
