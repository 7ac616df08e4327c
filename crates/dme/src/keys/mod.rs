//! The keys that cookies are signed with: in the controller's store, from
//! where every engine of the region has them.

mod remote;
mod service;
mod stored;

use async_trait::async_trait;
use selvage_api::selvage::matching::CookieKey;

pub use self::{
    remote::RemoteKeys,
    service::KeyService,
    stored::{Policy, StoreKeys},
};
use crate::error::Result;

/// Source of keys.
#[async_trait]
pub trait KeySource: Send + Sync + 'static {
    /// All keys with which cookies that are still good were signed, and the
    /// one that new cookies are signed with.
    async fn keys(&self) -> Result<Vec<CookieKey>>;
}
