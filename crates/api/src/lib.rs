//! The contracts: generated types, clients and servers of every package in
//! `proto/`, and the descriptors that everything generic works by.
//!
//! [`mod@method`] knows every method and its routes, [`object`] works on any
//! object by its descriptors (key, update mask, Show filter), [`json`] is
//! canonical JSON, [`lock`] keeps the wire as it was published,
//! [`secret`] keeps secrets out of sight.
//!
//! This crate knows the shape of a message and, of its meaning, only what
//! the contracts repeat on every object, such as which names a key may hold:
//! no rule of a part, no state, no I/O.

mod chain;
pub mod code;
mod details;
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

pub use chain::{causes, chain, innermost, with_causes};
pub use code::Code;
pub use details::bad_request;
pub use generated::*;
pub use method::{HttpBinding, Method, method, methods};

/// The encoded `FileDescriptorSet` of all contracts, options and comments
/// included.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));

/// The same without comments, which take more memory than everything else.
const BARE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bare.binpb"));

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| decode(BARE));

fn decode(set: &[u8]) -> DescriptorPool {
    // Made by our own build script: it decodes or the build is broken.
    #[allow(clippy::expect_used)]
    DescriptorPool::decode(set).expect("descriptors made by build.rs")
}

/// The descriptors of all contracts, without comments.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}

/// Comment of the contract on the element at this path in this file.
pub fn comment(file: &str, path: &[i32]) -> &'static str {
    const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/comments.txt"));
    static PLACES: &[[u32; 3]] = include!(concat!(env!("OUT_DIR"), "/comments.rs"));
    let mut wanted = file.to_owned();
    for step in path {
        wanted += " ";
        wanted += &step.to_string();
    }
    let part = |from: u32, to: u32| TEXT.get(from as usize..to as usize).unwrap_or_default();
    let found = PLACES.binary_search_by(|[start, middle, _]| part(*start, *middle).cmp(&wanted));
    found.map_or("", |at| part(PLACES[at][1], PLACES[at][2]))
}

/// The descriptors of all contracts with their comments, for those who show
/// them. Read anew each time, so that only who needs it keeps it.
pub fn pool_with_comments() -> DescriptorPool {
    decode(FILE_DESCRIPTOR_SET)
}
