//! References that stay true while several controllers and many callers write
//! at once.
//!
//! Whoever makes an object that refers to another reads the other one with
//! [`refer`] in the same transaction. Whoever deletes an object first writes a
//! `Deletion` for it, waits until the local view has everything up to that
//! moment, and then looks in the view for users. No transaction that read the
//! object before can commit after the mark, and none that comes after it gets
//! past [`refer`]; so what the view shows is all there is. Readers of the mark
//! do not disturb each other, unlike counters of references, which would make
//! every two creations in one cloudlet collide.
//!
//! A mark hangs on the lease of the controller that made it: if that dies in
//! the middle the mark goes and the object stays.
//!
//! A `Claim` keeps a name for one owner, where two objects with different
//! keys must not have it both.

use selvage_store::{Record, Transaction};

use crate::error::{Error, Result};
use crate::row::{Row, StoredObject};

/// Says that an object is about to be deleted, or changed in a way that those
/// who refer to it would not bear.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Deletion {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    /// Tells this attempt from any other.
    #[prost(string, tag = "3")]
    pub(crate) token: String,
}

impl Record for Deletion {
    const KIND: &'static str = "deletion";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        deletion_key(&self.kind, &self.key)
    }
}

pub(crate) fn deletion_key(kind: &str, key: &str) -> String {
    format!("{kind}/{key}")
}

/// The object that a new one refers to, if it is there. Fails while it is
/// being deleted.
pub async fn refer<M: StoredObject>(tx: &Transaction, key: &str) -> Result<Option<M>> {
    if tx.get::<Deletion>(&deletion_key(M::KIND, key)).await?.is_some() {
        return Err(Error::BeingDeleted { kind: M::TITLE, key: key.to_owned() });
    }
    Ok(tx.get::<Row<M>>(key).await?.map(|row| row.0))
}

/// A name that only one owner may have.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Claim {
    /// Kind of the name.
    #[prost(string, tag = "1")]
    pub(crate) space: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) owner: String,
    /// Objects of the owner that use the name, in order. With the last the
    /// claim goes.
    #[prost(string, repeated, tag = "4")]
    pub(crate) holders: Vec<String>,
}

impl Record for Claim {
    const KIND: &'static str = "claim";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        claim_key(&self.space, &self.name)
    }
}

fn claim_key(space: &str, name: &str) -> String {
    format!("{space}/{name}")
}

/// Takes a name for an owner; says false if another has it. Taking what one
/// has already is harmless.
pub async fn claim(
    tx: &Transaction,
    space: &str,
    name: &str,
    owner: &str,
    holder: &str,
) -> Result<bool> {
    let found = tx.get::<Claim>(&claim_key(space, name)).await?;
    let mut claim = found.unwrap_or_else(|| Claim {
        space: space.to_owned(),
        name: name.to_owned(),
        owner: owner.to_owned(),
        holders: Vec::new(),
    });
    if claim.owner != owner {
        return Ok(false);
    }
    if let Err(place) = claim.holders.binary_search_by(|known| known.as_str().cmp(holder)) {
        claim.holders.insert(place, holder.to_owned());
        tx.put(&claim)?;
    }
    Ok(true)
}

/// Returns whether an owner has a name or could take it.
pub async fn is_free_for(tx: &Transaction, space: &str, name: &str, owner: &str) -> Result<bool> {
    let found = tx.get::<Claim>(&claim_key(space, name)).await?;
    Ok(found.is_none_or(|claim| claim.owner == owner))
}

/// Gives a name back; harmless if the holder does not have it.
pub async fn release(tx: &Transaction, space: &str, name: &str, holder: &str) -> Result<()> {
    let key = claim_key(space, name);
    let Some(mut claim) = tx.get::<Claim>(&key).await? else { return Ok(()) };
    let before = claim.holders.len();
    claim.holders.retain(|known| known != holder);
    if claim.holders.is_empty() {
        tx.delete::<Claim>(&key).await?;
    } else if claim.holders.len() != before {
        tx.put(&claim)?;
    }
    Ok(())
}
