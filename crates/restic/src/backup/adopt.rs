//! Packs that an earlier run uploaded and did not live to write down.

use futures::{StreamExt, stream};

use super::IndexWriter;
use crate::{
    Error, Repository, Result,
    backend::{Kind, Listed},
    format::IndexPack,
};

/// Finds packs that are in no index and puts them into one. Says how many.
///
/// Packs of somebody who is at work right now may be among them. A pack is
/// whole or not there, so that does no harm: it is in two indexes then.
pub(super) async fn adopt(repository: &Repository) -> Result<u64> {
    let listed = repository.backend().list(Kind::Pack).await?;
    let orphans: Vec<Listed> = {
        let index = repository.index().read();
        listed.into_iter().filter(|pack| !index.knows_pack(&pack.id)).collect()
    };
    let mut headers = stream::iter(orphans)
        .map(async |pack| (pack.id, repository.read_header(pack.id, pack.size).await))
        .buffer_unordered(repository.options().connections.max(1));
    let mut index = IndexWriter::new(repository);
    let mut adopted = 0;
    while let Some((id, header)) = headers.next().await {
        match header {
            Ok(blobs) => {
                let blobs = blobs.into_iter().map(Into::into).collect();
                index.add(IndexPack { id, blobs, time: None }).await?;
                adopted += 1;
            }
            Err(error @ (Error::DamagedFile { .. } | Error::MissingFile(_))) => {
                tracing::warn!(%error, "a pack outside of any index is of no use");
            }
            Err(error) => return Err(error),
        }
    }
    index.write().await?;
    Ok(adopted)
}
