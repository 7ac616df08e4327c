//! Operations of a kind that is no more.

use selvage_store::transact;

use crate::record::OperationRecord;
use crate::{Engine, Error};

impl Engine {
    /// Gives the operations of a kind that an earlier version stored the kinds
    /// that took its place, by the object that each works on; one for which
    /// `new` finds none is left alone. The new kinds must have the steps and
    /// read the state of the old one: an operation that was under way goes on
    /// where it was. To be called before [`Engine::run`]. Says how many there
    /// were.
    pub async fn replace_kind(
        &self,
        old: &str,
        new: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<usize, Error> {
        let mut replaced = 0;
        for stored in self.inner.operations.list() {
            let Some(kind) = new(&stored.value.key).filter(|_| stored.value.kind == old) else {
                continue;
            };
            let id = &stored.key;
            let committed = transact(self.store(), |tx| async move {
                let Some(mut record) = tx.get::<OperationRecord>(id).await? else { return Ok(()) };
                kind.clone_into(&mut record.kind);
                record.writes += 1;
                tx.put(&record)?;
                Ok::<_, Error>(())
            });
            self.inner.operations.wait_for(committed.await?.revision).await?;
            replaced += 1;
        }
        Ok(replaced)
    }
}
